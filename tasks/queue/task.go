package queue

import (
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver"
)

// A Task is one that this worker has captured. Its Info is of that moment.
type Task struct {
	Info
	token      driver.Token
	held       atomic.Pointer[hold] // nil: it has ended, or is lost
	completing atomic.Bool          // DoneTx has locked its row
	outcome    atomic.Int32         // what became of it; see below
}

// A hold is what one call has given.
type hold struct {
	sent clock.Stopwatch
	safe time.Duration
}

// Left is for how long the task is surely the worker's, unless it extends it:
// until 90 % of the time-out have passed since the call was sent that captured
// or last extended it, by a clock that nobody can set and that counts suspend
// where the system can tell (the rates of two clocks may differ by 10 %). Give
// the work a context.WithTimeout of it, and ask again before what cannot be
// undone. It is 0 from then on, once the task has ended, and once it is known
// to be lost. It may be called from any goroutine.
func (t *Task) Left() time.Duration {
	h := t.held.Load()
	if h == nil {
		return 0
	}
	return max(h.safe-h.sent.Elapsed(), 0)
}

// hold lets Left count from when a call was sent, unless the task has ended or was lost
// before its answer came, or just as it did.
func (t *Task) hold(sent clock.Stopwatch, timeout time.Duration) {
	t.held.Store(&hold{sent, timeout - timeout/10})
	if t.outcome.Load() != stillOurs {
		t.held.Store(nil)
	}
}

// What became of a task.
const (
	stillOurs int32 = iota
	lostIt
	endedIt
)

// end notes that the database has confirmed that we have ended the task, whatever
// another call has heard meanwhile.
func (t *Task) end() {
	t.outcome.Store(endedIt)
	t.held.Store(nil)
}

// lose notes that the database has said that the task is not ours.
func (t *Task) lose() {
	t.outcome.CompareAndSwap(stillOurs, lostIt)
	t.held.Store(nil)
}

// ended reports whether this worker has ended it.
func (t *Task) ended() bool { return t.outcome.Load() == endedIt }
