package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// A NamedDatabase is a new, empty database that has its tables. Every rule gets
// one of its own.
type NamedDatabase struct {
	// Open returns another handle on the database, as another replica would
	// open it. It closes the handle with t.Cleanup.
	Open func(t testing.TB) namedlock.Store

	// Age makes all rows older, as if d had passed since they were written;
	// below 0, as if the clock that judges had been set back by that. What is
	// known of a fail-over gets older with them.
	Age func(t testing.TB, d time.Duration)

	// Edit does by hand what an operator might do in a shell: it sets the term
	// of a row, or deletes the row if term is 0.
	Edit func(t testing.TB, key namedlock.Key, term int64)

	// Begin begins a transaction of a caller, of a kind that Fence takes.
	Begin func(t testing.TB) Tx

	// ExtendPassesFence tells that Extend and Release do not wait for a fenced
	// transaction. Without it, they must succeed once that has ended.
	ExtendPassesFence bool

	// FailOver makes the database that of a server which was promoted, and may
	// have lost acquisitions.
	FailOver func(t testing.TB)

	// Without lists what the store under test does not have: Edits, Fences or
	// FailOvers.
	Without []Feature
}

// FailOvers are something that a database of named locks may have, or not.
const FailOvers Feature = "fail-overs" // NamedDatabase.FailOver

// RunNamed tests the contract of a namedlock.Store, each of [NamedRules] in a subtest
// of its own. fresh makes a new database for each.
func RunNamed(t *testing.T, fresh func(t testing.TB) NamedDatabase) {
	runAll(t, "rule of named locks", namedCases(), func(t testing.TB, r Rule) *namedEnv {
		return prepareNamed(t, r, fresh(t), usualPatience)
	})
}

func prepareNamed(t testing.TB, r Rule, db NamedDatabase, patience time.Duration) *namedEnv {
	r.provide(t, "NamedDatabase", db.Without, func(f Feature) string {
		switch {
		case f == Edits && db.Edit == nil:
			return "NamedDatabase.Edit is nil"
		case f == Fences && db.Begin == nil:
			return "NamedDatabase.Begin is nil"
		case f == FailOvers && db.FailOver == nil:
			return "NamedDatabase.FailOver is nil"
		}
		return ""
	})
	return &namedEnv{env: base(t, patience), db: db, s: db.Open(t)}
}

// namedEnv is what a case works with.
type namedEnv struct {
	env
	db NamedDatabase
	s  namedlock.Store // the first handle
}

// aLock and the TTL that the cases use: nothing expires by itself.
var aLock = lockKey("a")

func lockKey(name string) namedlock.Key {
	return namedlock.Key{Kind: namedlock.KindLock, Name: name}
}

const namedTTL = time.Minute

func claimOf(key namedlock.Key, owner driver.Owner) namedlock.Claim {
	return namedlock.Claim{Key: key, Owner: owner, Token: driver.NewToken(), TTL: namedTTL}
}

// restingClaim is of a lock that rests.
func restingClaim(hold time.Duration) namedlock.Claim {
	c := claimOf(namedlock.Key{Kind: namedlock.KindTask, Name: "t"}, alice)
	c.Hold = hold
	return c
}

// take takes a key that must be free.
func (e *namedEnv) take(c namedlock.Claim) namedlock.Ref {
	e.Helper()
	term, holder, err := e.s.Take(e.ctx, c)
	require.NoError(e, err, "Take")
	require.NotZero(e, term, "Take of a free key: no term, but %v", holder)
	return namedlock.Ref{Key: c.Key, Token: c.Token, Term: term}
}

func (e *namedEnv) lock(key namedlock.Key) namedlock.Ref {
	e.Helper()
	return e.take(claimOf(key, alice))
}

// row is the row of a key, nil if it is free.
func (e *namedEnv) row(key namedlock.Key) *namedlock.Row {
	e.Helper()
	row, err := e.s.Look(e.ctx, key)
	require.NoError(e, err, "Look")
	return row
}

// still fails unless the row of ref is there as it was taken.
func (e *namedEnv) still(ref namedlock.Ref, why string) {
	e.Helper()
	row := e.row(ref.Key)
	require.NotNil(e, row, "%s: the row is free", why)
	require.Equal(e, ref, namedlock.Ref{Key: row.Key, Token: row.Token, Term: row.Term}, why)
}

func (e *namedEnv) extend(ref namedlock.Ref, want bool, why string) {
	e.Helper()
	ours, err := e.s.Extend(e.ctx, ref, namedTTL)
	require.NoError(e, err, "Extend")
	require.Equal(e, want, ours, "Extend, %s", why)
}

func (e *namedEnv) release(ref namedlock.Ref, keepHold, want bool, why string) {
	e.Helper()
	ours, err := e.s.Release(e.ctx, ref, keepHold)
	require.NoError(e, err, "Release")
	require.Equal(e, want, ours, "Release, %s", why)
}

// others are refs that look like ref and are not.
func others(ref namedlock.Ref) map[string]namedlock.Ref {
	otherToken, otherTerm, otherName, otherKind := ref, ref, ref, ref
	otherToken.Token = driver.NewToken()
	otherTerm.Term++
	otherName.Name += "a"
	otherKind.Kind = namedlock.KindTask
	return map[string]namedlock.Ref{"another token": otherToken, "another term": otherTerm,
		"another name": otherName, "another kind": otherKind}
}

func (e *namedEnv) clean(limit int) int64 {
	e.Helper()
	n, err := e.s.Clean(e.ctx, limit)
	require.NoError(e, err, "Clean")
	return n
}

// near fails unless d is what is left of want: little time has passed.
func (e *namedEnv) near(want, d time.Duration, what string) {
	e.Helper()
	require.LessOrEqual(e, d, want, what)
	require.Greater(e, d, want-e.patience, what)
}

// errStill is what is waited to be over.
var errStill = errors.New("it is still as it was")
