// Package acknowledged lets a store do a little of everything, and knows at each moment what
// the caller was told. Tests that take something away from a store (power, a disk, connections)
// ask it afterwards what of that is lost.
package acknowledged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
)

// A fact is what a caller was told, and what must still be so afterwards.
type fact struct {
	what  string
	from  int // the steps that there were when it was told
	until int // those when it may have changed; 0: it does not
	holds func(ctx context.Context, s Store) error
}

// A Store is one of this module's.
type Store interface {
	driver.Store
	ledger.Store
	Named() namedlock.Store
	Queue() taskqueue.Store
	Migrate(ctx context.Context) error
	Close() error
}

// A History is what a process does with a store, and what it is told. It serves one
// goroutine.
type History struct {
	// Open opens the store, once in each session.
	Open func(ctx context.Context) (Store, error)
	// Steps counts what a fault can come after.
	Steps func() int
	// Sessions is how often the store is opened.
	Sessions int
	// Between is called in the middle of each session; nil: nothing is.
	Between func(s Store) error

	// Store is the one that was open when something failed; nil: none was.
	Store Store
	facts []*fact
	ref   driver.Ref
	ticks int
}

func (h *History) told(what string, holds func(context.Context, Store) error) *fact {
	f := &fact{what: what, from: h.Steps(), holds: holds}
	h.facts = append(h.facts, f)
	return f
}

// over is called before what changes a fact.
func (h *History) over(f *fact) { f.until = max(h.Steps(), 1) }

func (h *History) acquire(ctx context.Context) {
	view, err := h.Store.Look(ctx)
	h.ok(err)
	claim := claimOf(view, driver.Owner{PID: 1, Hostname: "before"})
	grant, err := h.Store.Acquire(ctx, claim)
	h.ok(err)
	term := grant.Term
	h.ref = claim.Ref
	h.ref.Term = term
	h.told(fmt.Sprintf("term %d is acquired", term), func(ctx context.Context, s Store) error {
		terms, err := s.Terms(ctx, 1)
		if err == nil && (len(terms) == 0 || terms[0].Term < term) {
			err = fmt.Errorf("the newest terms are %v", terms)
		}
		return err
	})
	_, err = h.Store.Heartbeat(ctx, h.ref, driver.StateLeading)
	h.ok(err)
}

func (h *History) release(ctx context.Context) {
	deleted, err := h.Store.Release(ctx, h.ref, driver.EndReleased)
	h.ok(err)
	h.is(deleted)
	term := h.ref.Term
	h.told(fmt.Sprintf("term %d has ended", term), func(ctx context.Context, s Store) error {
		terms, err := s.Terms(ctx, 100)
		i := slices.IndexFunc(terms, func(t driver.Term) bool { return t.Term == term })
		if err == nil && (i < 0 || terms[i].Open()) {
			err = fmt.Errorf("the terms are %v", terms)
		}
		return err
	})
}

var firstTick = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// run starts a tick and ends it.
func (h *History) run(ctx context.Context) {
	from := firstTick.Add(time.Duration(h.ticks) * time.Minute)
	if h.ticks == 0 {
		from = time.Time{}
	}
	h.ticks++
	tick := firstTick.Add(time.Duration(h.ticks) * time.Minute)
	run, started, err := h.Store.Decide(ctx, h.ref, ledger.Decision{Job: "import",
		Spec: "@every 1m", From: from, To: tick, Start: tick})
	h.ok(err)
	h.is(started)
	h.told(fmt.Sprintf("run %d has started", h.ticks), func(ctx context.Context, s Store) error {
		return hasRun(ctx, s, tick, ledger.InProgress, ledger.Done)
	})
	written, err := h.Store.Finish(ctx, run, ledger.End{Status: ledger.Done, Took: time.Second})
	h.ok(err)
	h.is(written)
	h.told(fmt.Sprintf("run %d is done", h.ticks), func(ctx context.Context, s Store) error {
		return hasRun(ctx, s, tick, ledger.Done)
	})
}

func hasRun(ctx context.Context, s Store, tick time.Time, in ...ledger.Status) error {
	run, found, err := s.Run(ctx, "import", tick)
	if err == nil && (!found || !slices.Contains(in, run.Status)) {
		err = fmt.Errorf("the run is %+v", run)
	}
	return err
}

// order pauses the job, lets it go on, and asks for a run of it.
func (h *History) order(ctx context.Context) {
	_, err := h.Store.Pause(ctx, ledger.Action{Job: "import", By: "ann"})
	h.ok(err)
	paused := h.told("the job is paused", func(ctx context.Context, s Store) error {
		return isPaused(ctx, s, true)
	})
	h.over(paused)
	_, err = h.Store.Resume(ctx, "import", "ann")
	h.ok(err)
	resumed := h.told("the job is not paused", func(ctx context.Context, s Store) error {
		return isPaused(ctx, s, false)
	})
	request, err := h.Store.Trigger(ctx, ledger.Action{Job: "import", By: "ann"})
	h.ok(err)
	asked := h.told("a run was asked for", func(ctx context.Context, s Store) error {
		pending, err := s.Pending(ctx)
		if err == nil && len(pending.Requests) != 1 {
			err = fmt.Errorf("pending is %+v", pending)
		}
		return err
	})
	h.over(asked)
	_, started, err := h.Store.Answer(ctx, h.ref, request, "")
	h.ok(err)
	h.is(started)
	h.told("what was asked for has started", func(ctx context.Context, s Store) error {
		return hasRun(ctx, s, request.At, ledger.InProgress)
	})
	h.over(resumed) // the next round pauses it again
}

func isPaused(ctx context.Context, s Store, paused bool) error {
	pending, err := s.Pending(ctx)
	if err == nil && (pending.Paused("import") != nil) != paused {
		err = fmt.Errorf("pending is %+v", pending)
	}
	return err
}

// hold takes and releases a named lock.
func (h *History) hold(ctx context.Context, name string) {
	key := namedlock.Key{Kind: namedlock.KindLock, Name: name}
	claim := namedlock.Claim{Key: key, Owner: h.ref.Owner, Token: driver.NewToken(), TTL: time.Hour}
	term, _, err := h.Store.Named().Take(ctx, claim)
	h.ok(err)
	h.is(term != 0)
	held := h.told("a lock is held", func(ctx context.Context, s Store) error {
		row, err := s.Named().Look(ctx, key)
		if err == nil && (row == nil || row.Term != term) {
			err = fmt.Errorf("the row is %+v", row)
		}
		return err
	})
	h.over(held)
	released, err := h.Store.Named().Release(ctx,
		namedlock.Ref{Key: key, Token: claim.Token, Term: term}, false)
	h.ok(err)
	h.is(released)
	// A release does not wait for the disk: after a cut the lock may be held for its TTL.
	h.told("a lock was held", func(ctx context.Context, s Store) error {
		claim.Token = driver.NewToken()
		next, row, err := s.Named().Take(ctx, claim)
		if err == nil && next <= term && (row == nil || row.Term != term) {
			err = fmt.Errorf("term %d, after %d; the row is %+v", next, term, row)
		}
		return err
	})
}

// work adds a task, captures it and ends it.
func (h *History) work(ctx context.Context, id string) {
	q := h.Store.Queue()
	_, err := q.Add(ctx, "mail", 3, []string{id})
	h.ok(err)
	h.told("a task is added", func(ctx context.Context, s Store) error {
		return hasTask(ctx, s, id, taskqueue.Pending, taskqueue.InProgress, taskqueue.Done)
	})
	token := driver.NewToken()
	_, err = q.Capture(ctx, "mail", token, time.Hour, 1)
	h.ok(err)
	captured := h.told("a task is captured", func(ctx context.Context, s Store) error {
		return hasTask(ctx, s, id, taskqueue.InProgress)
	})
	h.over(captured)
	done, err := q.Done(ctx, "mail", token, []string{id})
	h.ok(err)
	h.is(len(done) == 1)
	h.told("a task is done", func(ctx context.Context, s Store) error {
		return hasTask(ctx, s, id, taskqueue.Done)
	})
}

func hasTask(ctx context.Context, s Store, id string, in ...taskqueue.State) error {
	info, found, err := s.Queue().Get(ctx, "mail", id)
	if err == nil && (!found || !slices.Contains(in, info.State)) {
		err = fmt.Errorf("the task is %+v", info)
	}
	return err
}

// stopped is what live ends with when something has failed.
type stopped struct{ error }

func (h *History) ok(err error) {
	if err != nil {
		panic(stopped{err})
	}
}

func (h *History) is(so bool) {
	if !so {
		panic(stopped{errors.New("it was answered: no")})
	}
}

// Live does everything in each session, and ends with the first error.
func (h *History) Live(ctx context.Context) (err error) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case stopped:
			err = failed.error
		default:
			panic(failed)
		}
	}()
	for i := range h.Sessions {
		store, err := h.Open(ctx)
		h.ok(err)
		h.Store = store
		h.ok(store.Migrate(ctx))
		h.acquire(ctx)
		h.run(ctx)
		h.order(ctx)
		if h.Between != nil {
			h.ok(h.Between(store))
		}
		h.hold(ctx, fmt.Sprint("lock ", i))
		h.run(ctx)
		h.work(ctx, fmt.Sprint("task ", i))
		h.release(ctx)
		h.ok(store.Close())
		h.Store = nil
	}
	return nil
}

// Told reports whether anything was told up to a step.
func (h *History) Told(step int) bool {
	return slices.ContainsFunc(h.facts, func(f *fact) bool { return f.from <= step })
}

// Check returns what is not as it was told up to a step. Then another replica must be able to
// go on with what there is.
func (h *History) Check(ctx context.Context, s Store, step int) error {
	var errs []error
	for _, f := range h.facts {
		if f.from > step || f.until != 0 && f.until <= step {
			continue
		}
		if err := f.holds(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
		}
	}
	return errors.Join(append(errs, GoesOn(ctx, s))...)
}

// GoesOn lets another replica lead, with a higher term, and run what was not started before.
func GoesOn(ctx context.Context, s Store) error {
	terms, err := s.Terms(ctx, 1)
	if err != nil {
		return err
	}

	view, err := s.Look(ctx)
	if err != nil {
		return err
	}
	claim := claimOf(view, driver.Owner{PID: 2, Hostname: "after"})
	granted, err := s.Acquire(ctx, claim)
	if err != nil {
		return fmt.Errorf("nobody can lead: %w", err)
	}
	claim.Term = granted.Term
	defer func() { _, _ = s.Release(ctx, claim.Ref, driver.EndReleased) }()
	if len(terms) > 0 && granted.Term <= terms[0].Term {
		return fmt.Errorf("term %d after %d", granted.Term, terms[0].Term)
	}
	jobs, err := s.Jobs(ctx)
	if err != nil || len(jobs) == 0 {
		return err
	}
	runs, err := s.Runs(ctx, "import", 1000)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if run.ScheduledAt.After(jobs[0].Cursor) && run.RequestedBy == "" {
			return fmt.Errorf("run %+v would start again: the cursor is %v", run, jobs[0].Cursor)
		}
	}
	tick := jobs[0].Cursor.Add(time.Minute)
	_, started, err := s.Decide(ctx, claim.Ref, ledger.Decision{Job: "import", Spec: "@every 1m",
		From: jobs[0].Cursor, To: tick, Start: tick})
	if errors.Is(err, ledger.ErrPaused) {
		return nil
	}
	if err == nil && !started {
		err = errors.New("the next run does not start")
	}
	return err
}

var timing = driver.Timing{TTL: time.Hour, RenewDeadline: 45 * time.Minute,
	HeartbeatInterval: time.Minute}

// claimOf asks for the lock as if the holder had been watched for its TTL.
func claimOf(view driver.Snapshot, owner driver.Owner) driver.Claim {
	return driver.Claim{Ref: driver.Ref{Owner: owner, Token: driver.NewToken()}, Timing: timing,
		Expected: view, Reason: driver.EndExpired, Watched: true}
}
