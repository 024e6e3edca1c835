package sqlite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
)

var everyCut = flag.Bool("sqlite.powercuts", false,
	"cut the power after every step, with every policy, and let each fail, not only a few")

// drawings is how many policies there are that draw what is left.
const drawings = 5

// A fact is what a caller was told, and what must still be so after a power cut.
type fact struct {
	what  string
	from  int // the steps that there were when it was told
	until int // those when it may have changed; 0: it does not
	holds func(ctx context.Context, s *Store) error
}

// A history is what a process does with a store on a disk.
type history struct {
	*disk
	t     testing.TB
	store *Store
	facts []*fact
	ref   driver.Ref
	ticks int
}

func (h *history) told(what string, holds func(context.Context, *Store) error) *fact {
	f := &fact{what: what, from: h.now(), holds: holds}
	h.facts = append(h.facts, f)
	return f
}

// over is called before what changes a fact.
func (h *history) over(f *fact) { f.until = max(h.now(), 1) }

func (h *history) acquire() {
	view, err := h.store.Look(bg)
	h.ok(err)
	claim := claimOf(view, driver.Owner{PID: 1, Hostname: "before"})
	grant, err := h.store.Acquire(bg, claim)
	h.ok(err)
	term := grant.Term
	h.ref = claim.Ref
	h.ref.Term = term
	h.told(fmt.Sprintf("term %d is acquired", term), func(ctx context.Context, s *Store) error {
		terms, err := s.Terms(ctx, 1)
		if err == nil && (len(terms) == 0 || terms[0].Term < term) {
			err = fmt.Errorf("the newest terms are %v", terms)
		}
		return err
	})
	_, err = h.store.Heartbeat(bg, h.ref, driver.StateLeading)
	h.ok(err)
}

func (h *history) release() {
	deleted, err := h.store.Release(bg, h.ref, driver.EndReleased)
	h.ok(err)
	h.is(deleted)
	term := h.ref.Term
	h.told(fmt.Sprintf("term %d has ended", term), func(ctx context.Context, s *Store) error {
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
func (h *history) run() {
	from := firstTick.Add(time.Duration(h.ticks) * time.Minute)
	if h.ticks == 0 {
		from = time.Time{}
	}
	h.ticks++
	tick := firstTick.Add(time.Duration(h.ticks) * time.Minute)
	run, started, err := h.store.Decide(bg, h.ref, ledger.Decision{Job: "import", Spec: "@every 1m",
		From: from, To: tick, Start: tick})
	h.ok(err)
	h.is(started)
	h.told(fmt.Sprintf("run %d has started", h.ticks), func(ctx context.Context, s *Store) error {
		return hasRun(ctx, s, tick, ledger.InProgress, ledger.Done)
	})
	written, err := h.store.Finish(bg, run, ledger.End{Status: ledger.Done, Took: time.Second})
	h.ok(err)
	h.is(written)
	h.told(fmt.Sprintf("run %d is done", h.ticks), func(ctx context.Context, s *Store) error {
		return hasRun(ctx, s, tick, ledger.Done)
	})
}

func hasRun(ctx context.Context, s *Store, tick time.Time, in ...ledger.Status) error {
	run, found, err := s.Run(ctx, "import", tick)
	if err == nil && (!found || !slices.Contains(in, run.Status)) {
		err = fmt.Errorf("the run is %+v", run)
	}
	return err
}

// order pauses the job, lets it go on, and asks for a run of it.
func (h *history) order() {
	_, err := h.store.Pause(bg, ledger.Action{Job: "import", By: "ann"})
	h.ok(err)
	paused := h.told("the job is paused", func(ctx context.Context, s *Store) error {
		return isPaused(ctx, s, true)
	})
	h.over(paused)
	_, err = h.store.Resume(bg, "import", "ann")
	h.ok(err)
	resumed := h.told("the job is not paused", func(ctx context.Context, s *Store) error {
		return isPaused(ctx, s, false)
	})
	request, err := h.store.Trigger(bg, ledger.Action{Job: "import", By: "ann"})
	h.ok(err)
	asked := h.told("a run was asked for", func(ctx context.Context, s *Store) error {
		pending, err := s.Pending(ctx)
		if err == nil && len(pending.Requests) != 1 {
			err = fmt.Errorf("pending is %+v", pending)
		}
		return err
	})
	h.over(asked)
	_, started, err := h.store.Answer(bg, h.ref, request, "")
	h.ok(err)
	h.is(started)
	h.told("what was asked for has started", func(ctx context.Context, s *Store) error {
		return hasRun(ctx, s, request.At, ledger.InProgress)
	})
	h.over(resumed) // the next round pauses it again
}

func isPaused(ctx context.Context, s *Store, paused bool) error {
	pending, err := s.Pending(ctx)
	if err == nil && (pending.Paused("import") != nil) != paused {
		err = fmt.Errorf("pending is %+v", pending)
	}
	return err
}

// hold takes and releases a named lock.
func (h *history) hold(name string) {
	key := namedlock.Key{Kind: namedlock.KindLock, Name: name}
	claim := namedlock.Claim{Key: key, Owner: h.ref.Owner, Token: driver.NewToken(), TTL: time.Hour}
	term, _, err := h.store.Named().Take(bg, claim)
	h.ok(err)
	h.is(term != 0)
	held := h.told("a lock is held", func(ctx context.Context, s *Store) error {
		row, err := s.Named().Look(ctx, key)
		if err == nil && (row == nil || row.Term != term) {
			err = fmt.Errorf("the row is %+v", row)
		}
		return err
	})
	h.over(held)
	released, err := h.store.Named().Release(bg,
		namedlock.Ref{Key: key, Token: claim.Token, Term: term}, false)
	h.ok(err)
	h.is(released)
	// A release does not wait for the disk: after a cut the lock may be held for its TTL.
	h.told("a lock was held", func(ctx context.Context, s *Store) error {
		claim.Token = driver.NewToken()
		next, row, err := s.Named().Take(ctx, claim)
		if err == nil && next <= term && (row == nil || row.Term != term) {
			err = fmt.Errorf("term %d, after %d; the row is %+v", next, term, row)
		}
		return err
	})
}

// work adds a task, captures it and ends it.
func (h *history) work(id string) {
	q := h.store.Queue()
	_, err := q.Add(bg, "mail", 3, []string{id})
	h.ok(err)
	h.told("a task is added", func(ctx context.Context, s *Store) error {
		return hasTask(ctx, s, id, taskqueue.Pending, taskqueue.InProgress, taskqueue.Done)
	})
	token := driver.NewToken()
	_, err = q.Capture(bg, "mail", token, time.Hour, 1)
	h.ok(err)
	captured := h.told("a task is captured", func(ctx context.Context, s *Store) error {
		return hasTask(ctx, s, id, taskqueue.InProgress)
	})
	h.over(captured)
	done, err := q.Done(bg, "mail", token, []string{id})
	h.ok(err)
	h.is(len(done) == 1)
	h.told("a task is done", func(ctx context.Context, s *Store) error {
		return hasTask(ctx, s, id, taskqueue.Done)
	})
}

func hasTask(ctx context.Context, s *Store, id string, in ...taskqueue.State) error {
	info, found, err := s.Queue().Get(ctx, "mail", id)
	if err == nil && (!found || !slices.Contains(in, info.State)) {
		err = fmt.Errorf("the task is %+v", info)
	}
	return err
}

// stopped is what live ends with when something has failed.
type stopped struct{ error }

func (h *history) ok(err error) {
	if err != nil {
		panic(stopped{err})
	}
}

func (h *history) is(so bool) {
	if !so {
		panic(stopped{errors.New("it was answered: no")})
	}
}

// live does everything in each of three sessions: the last connection of one removes the
// -wal file, and the next one makes it anew. It ends with the first error.
func (h *history) live(file string) (err error) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case stopped:
			err = failed.error
		default:
			panic(failed)
		}
	}()
	for i := range 3 {
		var err error
		h.store, err = h.open(file)
		h.ok(err)
		h.ok(h.store.Migrate(bg))
		h.acquire()
		h.run()
		h.order()
		_, err = h.store.DB().Exec(`PRAGMA wal_checkpoint(RESTART)`)
		h.ok(err)
		h.hold(fmt.Sprint("lock ", i))
		h.run()
		h.work(fmt.Sprint("task ", i))
		h.release()
		h.ok(h.store.Close())
		h.store = nil
	}
	return nil
}

// survives opens what a cut has left, and returns what is not as it was told. Then another
// replica goes on with it.
func (h *history) survives(folder, file string, cut int) error {
	path := filepath.Join(folder, file)
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	told := false
	for _, f := range h.facts {
		told = told || f.from <= cut
	}
	if !told && !exists(path) {
		return nil // nobody was told that there is one
	}
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	var sound string
	if err := s.DB().QueryRowContext(ctx, `PRAGMA quick_check`).Scan(&sound); err != nil || sound != "ok" {
		return fmt.Errorf("the database is damaged: %s: %w", sound, err)
	}
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	var errs []error
	var newest int64
	for _, f := range h.facts {
		if f.from > cut || f.until != 0 && f.until <= cut {
			continue
		}
		if err := f.holds(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
		}
	}
	terms, err := s.Terms(ctx, 1)
	if err == nil && len(terms) > 0 {
		newest = terms[0].Term
	}
	return errors.Join(append(errs, err, goesOn(ctx, s, newest))...)
}

// goesOn lets another replica lead, and run what the one before has not started.
func goesOn(ctx context.Context, s *Store, newest int64) error {
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
	if granted.Term <= newest {
		return fmt.Errorf("term %d after %d", granted.Term, newest)
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

// cutAll cuts the power after each step that is chosen, and returns how often something was
// not as it was told, and the first of these.
func (h *history) cutAll(file string, change func(*replay), chosen func(n int, p policy) bool) (cuts,
	lost int, first error) {
	r := h.replay()
	change(r)
	for n := 0; ; n++ {
		for p := range firstDrawing + drawings {
			if !chosen(n, p) {
				continue
			}
			folder, err := os.MkdirTemp("", "schedlock")
			require.NoError(h.t, err)
			r.cut(h.t, p, n, folder)
			err = h.survives(folder, file, n)
			require.NoError(h.t, os.RemoveAll(folder))
			cuts++
			if err != nil {
				if lost++; first == nil {
					first = fmt.Errorf("cut after step %d of %d, which leaves %v: %w", n,
						len(h.steps), p, err)
				}
			}
		}
		if n == len(h.steps) {
			return cuts, lost, first
		}
		r.step(h.steps[n])
	}
}

// begins returns a history that has not begun, on a database that is there or on a new one.
func begins(t *testing.T, there bool) *history {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	if there {
		raw, err := template()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "app.db"), raw, 0o600))
	}
	return &history{disk: newDisk(t, folder), t: t}
}

// lived returns what has happened when nothing has failed.
func lived(t *testing.T, there bool) *history {
	t.Helper()
	h := begins(t, there)
	require.NoError(t, h.live("app.db"))
	return h
}

func TestNoPowerCutLosesWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("there %v", there), func(t *testing.T) {
			t.Parallel()
			h := lived(t, there)
			at := 0
			cuts, lost, first := h.cutAll("app.db", func(*replay) {}, func(int, policy) bool {
				at++
				return *everyCut || at%61 == 0
			})
			t.Logf("%d cuts after %d steps", cuts, len(h.steps))
			require.NoError(t, first, "%d of %d cuts", lost, cuts)
		})
	}
}

// What the test above could not see it would not tell.
func TestPowerCutsOnABadDiskAreNoticed(t *testing.T) {
	t.Parallel()
	h := lived(t, true)
	few := func(n int, p policy) bool { return n%29 == 0 && p < firstDrawing }
	for what, change := range map[string]func(*replay){
		"syncs of -wal files do nothing": func(r *replay) { r.lies = true },
		// This is what the driver does by itself, see syncNames.
		"syncs of the folder do nothing": func(r *replay) { r.forgets = true },
	} {
		cuts, lost, first := h.cutAll("app.db", change, few)
		t.Logf("%s: %d of %d cuts lose something, the first: %v", what, lost, cuts, first)
		require.Error(t, first, what)
	}
}

func TestNamesAreDurableBeforeAnythingIsCommitted(t *testing.T) {
	t.Parallel()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	synced := func(d *disk) bool {
		return slices.ContainsFunc(d.steps, func(s step) bool { return s.kind == syncNames })
	}
	above, within := newDisk(t, folder), newDisk(t, filepath.Join(folder, "new", "deep"))
	mustOpen(t, filepath.Join(folder, "new", "deep", "app.db"))
	require.True(t, synced(above), "a folder was made")
	require.True(t, synced(within), "files were made")

	raw, err := template()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "app.db"), raw, 0o600))
	pool, err := sqlite3driver.Open("file:" + filepath.Join(folder, "app.db") +
		"?_pragma=journal_mode(wal)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	above.steps = nil
	s, err := Use(pool)(bg)
	require.NoError(t, err)
	cleanUp(t, s.(*Store))
	require.True(t, synced(above), "a pool of the app's has made a -wal file")
}

// A disk that fails once, wherever that is, costs at most what was not acknowledged, and the
// same process goes on when it works again.
func TestNoErrorOfTheDiskLosesWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		steps := lived(t, there).tried
		failures := 0
		for n := 1; n <= steps; n++ {
			if !*everyCut && n%23 != 0 {
				continue
			}
			h := begins(t, there)
			h.failAt = n
			failed := h.live("app.db")
			require.GreaterOrEqual(t, h.tried, n)
			if h.store != nil {
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				eventually(t, fmt.Sprintf("the store goes on after failure %d: %v", n, failed), func() bool {
					return h.store.Migrate(ctx) == nil && goesOn(ctx, h.store, h.ref.Term) == nil
				})
				cancel()
			}
			err := h.survives(h.folder, "app.db", len(h.steps))
			require.NoError(t, err, "failure %d of %d: %v", n, steps, failed)
			if h.store != nil {
				_ = h.store.Close()
			}
			if failed != nil {
				failures++
			}
		}
		t.Logf("there %v: %d things can fail, %d failures were answered by an error", there, steps,
			failures)
		require.NotZero(t, failures)
	}
}
