package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/schedlock/internal/bounded"
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
// Else it returns nil. So it returns at most Drain + one time-out + 18 s
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
	w.events.Missed = func(n int) { w.call(Event{Kind: EventMissed, Queue: queue, Missed: n}) }
	w.base, w.drained = context.WithCancelCause(context.WithoutCancel(ctx))
	defer w.drained(nil)
	w.capture(ctx)
	err = w.drain()
	w.events.Wait(observeLimit)
	bounded.FlushLog(w.log, observeLimit)
	return err
}

// workers are one call of Work.
type workers struct {
	WorkOptions
	q       *Queues
	queue   string
	handle  Handler
	log     *slog.Logger
	events  bounded.Queue
	base    context.Context // of the handlers; it ends with the drain
	drained context.CancelCauseFunc
	free    chan struct{} // has an element for each worker that is busy
	wg      sync.WaitGroup

	mu       sync.Mutex
	running  map[*attempt]struct{}
	failures int // in a row
}

func (w *workers) tell(e Event) {
	if w.OnEvent == nil {
		return
	}
	e.Queue = w.queue
	w.events.Do(func() { w.call(e) })
}

// call calls OnEvent, whose panic ends nothing.
func (w *workers) call(e Event) {
	defer func() {
		if panicked := recover(); panicked != nil {
			w.log.Error("OnEvent has panicked", "event", string(e.Kind), "task", e.Task.ID,
				"panic", panicked)
		}
	}()
	w.OnEvent(e)
}

// capture hands tasks to free workers until ctx ends.
func (w *workers) capture(ctx context.Context) {
	var empty, broken int // in a row
	for {
		n := w.takeFree(ctx)
		if w.pauseAfterFailures(ctx); ctx.Err() != nil {
			return
		}
		// If the capture were cut off, nobody would work on what it has taken.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		tasks, err := w.q.Capture(bounded, w.queue, n)
		if ctx.Err() != nil { // asked once: each task is given back, or begun
			if err := w.q.Release(bounded, tasks...); err != nil {
				w.log.Warn("tasks that were captured during the stop cannot be released: they are left to "+
					"their time-outs", "err", err)
			}
			cancel()
			return
		}
		cancel()
		for range n - len(tasks) {
			<-w.free
		}
		for _, task := range tasks {
			w.start(task)
		}
		wait := time.Duration(0)
		switch {
		case len(tasks) == n:
			empty = 0
		case err == nil || errors.Is(err, ErrNone):
			if len(tasks) > 0 {
				empty = 0
			}
			wait = doubled(min(minPause, w.MaxPause), empty, w.MaxPause)
			empty++
		default:
			if broken++; broken == 1 {
				w.log.Warn("no task can be captured: it is tried again", "err", err)
			}
			w.tell(Event{Kind: EventStoreErr, Err: err})
			wait = doubled(minPause, broken, maxFailPause)
		}
		if (err == nil || errors.Is(err, ErrNone)) && broken > 0 {
			broken = 0
			w.log.Info("tasks can be captured again")
		}
		pause(ctx, wait)
	}
}

// pauseAfterFailures is the longer, the more attempts in a row have failed.
func (w *workers) pauseAfterFailures(ctx context.Context) {
	w.mu.Lock()
	failures := w.failures
	w.mu.Unlock()
	if failures > 0 {
		pause(ctx, doubled(minPause, failures-1, maxFailPause))
	}
}

// takeFree waits for a free worker or the end of ctx, and takes all workers that are free.
func (w *workers) takeFree(ctx context.Context) (n int) {
	select {
	case <-ctx.Done():
		return 0
	case w.free <- struct{}{}:
	}
	for n = 1; ; n++ {
		select {
		case w.free <- struct{}{}:
		default:
			return n
		}
	}
}

// pause is for half of d to all of it, so that replicas do not ask at the same time.
func pause(ctx context.Context, d time.Duration) {
	if d > 0 {
		bounded.Sleep(ctx, d/2+rand.N(d/2+1))
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

// drain waits for the handlers, and at last ends their contexts.
func (w *workers) drain() error {
	done := make(chan struct{})
	go func() { // ends with the last handler
		w.wg.Wait()
		close(done)
	}()
	if bounded.Wait(done, w.Drain) {
		return nil
	}
	w.log.Info("the workers stop: the contexts of the running handlers end", "tasks", w.ids())
	w.drained(ErrDrained)
	// What returns in time may still have to write how it ended.
	if bounded.Wait(done, stuckAfter) {
		return nil
	}
	if w.finishing() && bounded.Wait(done, w.q.timeout) {
		return nil
	}
	ids := w.ids()
	w.log.Error("the workers have stopped, but handlers do not return: their tasks are left to "+
		"their time-outs", "tasks", ids)
	w.tell(Event{Kind: EventStuck})
	return &StuckError{w.queue, ids}
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
