package tasks

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/ledger"
)

// A jobState says how far the runs of a job are, as far as they keep others
// from starting: a job with OverlapAllow is always idle.
type jobState int

const (
	idle      jobState = iota // the next run may start
	running                   // a run has not returned
	recording                 // all have returned, but the end of one is not in the ledger yet
)

// termJob is a job during one term.
type termJob struct {
	Job
	spec  Spec
	alarm gocron.Job

	waits        atomic.Bool   // somebody waits for its turn
	turn         bounded.Turn  // guards what follows: one step at a time
	row          *ledger.Job   // nil: not in the ledger yet
	catchUpTo    time.Time     // undecided ticks up to it run, one after the other
	overlapsAt   time.Time     // while a run is under way: when what it overlaps is recorded next
	overlapsWait time.Duration // from there to the next time

	mu         sync.Mutex // guards what follows
	active     int        // runs whose end is not recorded
	returned   int        // of these, runs that have returned
	returnedAt time.Time  // when the latest of them did
	busyFrom   time.Time  // when a run began that kept others from starting
	busyUntil  time.Time  // when the latest run had ended
	stirred    time.Time  // when nothing was due, or something ended that had kept it from starting
	retries    []attempt  // in the order in which they are due
	starts     []step     // that the ledger may carry out yet, although it has refused them
}

// An attempt is one that a run is owed.
type attempt struct {
	run   ledger.Run // as the attempt before has left it
	due   time.Time  // by this process' monotonic clock
	timer *time.Timer
}

// state needs j.mu.
func (j *termJob) state() jobState {
	switch {
	case j.active == 0 || j.Overlap == OverlapAllow:
		return idle
	case j.active > j.returned:
		return running
	}
	return recording
}

// unmoved returns the state of the job, and for how long it has not changed
// although a tick that is due should have changed it.
func (j *termJob) unmoved() (s jobState, since time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s = j.state(); s == recording {
		return s, time.Since(j.returnedAt)
	}
	return s, time.Since(j.stirred)
}

// runBegins notes that a run starts. from is when the job became busy; zero: it
// goes on being busy.
func (j *termJob) runBegins(from time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.active++
	if !from.IsZero() {
		j.busyFrom = from
	}
}

// runReturned notes that a run has returned: from now on the job may be stalled.
func (j *termJob) runReturned() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.returned++
	j.returnedAt = time.Now()
}

// runEnded notes that the end of a run is recorded, or given up.
func (j *termJob) runEnded(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.active--
	j.returned--
	j.busyUntil, j.stirred = now, time.Now()
}

// clockSet notes that the database's clock was set to now. A run that is under way
// has not overlapped the ticks that were passed over: they count as before it, and
// with them what it has overlapped already and is not recorded yet.
func (j *termJob) clockSet(jump time.Duration, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if jump > 0 && j.state() != idle || j.busyFrom.After(now) {
		j.busyFrom = now
	}
	if j.busyUntil.After(now) {
		j.busyUntil = now
	}
}

// stir notes that the job is not stalled.
func (j *termJob) stir() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stirred = time.Now()
}

// retry returns the attempt that is due, nil if there is none.
func (j *termJob) retry() *attempt {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.retries) == 0 || time.Now().Before(j.retries[0].due) {
		return nil
	}
	return &j.retries[0]
}

// owe adds an attempt; wake is called when it is due.
func (j *termJob) owe(a attempt, wake func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.timer = time.AfterFunc(time.Until(a.due), wake)
	i, _ := slices.BinarySearchFunc(j.retries, a, func(x, y attempt) int {
		return cmp.Or(x.due.Compare(y.due), -1) // behind its equals
	})
	j.retries = slices.Insert(j.retries, i, a)
}

// settle forgets what is owed to a run.
func (j *termJob) settle(run ledger.Run) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.retries = slices.DeleteFunc(j.retries, func(a attempt) bool { return a.run.ID == run.ID })
}

// unsure notes a start that was refused when it was sent again: the first time it may still be
// on its way. A retry is owed as before, and so is found by the next try.
func (j *termJob) unsure(s step) {
	tick, _ := s.starts()
	if !s.again || tick.IsZero() || s.kind == startRetry {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.ContainsFunc(j.starts, func(other step) bool {
		at, _ := other.starts()
		return other.kind == s.kind && at.Equal(tick)
	}) {
		j.starts = append(j.starts, s)
	}
}

// sure forgets a start that was carried out, or cannot be any more: of the decisions, all, as
// they begin at the same cursor.
func (j *termJob) sure(kind stepKind, tick time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.starts = slices.DeleteFunc(j.starts, func(s step) bool {
		at, _ := s.starts()
		return s.kind == kind && (kind == decideTicks || at.Equal(tick))
	})
}

// unsureStarts are those that may have become runs, which must not overlap others of the job.
func (j *termJob) unsureStarts() []step {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state() != idle {
		return nil
	}
	return slices.Clone(j.starts)
}

// stop silences the timers.
func (j *termJob) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.retries {
		a.timer.Stop()
	}
}
