package bounded

import (
	"sync"
	"time"
)

const (
	// Patience is how long Do waits at most.
	Patience = 100 * time.Millisecond
	// Capacity is how many calls may wait for their turn.
	Capacity = 1000
)

// A Queue makes calls one after the other, in order, of a function that may block,
// such as a log handler that writes to a pipe which nobody reads. Heartbeats, the
// campaign, a drain and a release must not wait for it.
//
// A call is made on a goroutine of its own, and who asks for it waits until it
// has returned: so, as a rule, it has when Do returns. But nobody waits for longer
// than 100 ms. From then on calls are only queued, up to 1,000, until they have
// caught up; more are lost, and counted. All methods may be called at any time, also
// by what is called.
type Queue struct {
	// Missed is called in the place of n calls that were lost.
	Missed func(n int)

	mu      sync.Mutex
	waiting []call
	lost    int           // after the newest of those that wait
	behind  bool          // nobody waits any more
	working bool          // a goroutine makes the calls
	last    chan struct{} // done of the call that was added last
}

type call struct {
	do   func()
	done chan struct{} // closed when it has returned
}

// Do makes a call in its turn, and waits for it, but not for long.
func (q *Queue) Do(do func()) {
	c := call{do, make(chan struct{})}
	q.mu.Lock()
	if len(q.waiting) >= Capacity {
		q.lost++
		q.mu.Unlock()
		return
	}
	q.saveLost()
	q.waiting, q.last = append(q.waiting, c), c.done
	wait := !q.behind
	if !q.working {
		q.working = true
		go q.work()
	}
	q.mu.Unlock()
	if wait && !Wait(c.done, Patience) {
		q.mu.Lock()
		q.behind = q.working
		q.mu.Unlock()
	}
}

// Wait waits until all calls so far have returned, but not for longer than
// limit.
func (q *Queue) Wait(limit time.Duration) {
	q.mu.Lock()
	last := q.last
	q.mu.Unlock()
	if last != nil {
		Wait(last, limit)
	}
}

// saveLost queues the call for what was lost; mu is held.
func (q *Queue) saveLost() {
	if n := q.lost; n > 0 {
		q.lost = 0
		q.waiting = append(q.waiting, call{func() { q.Missed(n) }, make(chan struct{})})
	}
}

// work makes the calls until there are none. One that ends its goroutine is in
// no other's way.
func (q *Queue) work() {
	finished := false
	defer func() {
		if !finished {
			go q.work()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.saveLost()
		}
		if len(q.waiting) == 0 {
			q.waiting, q.working, q.behind, finished = nil, false, false, true
			q.mu.Unlock()
			return
		}
		c := q.waiting[0]
		q.waiting[0] = call{}
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		c.make()
	}
}

// make makes the call. A panic is the caller's concern: it is in nobody's way
// here.
func (c call) make() {
	defer close(c.done)
	defer func() { _ = recover() }()
	c.do()
}
