// Package acknowledged lets a store do a little of everything, and knows at each moment what
// the caller was told. Tests that take something away from a store (power, a disk, connections)
// ask it afterwards what of that is lost.
package acknowledged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
)

// A fact is what a caller was told, and what must still be so afterwards.
type fact struct {
	What string
	Term int64     // of the lock, or of a named lock
	Tick time.Time // of a run
	Name string    // of a named lock, or of a task

	from  int // the steps that there were when it was told
	until int // those when it may have changed; 0: it does not
}

func (f *fact) String() string {
	text := f.What
	if f.Name != "" {
		text += " " + strconv.Quote(f.Name)
	}
	if f.Term != 0 {
		text += fmt.Sprint(", term ", f.Term)
	}
	if !f.Tick.IsZero() {
		text += fmt.Sprint(", tick ", f.Tick.Format(time.RFC3339Nano))
	}
	return text
}

// What the facts are about.
const (
	acquired = "the lock is acquired"
	ended    = "the lock is released"
	runBegan = "a run has started"
	runDone  = "a run is done"
	paused   = "the job is paused"
	resumed  = "the job is not paused"
	asked    = "a run was asked for"
	answered = "what was asked for has started"
	held     = "a lock is held"
	wasHeld  = "a lock was held"
	added    = "a task is added"
	captured = "a task is captured"
	taskDone = "a task is done"
)

// holds asks whether it is still so.
func (f *fact) holds(ctx context.Context, s Store) error {
	switch f.What {
	case acquired:
		terms, err := s.Terms(ctx, 1)
		if err == nil && (len(terms) == 0 || terms[0].Term < f.Term) {
			err = fmt.Errorf("the newest terms are %v", terms)
		}
		return err
	case ended: // or the row is back: a release does not wait for the disk
		terms, err := s.Terms(ctx, 100)
		if err != nil {
			return err
		}
		view, err := s.Look(ctx)
		i := slices.IndexFunc(terms, func(t driver.Term) bool { return t.Term == f.Term })
		back := view.Row != nil && view.Row.Term == f.Term
		if err == nil && (i < 0 || terms[i].Open() != back) {
			err = fmt.Errorf("the row is %+v, the terms are %v", view.Row, terms)
		}
		return err
	case runBegan:
		return hasRun(ctx, s, f.Tick, ledger.InProgress, ledger.Done)
	case runDone:
		return hasRun(ctx, s, f.Tick, ledger.Done)
	case paused, resumed:
		return isPaused(ctx, s, f.What == paused)
	case asked:
		pending, err := s.Pending(ctx)
		if err == nil && len(pending.Requests) != 1 {
			err = fmt.Errorf("pending is %+v", pending)
		}
		return err
	case answered:
		return hasRun(ctx, s, f.Tick, ledger.InProgress)
	case held:
		row, err := s.Named().Look(ctx, lockKey(f.Name))
		if err == nil && (row == nil || row.Term != f.Term) {
			err = fmt.Errorf("the row is %+v", row)
		}
		return err
	case wasHeld:
		next, row, err := s.Named().Take(ctx, take(f.Name, driver.Owner{PID: 2, Hostname: "after"}))
		if err == nil && next <= f.Term && (row == nil || row.Term != f.Term) {
			err = fmt.Errorf("term %d, after %d; the row is %+v", next, f.Term, row)
		}
		return err
	case added:
		return hasTask(ctx, s, f.Name, taskqueue.Pending, taskqueue.InProgress, taskqueue.Done)
	case captured:
		return hasTask(ctx, s, f.Name, taskqueue.InProgress)
	case taskDone:
		return hasTask(ctx, s, f.Name, taskqueue.Done)
	}
	return fmt.Errorf("no fact: %q", f.What)
}

func lockKey(name string) namedlock.Key {
	return namedlock.Key{Kind: namedlock.KindLock, Name: name}
}

func take(name string, owner driver.Owner) namedlock.Claim {
	return namedlock.Claim{Key: lockKey(name), Owner: owner, Token: driver.NewToken(),
		TTL: time.Hour}
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

	// Tell is called with each line of the history, which Hear understands; nil: nothing is.
	Tell func(line string)

	// Store is the one that was open when something failed; nil: none was.
	Store Store
	facts []*fact
	ref   driver.Ref
	ticks int
}

func (h *History) told(f fact) *fact {
	f.from = h.Steps()
	h.facts = append(h.facts, &f)
	if h.Tell != nil {
		text, err := json.Marshal(f)
		h.ok(err)
		h.Tell(string(text))
	}
	return &f
}

// over is called before what changes a fact.
func (h *History) over(f *fact) {
	f.until = max(h.Steps(), 1)
	if h.Tell != nil {
		h.Tell(strconv.Itoa(slices.Index(h.facts, f)))
	}
}

// Hear takes over a line of the history of another process.
func (h *History) Hear(line string) error {
	if n, err := strconv.Atoi(line); err == nil {
		h.facts[n].until = 1
		return nil
	}
	var f fact
	h.facts = append(h.facts, &f)
	return json.Unmarshal([]byte(line), &f)
}

func (h *History) acquire(ctx context.Context) {
	view, err := h.Store.Look(ctx)
	h.ok(err)
	claim := claimOf(view, driver.Owner{PID: 1, Hostname: "before"})
	grant, err := h.Store.Acquire(ctx, claim)
	h.ok(err)
	h.ref = claim.Ref
	h.ref.Term = grant.Term
	h.told(fact{What: acquired, Term: grant.Term})
	_, err = h.Store.Heartbeat(ctx, h.ref, driver.StateLeading)
	h.ok(err)
}

func (h *History) release(ctx context.Context) {
	deleted, err := h.Store.Release(ctx, h.ref, driver.EndReleased)
	h.ok(err)
	h.is(deleted)
	h.told(fact{What: ended, Term: h.ref.Term})
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
	h.told(fact{What: runBegan, Tick: tick})
	written, err := h.Store.Finish(ctx, run, ledger.End{Status: ledger.Done, Took: time.Second})
	h.ok(err)
	h.is(written)
	h.told(fact{What: runDone, Tick: tick})
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
	h.over(h.told(fact{What: paused}))
	_, err = h.Store.Resume(ctx, "import", "ann")
	h.ok(err)
	unpaused := h.told(fact{What: resumed})
	request, err := h.Store.Trigger(ctx, ledger.Action{Job: "import", By: "ann"})
	h.ok(err)
	h.over(h.told(fact{What: asked}))
	_, started, err := h.Store.Answer(ctx, h.ref, request, "")
	h.ok(err)
	h.is(started)
	h.told(fact{What: answered, Tick: request.At})
	h.over(unpaused) // the next round pauses it again
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
	claim := take(name, h.ref.Owner)
	term, _, err := h.Store.Named().Take(ctx, claim)
	h.ok(err)
	h.is(term != 0)
	h.over(h.told(fact{What: held, Name: name, Term: term}))
	released, err := h.Store.Named().Release(ctx,
		namedlock.Ref{Key: claim.Key, Token: claim.Token, Term: term}, false)
	h.ok(err)
	h.is(released)
	// A release does not wait for the disk: after a cut the lock may be held for its TTL.
	h.told(fact{What: wasHeld, Name: name, Term: term})
}

// work adds a task, captures it and ends it.
func (h *History) work(ctx context.Context, id string) {
	q := h.Store.Queue()
	_, err := q.Add(ctx, "mail", 3, []string{id})
	h.ok(err)
	h.told(fact{What: added, Name: id})
	token := driver.NewToken()
	_, err = q.Capture(ctx, "mail", token, time.Hour, 1)
	h.ok(err)
	h.over(h.told(fact{What: captured, Name: id}))
	done, err := q.Done(ctx, "mail", token, []string{id})
	h.ok(err)
	h.is(len(done) == 1)
	h.told(fact{What: taskDone, Name: id})
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
			errs = append(errs, fmt.Errorf("%v: %w", f, err))
		}
	}
	return errors.Join(append(errs, GoesOn(ctx, s))...)
}

// GoesOn lets another replica lead, with a higher term, and run what was not started before. Each
// tick that was decided must have a run.
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
	if _, found, err := s.Run(ctx, "import", jobs[0].Cursor); err != nil || !found {
		return fmt.Errorf("the tick %v is lost: no run has it, and the cursor is there: %w",
			jobs[0].Cursor, err)
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
