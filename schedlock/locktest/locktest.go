package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A Database is a new, empty database that has its tables. Every rule gets one
// of its own.
type Database struct {
	// Open returns another handle on the database, as another replica would
	// open it. It closes the handle with t.Cleanup.
	Open func(t testing.TB) driver.Store

	// Edit does by hand what an operator might do in a shell. Each call is
	// committed when it returns.
	Edit func(t testing.TB, e Edit)

	// Backup keeps what is in the database now; restore puts that back.
	Backup func(t testing.TB) (restore func())

	// Begin begins a transaction of a caller, of a kind that Fence takes.
	Begin func(t testing.TB) Tx

	// Fill, if it is not nil, writes many rows at once, which rules about
	// bounds otherwise write by as many calls of the store. It takes only
	// time off them.
	Fill func(t testing.TB, f Fill)

	// HeartbeatsPassFence tells that a heartbeat does not wait for a fenced
	// transaction. Without it, it must succeed once that has ended.
	HeartbeatsPassFence bool

	// Without lists what the store under test does not have. A rule that
	// needs something else that is missing fails: nothing is left out in
	// silence.
	Without []Feature
}

// A Feature is what some rules need besides Open.
type Feature string

// The features.
const (
	Edits   Feature = "edits"   // Database.Edit
	Backups Feature = "backups" // Database.Backup
	Fences  Feature = "fences"  // the store has fences, and Database.Begin
	Hints   Feature = "hints"   // the store has hints, and they come
	Ledger  Feature = "ledger"  // the store is a ledger.Store

	Revocations Feature = "revocations" // the store revokes
)

// An Edit changes the lock row, a cursor, or the row of a replica, where a field is
// not zero, and nothing else.
type Edit struct {
	Token string // any text
	Term  int64
	Beat  int64
	State driver.State

	DeleteRow  bool // delete the lock row; no other table is touched
	EmptyTerms bool // delete the history of terms; comes with DeleteRow

	// CursorOf names a job whose cursor_at is set to CursorAt, a whole second,
	// as the database's own functions write it; or to what is no time, if that
	// is zero. It comes alone.
	CursorOf string
	CursorAt time.Time

	// Silent is the instance of a replica that has told nothing for so much longer. It
	// comes alone. The others may be silent for longer, too.
	Silent string
	For    time.Duration
}

// A Fill is rows of one of three kinds.
type Fill struct {
	Terms int // terms 1, 2, … that have ended; there were none before

	// Requests of RequestsOf, a job that is known and has none: nobody has
	// answered them, and each has a time of its own in the past.
	Requests   int
	RequestsOf string

	Orders int // in the audit, about every job, in the past
}

// A Tx is a caller's transaction.
type Tx struct {
	Tx               any // what Fence gets
	Commit, Rollback func() error
}

// Run tests each of [Rules] in a subtest of its own. fresh makes a new
// database for each.
func Run(t *testing.T, fresh func(t testing.TB) Database) {
	runAll(t, "rule", cases(), func(t testing.TB, r Rule) *env {
		return prepare(t, r, fresh(t), usualPatience)
	})
}

// usualPatience is how long what must come soon may take.
const usualPatience = 10 * time.Second

// base is what all environments have. t need not be a *testing.T.
func base(t testing.TB, patience time.Duration) env {
	ctx, cancel := context.WithTimeout(context.Background(), 12*patience)
	t.Cleanup(cancel)
	return env{TB: t, ctx: ctx, patience: patience}
}

// prepare makes the environment for a rule to be tested on db.
func prepare(t testing.TB, r Rule, db Database, patience time.Duration) *env {
	e := base(t, patience)
	e.db, e.s = db, db.Open(t)
	r.provide(t, "Database", db.Without, e.lacks)
	return &e
}

// env is what a case works with.
type env struct {
	testing.TB
	ctx      context.Context
	db       Database
	s        driver.Store // the first handle
	patience time.Duration
}

func (e *env) lacks(f Feature) string {
	switch f {
	case Edits:
		if e.db.Edit == nil {
			return "Database.Edit is nil"
		}
	case Backups:
		if e.db.Backup == nil {
			return "Database.Backup is nil"
		}
	case Fences:
		if e.db.Begin == nil {
			return "Database.Begin is nil"
		}
	case Hints:
		if slices.Contains(e.db.Without, Hints) {
			return "they may never come"
		}
	case Revocations:
		if _, err := e.s.Revoke(e.ctx, -1, "locktest", ""); errors.Is(err, driver.ErrNotRevocable) {
			return err.Error()
		}
	case Ledger:
		if _, ok := e.s.(ledger.Store); !ok {
			return fmt.Sprintf("%T is no ledger.Store", e.s)
		}
	}
	return ""
}

// handles are n handles on the database.
func (e *env) handles(n int) []driver.Store {
	stores := []driver.Store{e.s}
	for len(stores) < n {
		stores = append(stores, e.db.Open(e))
	}
	return stores
}

func (e *env) edit(edit Edit) { e.db.Edit(e, edit) }

var (
	timing = driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
		HeartbeatInterval: 10 * time.Second}
	alice = driver.Owner{PID: 1, Hostname: "alice"}
	bob   = driver.Owner{PID: 2, Hostname: "bob"}
)

func (e *env) look() driver.Snapshot {
	e.Helper()
	v, err := e.s.Look(e.ctx)
	require.NoError(e, err, "Look")
	return v
}

// row is the lock row, which must be there.
func (e *env) row() driver.Row {
	e.Helper()
	v := e.look()
	require.NotNil(e, v.Row, "there is no lock row")
	return *v.Row
}

func (e *env) terms(limit int) []driver.Term {
	e.Helper()
	terms, err := e.s.Terms(e.ctx, limit)
	require.NoError(e, err, "Terms")
	return terms
}

// claim is of a replica that watched what it judged for the whole TTL.
func claim(judged driver.Snapshot, owner driver.Owner) driver.Claim {
	return driver.Claim{
		Ref:      driver.Ref{Owner: owner, Token: driver.NewToken()},
		Timing:   timing,
		Expected: judged,
		Reason:   driver.EndExpired,
		Watched:  true,
	}
}

// acquire makes a claim that must succeed at once.
func (e *env) acquire(c driver.Claim) driver.Ref {
	e.Helper()
	grant, err := e.s.Acquire(e.ctx, c)
	require.NoError(e, err, "Acquire, with what was judged unchanged")
	c.Term = grant.Term
	return c.Ref
}

// win acquires whatever is there.
func (e *env) win(owner driver.Owner) driver.Ref {
	e.Helper()
	return e.acquire(claim(e.look(), owner))
}

// beat sends a heartbeat that must succeed.
func (e *env) beat(ref driver.Ref, state driver.State) driver.Renewal {
	e.Helper()
	beat, err := e.s.Heartbeat(e.ctx, ref, state)
	require.NoError(e, err, "Heartbeat")
	return beat
}

// release releases a lease whose row must be there.
func (e *env) release(ref driver.Ref) {
	e.Helper()
	deleted, err := e.s.Release(e.ctx, ref, driver.EndReleased)
	require.NoError(e, err, "Release")
	require.True(e, deleted, "Release: deleted")
}

// together calls f for each store at the same moment, and waits for all.
func together[S any](stores []S, f func(S)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, s := range stores {
		wg.Go(func() {
			<-start
			f(s)
		})
	}
	close(start)
	wg.Wait()
}

// insist claims with s until it has what it judged, or that is gone: after an
// error other than ErrConflict it looks up how the claim ended. It may be called
// from any goroutine.
func (e *env) insist(s driver.Store, c driver.Claim) (won bool, err error) {
	for unknown := false; ; unknown = true {
		_, err := s.Acquire(e.ctx, c)
		if err == nil {
			return true, nil
		}
		if unknown || !errors.Is(err, driver.ErrConflict) {
			if v, lookErr := s.Look(e.ctx); lookErr == nil && v.Row != nil &&
				v.Row.Token == c.Token {
				return true, nil
			}
		}
		if errors.Is(err, driver.ErrConflict) {
			return false, nil
		}
		if e.ctx.Err() != nil {
			return false, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// await calls f until it is nil.
func (e *env) await(what string, f func() error) {
	e.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < e.patience; time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	e.Fatalf("%s: after %v still: %v", what, e.patience, err)
}

// soon runs f in a goroutine and fails unless it returns soon.
func (e *env) soon(what string, f func()) {
	e.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(e.patience):
		e.Fatalf("%s did not return within %v", what, e.patience)
	}
}

// ended is a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// err1 is the error of a call with one other result, and err2 that of one with two.
func err1[A any](_ A, err error) error         { return err }
func err2[A, B any](_ A, _ B, err error) error { return err }

// A snapshot is all that the store tells about its tables.
type snapshot struct {
	Row     *driver.Row
	Newest  *driver.Term
	Terms   []driver.Term
	Jobs    []ledger.Job
	Runs    []ledger.Run
	Owed    []ledger.Run
	Pending ledger.Pending
	Audit   []ledger.AuditEntry

	Attempts map[int64][]ledger.Attempt // of the runs that are owed another
}

func (e *env) snapshot() (s snapshot) {
	e.Helper()
	v := e.look()
	s = snapshot{Row: v.Row, Newest: v.Newest, Terms: e.terms(100)}
	if l, ok := e.s.(ledger.Store); ok {
		var err error
		s.Jobs, err = l.Jobs(e.ctx)
		require.NoError(e, err, "Jobs")
		sortJobs(s.Jobs)
		s.Runs, err = l.Runs(e.ctx, "", 100)
		require.NoError(e, err, "Runs")
		s.Owed, err = l.Retries(e.ctx)
		require.NoError(e, err, "Retries")
		s.Pending, err = l.Pending(e.ctx)
		require.NoError(e, err, "Pending")
		sortPauses(s.Pending.Pauses)
		s.Audit, err = l.Audit(e.ctx, "", 100)
		require.NoError(e, err, "Audit")
		s.Attempts = map[int64][]ledger.Attempt{}
		for _, r := range s.Owed {
			s.Attempts[r.ID], err = l.Attempts(e.ctx, r.ID)
			require.NoError(e, err, "Attempts")
		}
	}
	return s
}

// unchanged fails if f writes anything.
func (e *env) unchanged(f func(), what string, args ...any) {
	e.Helper()
	before := e.snapshot()
	f()
	require.Equal(e, before, e.snapshot(), "%s: something was written", fmt.Sprintf(what, args...))
}

// heeded fails unless each call, whose context has ended, returns an error, soon,
// and none writes anything.
func (e *env) heeded(calls map[string]func() error) {
	e.Helper()
	e.unchanged(func() {
		for name, call := range calls {
			var err error
			e.soon(name, func() { err = call() })
			require.Error(e, err, "%s with an ended context", name)
			require.NotErrorIs(e, err, driver.ErrLost, name)
		}
	}, "a call with an ended context")
}

// onlyHolder fails unless each call returns ErrLost, does not say that it did something, and
// writes nothing, for any ref that does not hold the lock, which ref does. It releases that.
func (e *env) onlyHolder(old, ref driver.Ref, calls map[string]func(driver.Ref) (bool, error)) {
	e.Helper()
	otherToken, otherTerm := ref, ref
	otherToken.Token = driver.NewToken()
	otherTerm.Term++
	for _, stranger := range []struct {
		why string
		ref driver.Ref
	}{{"the lease before", old}, {"another token", otherToken}, {"another term", otherTerm},
		{"no row", ref}} {
		if stranger.ref == ref {
			e.release(ref)
		}
		e.unchanged(func() {
			for name, call := range calls {
				did, err := call(stranger.ref)
				require.ErrorIs(e, err, driver.ErrLost, "%s, %s", name, stranger.why)
				require.False(e, did, "%s, %s", name, stranger.why)
			}
		}, "%s", stranger.why)
	}
}

// moved makes a claim that must fail.
func (e *env) moved(c driver.Claim, why string) {
	e.Helper()
	_, err := e.s.Acquire(e.ctx, c)
	require.ErrorIs(e, err, driver.ErrConflict, "Acquire, though %s", why)
}
