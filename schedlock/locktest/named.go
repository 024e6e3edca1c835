package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// RunNamed runs the suite for stores of named locks. Every subtest is named
// after its rule:
//
//  1. Look returns nil, without an error, for a key that was never taken.
//  2. Take of a free key grants a term, and Look then returns the row: key,
//     token, owner, term, the time in UTC, and what is left of its TTL.
//  3. Take of a key that is held returns no term, and the holder's row;
//     nothing is written.
//  4. Of many that take a key at the same time exactly one gets it, also if it
//     was held before and has expired.
//  5. Names of up to 200 bytes are kept as they are: letter case, blanks,
//     quotes and any letters tell them apart, and so does the kind.
//  6. A row whose TTL has passed is free: Look returns nil, and Take grants it.
//  7. The terms of a key grow over release and expiry, by one at least, also
//     if they are above the database's clock in Unix ms; they are never below.
//  8. The terms of a key grow after its row was cleaned up, also if they were
//     above the clock.
//  9. The terms of a key grow after its row was deleted by hand, if the clock
//     has gone on.
//  10. Extend lets the row last a TTL from then, and touches nothing else.
//  11. Extend returns false, and changes nothing, for another token, another
//     term, another key, without a row, and after a release.
//  12. Extend of a row that has expired returns false and does not revive it,
//     though nobody has taken it.
//  13. Release frees the row: Look returns nil, and Take grants it at once.
//  14. Release returns false, and changes nothing, for another token, another
//     term, another key, and the second time.
//  15. Release and Extend of a lock that expired and was taken by another
//     return false and touch nothing.
//  16. Release with term 0 goes by the token alone.
//  17. A row that rests is not free, though it was released: Look returns it
//     without a token, and Take its row, until its time to rest has passed.
//  18. Release that does not keep the time to rest frees the row at once, and
//     so does one after that time.
//  19. Extend leaves the time to rest as it was.
//  20. Clean deletes rows that are free and ended a day ago, the oldest first,
//     at most limit, and tells how many; all others stay.
//  21. Take, Look, Extend, Release and Clean with a context that has ended
//     return an error, soon, and write nothing.
//  22. Fence of the holder returns true, the transaction can be committed or
//     rolled back, and the row stays as it was.
//  23. Fence returns false for another token, another term, after expiry,
//     after a release, and after a take-over.
//  24. While a fenced transaction is open nobody takes the key, though it
//     expires; after it has ended a Take succeeds, and the old Fence returns
//     false.
//  25. Extend succeeds once a fenced transaction has ended, and, where that
//     was promised, already before; so does Release.
//  26. Fence of something that is no transaction of the store's kind returns
//     ErrNoFence.
//  27. If more is left of a row than its TTL, since the clock was set back, Take
//     lets it end a TTL from then, and its time to rest; its holder goes on.
//  28. After a fail-over Take grants nothing before the longer of the TTLs of
//     the row and of the claim has passed since the first Take: what was
//     released, has expired, or was never taken. Look says so, and writes
//     nothing.
//  29. A holder goes on over a fail-over: Extend and Release return true, and
//     let nobody take the key sooner.
//  30. Every term that is granted after a fail-over is at least 2^36 above every
//     term before.
//  31. Revoke of a row that is held puts the mark in the place of its token, and
//     returns true: Extend and Release of the holder return false, Look says
//     that it was revoked, and nobody takes it before its time is over. With
//     another term, of a free key, and the second time it returns false and
//     changes nothing.
//  32. Revoke of a row that rests, or of a time-out lock, frees it at once. List
//     returns the rows that are not free, as Look does, and those that were
//     revoked and not taken since, by kind and name, at most limit.
func RunNamed(t *testing.T, fresh func(t testing.TB) NamedDatabase) {
	for _, c := range namedCases() {
		t.Run(fmt.Sprintf("%02d %s", c.Number, c.Name), func(t *testing.T) {
			c.explain(t, "rule of named locks")
			c.try(t, fresh(t), 10*time.Second)
		})
	}
}

// NamedRules is the contract of a namedlock.Store, in the order of its numbers.
func NamedRules() []Rule {
	var rules []Rule
	for _, c := range namedCases() {
		rules = append(rules, c.Rule)
	}
	return rules
}

// A namedCase is a rule and how it is tested.
type namedCase struct {
	Rule
	run func(e *namedEnv)
}

// try tests the rule on db. t need not be a *testing.T. patience is how long
// what must come soon may take.
func (c namedCase) try(t testing.TB, db NamedDatabase, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 12*patience)
	t.Cleanup(cancel)
	e := &namedEnv{env: env{TB: t, ctx: ctx, patience: patience}, db: db, s: db.Open(t)}
	for _, f := range c.Needs {
		missing := f == Edits && db.Edit == nil || f == Fences && db.Begin == nil ||
			f == FailOvers && db.FailOver == nil
		switch {
		case !missing:
		case slices.Contains(db.Without, f):
			t.Skipf("without %s", f)
		default:
			t.Fatalf("rule %d needs %s: add it, or list it in NamedDatabase.Without", c.Number, f)
		}
	}
	c.run(e)
}

// namedEnv is what a case works with.
type namedEnv struct {
	env
	db NamedDatabase
	s  namedlock.Store // the first handle
}

// aLock and the TTL that the cases use: nothing expires by itself.
var aLock = namedlock.Key{Kind: namedlock.KindLock, Name: "a"}

const namedTTL = time.Minute

func claimOf(key namedlock.Key, owner driver.Owner) namedlock.Claim {
	return namedlock.Claim{Key: key, Owner: owner, Token: driver.NewToken(), TTL: namedTTL}
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

func namedCases() []namedCase {
	return slices.Concat(namedRowCases, namedFenceCases, namedClockCases, namedRevokeCases)
}

// errStill is what is waited to be over.
var errStill = errors.New("it is still as it was")
