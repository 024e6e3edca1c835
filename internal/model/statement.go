package model

import (
	"fmt"
	"slices"
)

// A Row is what the statements of the lock read and write, by the names that a database has.
type Row struct {
	Token  string // of the row; "": there is none
	Beat   int64
	Newest string // token of the newest term; "": there was none
	Open   bool   // that term has no end
}

// String begins with the token.
func (r Row) String() string {
	end := "ended"
	if r.Open {
		end = "open"
	}
	return fmt.Sprintf("(row %.6q beat %d, newest %.6q %s)", r.Token, r.Beat, r.Newest, end)
}

// A Statement is what a replica asks of the database, except for a look, which changes nothing.
type Statement struct {
	Kind  Kind
	Token string // of the replica's lease

	// Of a claim: what it was judged by, and whether that was watched for a TTL.
	Judged  Row
	Watched bool
}

// Apply is one step of the lease model, by the rules of the protocol: what a database does with a
// statement that arrives. ok is false if it changes nothing. So a history of real statements can be
// checked against the model: see package linear. A claim always names the version of what it
// judged, as that of the code does; the model asks for it only where a rule needs it.
func (r Row) Apply(s Statement) (after Row, ok bool) {
	tokens := []string{"", r.Token, r.Newest, s.Token} // renamed to small numbers, as in a search
	number := func(token string) int8 { return int8(slices.Index(tokens, token)) }
	state := leaseState{Token: number(r.Token), Version: 1}
	if r.Open {
		state.Open = number(r.Newest)
	}
	q := request{Kind: s.Kind, Token: number(s.Token), Ground: watchedForLong,
		Version: state.Version}
	if s.Judged.Token == "" && !s.Watched {
		q.Ground = noRow
	}
	if s.Kind == Claim && !s.Judged.SameAs(r) {
		return r, false
	}
	before := state
	rules := today(leaseRules{})
	rules.apply(&state, &q)
	if !q.OK || state == before {
		return r, false
	}
	after = Row{Token: tokens[state.Token], Beat: r.Beat, Newest: r.Newest, Open: state.Open != 0}
	switch s.Kind {
	case Claim:
		after.Beat, after.Newest = 0, s.Token
	case Heartbeat:
		after.Beat++
	case Release:
		after.Beat = 0
	}
	return after, true
}

// SameAs compares what every claim compares.
func (r Row) SameAs(o Row) bool {
	return r.Token == o.Token && r.Beat == o.Beat && (r.Token != "" || r.Newest == o.Newest)
}
