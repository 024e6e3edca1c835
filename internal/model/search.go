package model

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"unsafe"
)

// maxReplicas is how many replicas a state has room for.
const maxReplicas = 3

// A protocol says what can happen in states of type S, which have only fields of one
// byte: then a state has no padding, and its bytes can be hashed and put in order.
type protocol[S comparable] interface {
	// next emits everything that can happen in s. The states it emits need not be
	// in normal form.
	next(s S, emit func(S, event))
	// broken is what s breaks, however it came about.
	broken(s *S) Promise
	// done reports whether the search need not go on from s.
	done(s *S) bool
}

// A reducible is a protocol that the search would be too large for without these. A small one
// does without them.
type reducible[S comparable] interface {
	// forget erases what can make no difference any more. It only makes the search
	// smaller.
	forget(s *S)
	// rename gives tokens and row versions new names, in the order in which s has
	// them. So a run of any length has a finite number of states.
	rename(s *S)
	// interchangeable is how many replicas may change places without a difference.
	interchangeable() int
	// reorder puts replica order[i] in place i.
	reorder(s S, order [maxReplicas]int) S
}

// nobody is who causes an event that no replica causes.
const nobody = -1

// An event is what leads from one state to the next.
type event struct {
	who    int // a replica, or nobody
	text   string
	ticks  bool    // time goes on by one tick
	broken Promise // what it breaks
}

func by(who int, text string) event { return event{who: who, text: text} }
func fault(text string) event       { return event{who: nobody, text: text} }

func letter(replica int) string { return string(rune('A' + replica)) }

// A turn finds all that can happen in one state of a protocol.
type turn[S comparable] struct {
	s    S
	emit func(S, event)
	// urgent: something is due. Once faults have stopped, no time passes before it
	// is done.
	urgent bool
}

// leadership is what a state breaks in which so many replicas trust their leases. Once faults have
// stopped, somebody must lead within so many ticks; 0: that is not asked.
func leadership(leaders int, calm bool, ticks, within int8) Promise {
	switch {
	case leaders > 1:
		return OneLeader
	case within > 0 && calm && ticks > within && leaders == 0:
		return SomebodyLeads
	}
	return Holds
}

// reordered are the replicas of a state in another order.
func reordered[R any](replicas [maxReplicas]R, order [maxReplicas]int) (to [maxReplicas]R) {
	for i, from := range order {
		to[i] = replicas[from]
	}
	return to
}

// Options say how to search.
type Options struct {
	// Limit is after how many states the search gives up. 0: never.
	Limit int
	// Plain searches without forgetting anything and without replicas that change
	// places. It is slower, and must come to the same verdict.
	Plain bool
}

// A Result is what a search has found.
type Result struct {
	Broken   Promise // Holds if nothing was
	States   int
	Complete bool     // there is nothing that it has not looked at
	Depth    int      // events in the trace; of a search that gave up, in the runs that hold
	Trace    []string // one of the shortest runs that break a promise
}

// A searcher looks at everything that can be reached, breadth first. So the first
// run that breaks a promise is one of the shortest.
type searcher[S comparable] struct {
	protocol[S]
	reduce  reducible[S] // nil: the protocol is none
	plain   bool
	orders  [][maxReplicas]int
	seed    maphash.Seed
	chunks  [][]S // the states in the order in which they were found
	parents []int32
	seen    map[uint64]int32 // the number of a state, by its hash
}

const chunkSize = 1 << 14

func search[S comparable](init S, p protocol[S], o Options) Result {
	x := &searcher[S]{protocol: p, plain: o.Plain, seed: maphash.MakeSeed(),
		seen: map[uint64]int32{}}
	if x.reduce, _ = p.(reducible[S]); x.reduce != nil && !o.Plain {
		x.orders = orders(x.reduce.interchangeable())
	}
	x.add(x.symmetric(x.normal(init)), -1, false)
	for i := 0; ; i++ {
		if i == len(x.parents) {
			return Result{States: i, Complete: true}
		}
		if o.Limit > 0 && len(x.parents) > o.Limit {
			return Result{States: len(x.parents), Depth: len(x.path(i)) - 1}
		}
		s := *x.at(i)
		if x.done(&s) {
			continue
		}
		broken, last := DeadEnd, i
		x.next(s, func(n S, e event) {
			switch {
			case broken == DeadEnd:
				broken = Holds
			case broken != Holds:
				return
			}
			x.add(x.symmetric(x.normal(n)), i, e.broken != Holds)
			if e.broken != Holds {
				broken, last = e.broken, len(x.parents)-1
			}
		})
		if broken != Holds {
			path := x.path(last)
			return Result{Broken: broken, States: len(x.parents), Depth: len(path) - 1,
				Trace: append(x.trace(init, path), broken.String())}
		}
	}
}

// orders are all the orders of n replicas, except the one that they have.
func orders(n int) [][maxReplicas]int {
	switch n {
	case 2:
		return [][maxReplicas]int{{1, 0, 2}}
	case 3:
		return [][maxReplicas]int{{1, 0, 2}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	}
	return nil
}

// normal is the one state for all that differ only in names, or in what makes no
// difference.
func (x *searcher[S]) normal(s S) S {
	if x.reduce == nil {
		return s
	}
	if !x.plain {
		x.reduce.forget(&s)
	}
	x.reduce.rename(&s)
	return s
}

// symmetric is the one state for all orders of the replicas of s.
func (x *searcher[S]) symmetric(s S) S {
	least := s
	for _, order := range x.orders {
		other := x.normal(x.reduce.reorder(s, order))
		if bytes.Compare(bytesOf(&other), bytesOf(&least)) < 0 {
			least = other
		}
	}
	return least
}

func bytesOf[S any](s *S) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
}

// next emits each event with what it breaks.
func (x *searcher[S]) next(s S, emit func(S, event)) {
	x.protocol.next(s, func(n S, e event) {
		if e.broken == Holds {
			e.broken = x.broken(&n)
		}
		emit(n, e)
	})
}

func (x *searcher[S]) at(i int) *S { return &x.chunks[i/chunkSize][i%chunkSize] }

// add remembers s, if it is a new one, or if it is the end of the search.
func (x *searcher[S]) add(s S, parent int, always bool) {
	hash := maphash.Comparable(x.seed, s)
	i, known := x.seen[hash]
	if known && *x.at(int(i)) != s {
		panic("model: two states have one hash: search again, with another seed")
	}
	if known && !always {
		return
	}
	n := len(x.parents)
	if n%chunkSize == 0 {
		x.chunks = append(x.chunks, make([]S, chunkSize))
	}
	x.parents = append(x.parents, int32(parent))
	*x.at(n) = s
	if !known {
		x.seen[hash] = int32(n)
	}
}

// path has the numbers of the states from the first one to state i.
func (x *searcher[S]) path(i int) (path []int) {
	for ; i >= 0; i = int(x.parents[i]) {
		path = append(path, i)
	}
	slices.Reverse(path)
	return path
}

// trace goes the path once more, with replicas that keep their names, and tells what
// happens.
func (x *searcher[S]) trace(init S, path []int) (lines []string) {
	s, time := x.normal(init), 0
	for k, i := range path[1:] {
		wanted := *x.at(i)
		breaks := k == len(path)-2
		var taken *event
		var to S
		x.next(s, func(n S, e event) {
			n = x.normal(n)
			if taken == nil && (e.broken != Holds) == breaks && x.symmetric(n) == wanted {
				taken, to = &e, n
			}
		})
		if taken == nil {
			panic("model: forget or reorder has changed what can happen")
		}
		s = to
		if taken.ticks {
			time++
		}
		if taken.text != "" {
			actor := ""
			if taken.who != nobody {
				actor = letter(taken.who) + " "
			}
			lines = append(lines, fmt.Sprintf("t=%-2d %s%s", time, actor, taken.text))
		}
	}
	return lines
}
