package model

// A Promise is what a run may break. Holds is none of them.
type Promise int8

// The promises of the protocol, and an error of a model.
const (
	Holds             Promise = iota
	OneLeader                 // never two replicas that trust their leases
	TermsRise                 // each term is above all terms before it
	FenceHolds                // no fenced transaction commits without the row
	SomebodyLeads             // once faults stop, somebody leads within a given time
	ClocksMoveNothing         // a step of the database's clock moves no leadership
	DeadEnd                   // not even time can go on: the model itself is wrong
)

func (p Promise) String() string {
	return [...]string{"holds", "two leaders", "a term that does not rise",
		"a fenced write without the row", "nobody leads in time",
		"a clock step moves leadership", "a dead end"}[p]
}
