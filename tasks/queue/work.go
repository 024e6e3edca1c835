package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/inturn"
	"example.com/schedlock/internal/logqueue"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// A Handler does the work of one task. nil means that it is done; an error, or a
// panic, is a failure of this attempt. Its context ends when the task is lost,
// when the attempt has taken [WorkOptions.Limit], and when a stop has waited for
// [WorkOptions.Drain]; the cause says which. A handler should return soon then.
//
// It may end the task itself, by a method of [Queues] such as [Queues.DoneTx]:
// then Work leaves the task as it is.
type Handler func(ctx context.Context, task *Task) error

// The defaults and the bound of [WorkOptions].
const (
	defaultMaxPause      = time.Second
	defaultRetryDelay    = time.Second
	defaultMaxRetryDelay = time.Hour
	defaultWorkLimit     = 10 * time.Minute
	defaultWorkDrain     = 20 * time.Second
	maxWorkers           = 1000
)

// WorkOptions are how [Queues.Work] works. The zero value is one worker with the
// defaults.
type WorkOptions struct {
	// Workers is how many handlers run at the same time: from 1 to 1,000; 0
	// means 1. Each call has at most so many tasks.
	Workers int

	// MaxPause is how long Work pauses at most when the queue has nothing to
	// capture. It begins with 50 ms and doubles. From 1 ms; 0 means 1 s. So a
	// new task waits for a free worker for up to MaxPause.
	MaxPause time.Duration

	// RetryDelay is how long a task waits after its first failure. Each further
	// attempt doubles it, up to MaxRetryDelay, at most 366 days. 0 means 1 s,
	// and 1 h for MaxRetryDelay.
	RetryDelay, MaxRetryDelay time.Duration

	// Limit is how long an attempt may take: then its context ends. 0 means 10
	// min. If the handler does not return within 10 s more it keeps its worker
	// busy, but its task is left to the time-out, and may be tried again beside
	// it.
	Limit time.Duration

	// Drain is how long Work waits for running handlers when its context has
	// ended; then theirs end too. 0 means 20 s; below 0: not at all.
	Drain time.Duration

	// OnEvent is told of everything that happens to the tasks, one call after
	// the other, on a goroutine of its own. Nothing waits for a call for longer
	// than 100 ms. Of those that wait then 1,000 are kept. nil: nobody is told.
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
	return fmt.Sprintf("queue %q: %d handlers have not returned within %v after the end of their contexts; their tasks %.10q are left to their time-outs",
		e.Queue, len(e.IDs), stuckAfter, e.IDs)
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
	if o.Drain < 0 {
		o.Drain = time.Nanosecond
	}
	set("Drain", &o.Drain, defaultWorkDrain, time.Nanosecond, maxDelay)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = logqueue.Wrap(o.Log)
	return o, errors.Join(errs...)
}

// retryDelay is how long a task waits that has failed so often.
func (o WorkOptions) retryDelay(attempts int) time.Duration {
	return doubled(o.RetryDelay, attempts-1, o.MaxRetryDelay)
}

// doubled is d, doubled n times, but at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// Work captures the tasks of a queue and calls handle for each, until ctx ends.
// It needs no leader: call it on every replica.
//
//	err := queues.Work(ctx, "mail", func(ctx context.Context, task *queue.Task) error {
//		return send(ctx, task.ID)
//	}, queue.WorkOptions{Workers: 4})
//
// While a handler runs Work extends its task, every third of the time-out of
// this handle. If it returns nil the task is done; if it returns an error or
// panics the attempt has failed, and the task is tried again after a delay that
// doubles, or is failed if no retry is left. After failures in a row the next
// capture waits, from 50 ms to 30 s, so that a fault that hits every task does
// not use up the retries of all.
//
// When ctx ends Work captures nothing more and waits for the running handlers:
// for [WorkOptions.Drain] in peace, and for 10 s more after it has ended their
// contexts. A task whose handler returns an error after that is released, and
// costs no retry. A task whose handler does not return is not released, since
// its work goes on: it is left to its time-out, and Work returns a *StuckError.
// Else it returns nil. So it returns at most Drain + one time-out + 16 s
// after the end of ctx.
//
// An error of the database never ends Work: it captures again, after 50 ms to
// 30 s. Work returns an error at once if an argument is wrong.
func (q *Queues) Work(ctx context.Context, queue string, handle Handler,
	options WorkOptions) error {
	o, err := options.withDefaults()
	err = errors.Join(checkName("the name of the queue", queue), err)
	if handle == nil {
		err = errors.Join(err, errors.New("the Handler is nil"))
	}
	if err != nil {
		return fmt.Errorf("queue: work: %w", err)
	}
	w := &workers{WorkOptions: o, q: q, queue: queue, handle: handle,
		log:  o.Log.With("queue", queue),
		free: make(chan struct{}, o.Workers), running: map[*attempt]struct{}{}}
	w.events.Missed = func(n int) { w.OnEvent(Event{Kind: EventMissed, Queue: queue, Missed: n}) }
	w.base, w.drained = context.WithCancelCause(context.WithoutCancel(ctx))
	defer w.drained(nil)
	w.capture(ctx)
	err = w.drain()
	w.events.Wait(observeLimit)
	logqueue.Flush(w.log, observeLimit)
	return err
}

// workers are one call of Work.
type workers struct {
	WorkOptions
	q       *Queues
	queue   string
	handle  Handler
	log     *slog.Logger
	events  inturn.Queue
	base    context.Context // of the handlers; it ends with the drain
	drained context.CancelCauseFunc
	free    chan struct{} // has an element for each worker that is busy
	wg      sync.WaitGroup

	mu       sync.Mutex
	running  map[*attempt]struct{}
	failures int // in a row
}

// An attempt is one call of the handler.
type attempt struct {
	*workers
	task     *Task
	returned atomic.Bool // the handler has
}

func (w *workers) tell(e Event) {
	if w.OnEvent == nil {
		return
	}
	e.Queue = w.queue
	w.events.Do(func() { w.OnEvent(e) })
}

// capture hands tasks to free workers until ctx ends.
func (w *workers) capture(ctx context.Context) {
	var empty, broken int // in a row
	for {
		n, ok := w.takeFree(ctx)
		if !ok {
			return
		}
		if w.pauseAfterFailures(ctx); ctx.Err() != nil {
			return
		}
		// What a capture that is cut off has taken, nobody works on.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		tasks, err := w.q.Capture(bounded, w.queue, n)
		if ctx.Err() != nil && len(tasks) > 0 {
			if err := w.q.Release(bounded, tasks...); err != nil {
				w.log.Warn("tasks that were captured during the stop cannot be released: they are left to their time-outs", "err", err)
			}
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		for range n - len(tasks) {
			<-w.free
		}
		for _, task := range tasks {
			w.start(task)
		}
		pause := time.Duration(0)
		switch {
		case err == nil && len(tasks) == n:
			empty = 0
		case err == nil || errors.Is(err, ErrNone):
			if len(tasks) > 0 {
				empty = 0
			}
			pause = doubled(min(minPause, w.MaxPause), empty, w.MaxPause)
			empty++
		default:
			if broken++; broken == 1 {
				w.log.Warn("no task can be captured: it is tried again", "err", err)
			}
			w.tell(Event{Kind: EventStoreErr, Err: err})
			pause = doubled(minPause, broken, maxFailPause)
		}
		if (err == nil || errors.Is(err, ErrNone)) && broken > 0 {
			broken = 0
			w.log.Info("tasks can be captured again")
		}
		sleep(ctx, pause)
	}
}

// pauseAfterFailures is the longer, the more attempts in a row have failed.
func (w *workers) pauseAfterFailures(ctx context.Context) {
	w.mu.Lock()
	failures := w.failures
	w.mu.Unlock()
	if failures > 0 {
		sleep(ctx, doubled(minPause, failures-1, maxFailPause))
	}
}

// takeFree waits for a free worker, and takes all that are free.
func (w *workers) takeFree(ctx context.Context) (n int, ok bool) {
	select {
	case <-ctx.Done():
		return 0, false
	case w.free <- struct{}{}:
	}
	for n = 1; ; n++ {
		select {
		case w.free <- struct{}{}:
		default:
			return n, true
		}
	}
}

// sleep is for about d, so that replicas do not ask at the same time.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d*3/4 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// start begins an attempt; its worker is taken.
func (w *workers) start(task *Task) {
	a := &attempt{workers: w, task: task}
	w.mu.Lock()
	w.running[a] = struct{}{}
	w.mu.Unlock()
	w.wg.Go(func() {
		defer func() {
			w.mu.Lock()
			delete(w.running, a)
			w.mu.Unlock()
			<-w.free
		}()
		a.run()
	})
}

// run calls the handler, keeps the task meanwhile, and ends it.
func (a *attempt) run() {
	a.tell(Event{Kind: EventStarted, Task: a.task.Info})
	ctx, cancel := context.WithCancelCause(a.base)
	var keepers sync.WaitGroup
	returned := make(chan struct{})
	keepers.Go(func() { a.watch(ctx, returned, cancel) })
	keepers.Go(func() { a.keep(ctx, returned, cancel) })
	began := clock.StartStopwatch()
	err, panicked := a.call(ctx)
	took := began.Elapsed()
	a.returned.Store(true)
	cause := context.Cause(ctx) // before we end it ourselves
	close(returned)
	cancel(nil)
	keepers.Wait()
	a.finish(Event{Task: a.task.Info, Took: took, Err: err, Panic: panicked}, cause)
}

// call calls the handler, whatever it does.
func (a *attempt) call(ctx context.Context) (err error, panicked bool) {
	returned := make(chan struct{})
	go func() { // it may end its goroutine
		defer close(returned)
		err,
			panicked = errors.New("the handler has called runtime.Goexit instead of returning"), true
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
				a.log.Error("a handler has panicked", "task", a.task.ID, "panic",
					ledger.Cut(fmt.Sprint(p)), "stack", ledger.Cut(string(debug.Stack())))
			}
		}()
		err, panicked = a.handle(ctx, a.task), false
	}()
	<-returned
	return err, panicked
}

// watch ends the handler's context when the task is lost, and when the limit has
// passed. It looks several times a time-out, because timers do not count the time
// for which the machine was suspended.
func (a *attempt) watch(ctx context.Context, returned <-chan struct{},
	cancel context.CancelCauseFunc) {
	began := clock.StartStopwatch()
	for ctx.Err() == nil {
		left := a.task.Left()
		switch {
		case left <= 0 && a.task.ended():
			return // by the handler
		case left <= 0:
			cancel(&LostError{Tasks: []*Task{a.task}})
			a.stuck(returned)
			return
		case began.Elapsed() >= a.Limit:
			cancel(ErrLimit)
			a.stuck(returned)
			return
		}
		wait := min(left, a.Limit-began.Elapsed(), max(a.q.timeout/10, time.Millisecond),
			time.Second)
		select {
		case <-returned:
			return
		case <-ctx.Done():
		case <-time.After(max(wait, time.Millisecond)):
		}
	}
}

// stuck says so if a handler does not return.
func (a *attempt) stuck(returned <-chan struct{}) {
	select {
	case <-returned:
	case <-time.After(stuckAfter):
		a.log.Error("a handler does not return: its task is left to its time-out, and its worker stays busy", "task", a.task.ID)
		a.tell(Event{Kind: EventStuck, Task: a.task.Info})
	}
}

// keep extends the task while the handler runs, and for a while after its context
// has ended. It is apart from watch, which no statement that hangs delays.
func (a *attempt) keep(ctx context.Context, returned <-chan struct{},
	cancel context.CancelCauseFunc) {
	third, retry := a.q.timeout/3, min(max(a.q.timeout/20, time.Millisecond), time.Second)
	pause, failing := third, false
	over := ctx.Done()
	var end <-chan time.Time
	for {
		select {
		case <-returned:
			return
		case <-end:
			return
		case <-over:
			over, end = nil, time.After(stuckAfter)
			continue
		case <-time.After(pause):
		}
		left := a.task.Left()
		if left <= 0 || a.task.completing.Load() {
			return
		}
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx),
			min(left, max(third, time.Second)))
		err := a.q.Extend(bounded, a.task)
		stop()
		pause = third
		switch {
		case err == nil:
			failing = false
		case errors.Is(err, schedlock.ErrLost):
			if !a.task.ended() {
				cancel(err)
			}
			return
		default:
			pause = retry
			if !failing {
				failing = true
				a.log.Warn("a task cannot be extended: it is tried again until the task is lost",
					"task", a.task.ID, "lost_in", left, "err", err)
				a.tell(Event{Kind: EventStoreErr, Task: a.task.Info, Err: err})
			}
		}
	}
}

// finish ends the task by what the handler has returned, unless the task has
// ended. It tries until the task is lost.
func (a *attempt) finish(e Event, cause error) {
	write := func(ctx context.Context) error { return a.q.Done(ctx, a.task) }
	switch {
	case a.task.ended():
		e.Kind = EventEnded
	case e.Err == nil:
		e.Kind = EventDone
	case errors.Is(cause, ErrDrained):
		e.Kind = EventReleased
		write = func(ctx context.Context) error { return a.q.Release(ctx, a.task) }
	default:
		e.Kind = EventFailed
		write = func(ctx context.Context) error {
			return a.q.Fail(ctx, a.task, e.Err, a.retryDelay(a.task.Attempts))
		}
	}
	if e.Kind != EventEnded {
		if err := a.insist(write); err != nil {
			e.Kind, e.Err = EventLost, errors.Join(err, e.Err)
		}
	}
	a.mu.Lock()
	switch e.Kind {
	case EventFailed, EventLost:
		a.failures++
	case EventDone, EventEnded:
		a.failures = 0
	}
	a.mu.Unlock()
	switch e.Kind {
	case EventFailed:
		a.log.Warn("a task has failed", "task", a.task.ID, "attempt", a.task.Attempts,
			"retries_left", a.task.RetriesLeft, "err", ledger.Cut(e.Err.Error()))
	case EventLost:
		a.log.Warn("a task was lost before its end was recorded: it may be done once more", "task",
			a.task.ID, "took", e.Took, "err", ledger.Cut(e.Err.Error()))
	}
	a.tell(e)
}

// insist repeats a write while the task is ours.
func (a *attempt) insist(write func(context.Context) error) error {
	retry := min(max(a.q.timeout/20, time.Millisecond), time.Second)
	var last error
	for {
		left := a.task.Left()
		if left <= 0 {
			return errors.Join(&LostError{Tasks: []*Task{a.task}}, last)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.base), left)
		err := write(ctx)
		cancel()
		if err == nil || errors.Is(err, schedlock.ErrLost) {
			return err
		}
		if last == nil {
			a.log.Warn("the end of a task cannot be recorded: it is tried again until the task is lost", "task", a.task.ID, "lost_in", left, "err", err)
			a.tell(Event{Kind: EventStoreErr, Task: a.task.Info, Err: err})
		}
		last = err
		time.Sleep(min(retry, left))
	}
}

// drain waits for the handlers, and at last ends their contexts.
func (w *workers) drain() error {
	done := make(chan struct{})
	go func() { // ends with the last handler
		w.wg.Wait()
		close(done)
	}()
	if within(done, w.Drain) {
		return nil
	}
	w.log.Info("the workers stop: the contexts of the running handlers end", "tasks", w.ids())
	w.drained(ErrDrained)
	// What returns in time may still have to write how it ended.
	if within(done, stuckAfter) {
		return nil
	}
	if w.finishing() && within(done, w.q.timeout) {
		return nil
	}
	ids := w.ids()
	w.log.Error("the workers have stopped, but handlers do not return: their tasks are left to their time-outs", "tasks", ids)
	w.tell(Event{Kind: EventStuck})
	return &StuckError{w.queue, ids}
}

func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// finishing reports whether handlers have returned whose tasks have not ended.
func (w *workers) finishing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.running {
		if a.returned.Load() {
			return true
		}
	}
	return false
}

// ids are the tasks that are worked on.
func (w *workers) ids() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.running {
		ids = append(ids, a.task.ID)
	}
	slices.Sort(ids)
	return ids
}
