package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"example.com/schedlock/internal/bounded"
)

// WorkOptions are how [Queues.Work] works. The zero value is one worker with the
// defaults.
type WorkOptions struct {
	// Workers is how many handlers run at the same time: from 1 to 1,000; 0
	// means 1. Each call has at most so many tasks.
	Workers int

	// MaxPause is how long Work pauses at most when the queue has nothing to
	// capture. It begins with 50 ms and doubles; each pause is shortened by up to
	// a half, at random. From 1 ms; 0 means 1 s. So a new task waits for a free
	// worker for up to MaxPause.
	MaxPause time.Duration

	// RetryDelay is how long a task waits after its first failure. After a further
	// one it is doubled for each attempt before that, also for those that a stop
	// has interrupted, up to MaxRetryDelay, at most 366 days. 0 means 1 s, and 1 h
	// for MaxRetryDelay.
	RetryDelay, MaxRetryDelay time.Duration

	// Limit is how long an attempt may take: then its context ends. 0 means 10
	// min. If the handler does not return within 10 s more it keeps its worker
	// busy, but its task is left to the time-out, and may be tried again beside
	// it.
	Limit time.Duration

	// Drain is how long Work waits for running handlers when its context has
	// ended; then theirs end too. 0 means 20 s; 1 ns: hardly at
	// all.
	Drain time.Duration

	// OnEvent is told of everything that happens to the tasks, one call after
	// the other, on a goroutine of its own. Nothing waits for a call for longer
	// than 100 ms. Of those that wait then 1,000 are kept. Its panics are logged.
	// nil: nobody is told.
	OnEvent func(Event)

	// Log is slog.Default() if it is nil.
	Log *slog.Logger
}

// EventKind says what has happened.
type EventKind string

// What [WorkOptions.OnEvent] is told.
const (
	EventStarted EventKind = "started" // a handler begins
	EventDone    EventKind = "done"    // it has returned nil, and the task is done
	// it has failed; the task is tried again if RetriesLeft is above 0
	EventFailed   EventKind = "failed"
	EventReleased EventKind = "released" // a stop has interrupted it: the attempt costs no retry
	// the time-out has passed, or somebody else has ended the task
	EventLost  EventKind = "lost"
	EventEnded EventKind = "ended" // the handler has ended the task itself
	EventStuck EventKind = "stuck" // it does not return, although its context has ended
	// the database did not answer a capture, an extension or an end
	EventStoreErr EventKind = "store_err"
	EventMissed   EventKind = "missed" // OnEvent was too slow for Missed events
)

// Event is something that happened to a task, or to the queue.
type Event struct {
	Kind   EventKind
	Queue  string
	Task   Info          // as it was captured; its ID is empty if it is none
	Took   time.Duration // of the handler, once it has returned
	Err    error         // of the handler, or of the database
	Panic  bool          // Err is a panic of the handler
	Missed int           // how many events were lost; see EventMissed
}

// The causes of the end of a handler's context, besides an error that wraps
// schedlock.ErrLost.
var (
	// ErrLimit: the attempt has taken WorkOptions.Limit.
	ErrLimit = errors.New("the attempt has taken longer than its limit")

	// ErrDrained: Work stops, and has waited for WorkOptions.Drain.
	ErrDrained = errors.New("the workers stop, and the drain limit has passed")
)

// A StuckError is what Work returns if handlers have not returned though their
// contexts had ended. Their tasks are left to their time-outs; their goroutines
// go on.
type StuckError struct {
	Queue string
	IDs   []string
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("queue %q: %d handlers have not returned within %v after the end of their "+
		"contexts; their tasks %s are left to their time-outs",
		e.Queue, len(e.IDs), stuckAfter, some(e.IDs, strconv.Quote))
}

const (
	minPause     = 50 * time.Millisecond // after the first empty capture
	maxFailPause = 30 * time.Second      // after many failures in a row
	stuckAfter   = 10 * time.Second      // from the end of a handler's context
	callLimit    = 5 * time.Second       // of a capture
	observeLimit = time.Second           // for which the end waits for OnEvent and the log
)

// withDefaults returns the options with their defaults, or what is wrong.
func (o WorkOptions) withDefaults() (WorkOptions, error) {
	var errs []error
	set := func(name string, d *time.Duration, def, least, most time.Duration) {
		if *d == 0 {
			*d = def
		}
		if *d < least || *d > most {
			errs = append(errs, fmt.Errorf("%s %v is not from %v to %v", name, *d, least, most))
		}
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.Workers < 1 || o.Workers > maxWorkers {
		errs = append(errs, fmt.Errorf("%s %d is not from 1 to %d",
			"Workers", o.Workers, maxWorkers))
	}
	set("MaxPause", &o.MaxPause, defaultMaxPause, time.Millisecond, time.Hour)
	set("RetryDelay", &o.RetryDelay, defaultRetryDelay, time.Millisecond, maxDelay)
	set("MaxRetryDelay", &o.MaxRetryDelay, max(defaultMaxRetryDelay, o.RetryDelay), o.RetryDelay,
		maxDelay)
	set("Limit", &o.Limit, defaultWorkLimit, time.Millisecond, maxDelay)
	set("Drain", &o.Drain, defaultWorkDrain, time.Nanosecond, maxDelay)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = bounded.Log(o.Log)
	return o, errors.Join(errs...)
}

// retryDelay is how long a task waits that has failed. The database counts its attempts,
// but only some of them may have failed: before the first failure it has no error.
func (o WorkOptions) retryDelay(task Info) time.Duration {
	if task.LastError == "" {
		return o.RetryDelay
	}
	return doubled(o.RetryDelay, task.Attempts-1, o.MaxRetryDelay)
}

// doubled is d, doubled n times, but at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
