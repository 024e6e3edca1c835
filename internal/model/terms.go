package model

import "fmt"

// The model of terms: how the next term is computed, against a database's clock that
// steps, many acquisitions in one tick, and a history that goes back because a backup
// was restored or a fail-over lost an acquisition. Two replicas, one event an acquisition.

// highestTerm keeps the search finite.
const highestTerm = 60

type termState struct {
	Clock, Last, Ever, Backup int8    // Last: in the database. Ever: that anybody had
	Known                     [2]int8 // the highest term that each replica has seen
	Ticks, Steps, Restores    int8
}

type termRules struct {
	Steps, Restores int8 // of the database's clock; of the history
	Restarts        bool // a replica may forget what it has seen
	ClockOnly       bool // the term is the database's clock, and nothing else
	AboveKnown      bool // a term is above every term that its replica has seen
	AllSee          bool // every replica sees every term, because it looks as it waits
}

func (c *termRules) start() termState {
	return termState{Clock: 10, Steps: c.Steps, Restores: c.Restores, Backup: -1}
}

func (c *termRules) next(s termState, emit func(termState, event)) {
	for i := range s.Known {
		c.replica(s, i, emit)
	}
	n := s
	if s.Ticks < 8 { // then the clock stands still, so that the search ends
		n.Ticks++
		n.Clock++
	}
	emit(n, event{ticks: true})
	if s.Steps > 0 {
		for _, by := range []int8{5, 1, -1, -5} {
			n := s
			n.Steps--
			n.Clock += by
			emit(n, fault(fmt.Sprintf("THE DATABASE'S CLOCK STEPS by %+d", by)))
		}
	}
	if s.Restores > 0 {
		n := s
		n.Backup = s.Last
		emit(n, fault(fmt.Sprintf("a backup is taken: last term %d", s.Last)))
		if s.Backup >= 0 {
			n = s
			n.Restores--
			n.Last = s.Backup
			n.Clock++ // it takes longer than one tick of the clock that terms follow
			emit(n, fault(fmt.Sprintf("THE HISTORY GOES BACK to last term %d", s.Backup)))
		}
	}
}

func (c *termRules) replica(s termState, i int, emit func(termState, event)) {
	term := max(s.Last+1, s.Clock)
	if c.ClockOnly {
		term = s.Clock
	}
	if c.AboveKnown {
		term = max(term, s.Known[i]+1)
	}
	if term > highestTerm {
		return
	}
	n := s
	e := by(i, fmt.Sprintf("acquires: term %d; the highest ever is %d, the clock says %d",
		term, s.Ever, s.Clock))
	if term <= s.Ever {
		e.broken = TermsRise
	}
	n.Last, n.Ever, n.Known[i] = term, max(s.Ever, term), term
	if c.AllSee {
		n.Known[1-i] = term
	}
	emit(n, e)
	if s.Known[i] < s.Last {
		n = s
		n.Known[i] = s.Last
		emit(n, by(i, "looks"))
	}
	if c.Restarts && s.Known[i] > 0 {
		n = s
		n.Known[i] = 0
		emit(n, by(i, "restarts"))
	}
}

func (c *termRules) done(*termState) bool      { return false }
func (c *termRules) broken(*termState) Promise { return Holds }

func (c termRules) search(o Options) Result { return search(c.start(), &c, o) }
