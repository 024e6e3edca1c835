package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/sqlitetest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
)

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
		t.(*testing.T).Parallel()
		first := newStore(t)
		conn := foreign(t, first)
		run(t, conn, `PRAGMA busy_timeout = 5000`)
		db := sqlitetest.Database{DB: first.DB(), Conn: conn}.Named()
		db.Open = func(t testing.TB) namedlock.Store { return mustOpen(t, first.Path()).Named() }
		return db
	})
}

func lookNamed(t testing.TB, n namedlock.Store, key namedlock.Key) *namedlock.Row {
	t.Helper()
	row, err := n.Look(bg, key)
	require.NoError(t, err)
	return row
}

// A machine has a clock that nobody can set, and can be restarted.
type machine struct {
	mu   sync.Mutex
	ms   int64
	boot int
}

func (m *machine) now() (int64, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ms, fmt.Sprintf("boot %d", m.boot)
}

func (m *machine) pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ms += d.Milliseconds()
}

func (m *machine) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ms, m.boot = 5000, m.boot+1
}

// on is the store on a machine.
func (m *machine) on(s *Store) *namedStore { return &namedStore{s: s, boot: m.now} }

// A replica whose wall clock is an hour ahead neither steals a lock nor
// shortens, or lengthens, its own; nor does one that is an hour behind.
func TestNoWallClockMattersToANamedLock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 48 * time.Hour, -48 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			right := newStore(t)
			wrong := mustOpen(t, right.Path(), WithClock(func() time.Time {
				return time.Now().Add(ahead)
			}))
			m := &machine{ms: 1_000_000}
			a, b := m.on(right), m.on(wrong)
			for _, n := range [][2]*namedStore{{a, b}, {b, a}} {
				ref := takeNamed(t, n[0], namedClaim(lockA, time.Minute, 0))
				for range 3 {
					m.pass(59 * time.Second)
					for _, other := range n {
						term, holder, err := other.Take(bg, namedClaim(lockA, time.Minute, 0))
						require.NoError(t, err)
						require.Zero(t, term, "it is stolen")
						require.Equal(t, time.Second, holder.Left)
						deleted, err := other.Clean(bg, 10)
						require.NoError(t, err)
						require.Zero(t, deleted, "it is cleaned up")
					}
					ours, err := n[0].Extend(bg, ref, time.Minute)
					require.NoError(t, err)
					require.True(t, ours)
				}
				m.pass(time.Minute)
				next := takeNamed(t, n[1], namedClaim(lockA, time.Minute, 0))
				require.Greater(t, next.Term, ref.Term)
				m.pass(time.Minute)
			}
			// Nor does a clock that is set while a lock is held.
			rest := namedClaim(namedlock.Key{Kind: namedlock.KindTimeout, Name: "r"}, 24*time.Hour,
				24*time.Hour)
			takeNamed(t, a, rest)
			m.pass(24*time.Hour - time.Second)
			require.Equal(t, time.Second, lookNamed(t, b, rest.Key).Left)
			m.pass(time.Second)
			require.Nil(t, lookNamed(t, b, rest.Key))
		})
	}
}

func TestARestartOfTheMachineEndsAllLocks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	m := &machine{ms: 1_000_000}
	n := m.on(s)
	old := takeNamed(t, n, namedClaim(lockA, 24*time.Hour, 0))
	m.restart()
	require.Nil(t, lookNamed(t, n, lockA), "no process has outlived it")
	ours, err := n.Extend(bg, old, time.Minute)
	require.NoError(t, err)
	require.False(t, ours)
	ours, err = n.Release(bg, old, false)
	require.NoError(t, err)
	require.False(t, ours)
	tx := begin(t, s.DB())
	ours, err = n.Fence(bg, tx, old, time.Minute)
	require.NoError(t, err)
	require.False(t, ours)
	require.NoError(t, tx.Rollback())
	require.Greater(t, takeNamed(t, n, namedClaim(lockA, time.Minute, 0)).Term, old.Term)
	require.NotNil(t, lookNamed(t, n, lockA), "it is held again")
}

// At most one run a day, also if the machine is restarted: then the wall clock
// is all there is.
func TestARestDoesNotEndWithARestartOfTheMachine(t *testing.T) {
	t.Parallel()
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	m := &machine{ms: 1_000_000}
	n := m.on(s)
	const day = 24 * time.Hour
	daily := namedlock.Key{Kind: namedlock.KindTimeout, Name: "daily"}
	task := namedlock.Key{Kind: namedlock.KindTask, Name: "task"}
	takeNamed(t, n, namedClaim(daily, day, day))
	takeNamed(t, n, namedClaim(task, day, time.Hour))
	m.restart()
	clock.add(time.Hour - time.Second)
	row := lookNamed(t, n, daily)
	require.NotNil(t, row)
	require.Equal(t, 23*time.Hour+time.Second, row.Left)
	row = lookNamed(t, n, task)
	require.NotNil(t, row)
	require.True(t, row.Resting, "its holder is dead")
	require.Equal(t, time.Second, row.Left)
	clock.add(time.Second)
	require.Nil(t, lookNamed(t, n, task))
	clock.add(23 * time.Hour)
	require.Nil(t, lookNamed(t, n, daily))

	// A clock that was ahead, and was set right, must not let it rest for ever.
	takeNamed(t, n, namedClaim(daily, day, day))
	m.restart()
	clock.add(-time.Second)
	require.Nil(t, lookNamed(t, n, daily))
	takeNamed(t, n, namedClaim(daily, day, day))
}

func TestNamedLocksTakeNoByteOfTheLeaseFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	held := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.bytes)
	}
	before := held()
	for i := range 10 {
		takeNamed(t, s.Named(), namedClaim(lockKey(fmt.Sprint(i)), time.Minute, 0))
	}
	require.Equal(t, before, held())
	beat(t, s, ref)
	release(t, s, ref)
}

// A row that says when it can be taken again must outlive a power cut; to
// extend a lock, or to release it, need not.
func TestOnlyTakingANamedLockIsFlushed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := s.Named()
	for i := range 2 {
		ref := takeNamed(t, n, namedClaim(lockA, time.Minute, 0))
		require.Equal(t, full, flushes(t, s))
		_, err := n.Extend(bg, ref, time.Minute)
		require.NoError(t, err)
		require.Equal(t, normal, flushes(t, s))
		takeNamed(t, n, namedClaim(lockKey(fmt.Sprint(i)), time.Minute, 0))
		require.Equal(t, full, flushes(t, s))
		_, err = n.Release(bg, ref, true)
		require.NoError(t, err)
		require.Equal(t, normal, flushes(t, s))
	}
}

// To ask for what is held takes no write lock, and so waits for no writer.
func TestWhatIsHeldIsOnlyRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := s.Named()
	takeNamed(t, n, namedClaim(lockA, time.Minute, 0))
	writer := foreign(t, s)
	run(t, writer, `BEGIN IMMEDIATE`)
	term, holder, err := n.Take(bg, namedClaim(lockA, time.Minute, 0))
	require.NoError(t, err)
	require.Zero(t, term)
	require.NotNil(t, holder)
	run(t, writer, `ROLLBACK`)
}

// What needs the write lock waits for a writer for longer than one statement
// would.
func TestNamedLocksWaitForAWriter(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	s := newStore(t)
	n := s.Named()
	writer := foreign(t, s)
	held := takeNamed(t, n, namedClaim(lockKey("held"), time.Hour, 0))
	for name, do := range map[string]func(ctx context.Context) error{
		"Take": func(ctx context.Context) error {
			_, _, err := n.Take(ctx, namedClaim(lockKey("free"), time.Hour, 0))
			return err
		},
		"Extend": func(ctx context.Context) error {
			_, err := n.Extend(ctx, held, time.Hour)
			return err
		},
	} {
		run(t, writer, `BEGIN IMMEDIATE`)
		require.Error(t, do(lasting(t, 200*time.Millisecond)), name)
		done := make(chan error, 1)
		go func() { done <- do(bg) }()
		select {
		case err := <-done:
			t.Fatalf("%s did not wait: %v", name, err)
		case <-time.After(2 * busyTimeout):
		}
		run(t, writer, `ROLLBACK`)
		require.NoError(t, <-done, name)
	}
}

// The statements find a row, and what is to be cleaned up, without reading all
// others.
func TestNothingReadsAllNamedLocks(t *testing.T) {
	missing.Long(t, "fills tables")
	t.Parallel()
	s := newStore(t)
	conn := foreign(t, s)
	check := func(t *testing.T) {
		for name, query := range map[string]string{
			"take": sqlNamedTake, "look": sqlNamedLook, "extend": sqlNamedExtend,
			"release": sqlNamedRelease, "fence": sqlNamedFence,
			"clean": sqlNamedClean, "floor": sqlNamedFloor,
		} {
			plan := queryPlan(t, conn, query)
			assert.NotRegexp(t, `SCAN (named_locks|l)\b`, plan, "%s:\n%s", name, plan)
			if name == "clean" {
				assert.Contains(t, plan, "INDEX named_locks_expires_at")
				assert.NotContains(t, plan, "TEMP B-TREE", "it sorts")
			}
		}
		assert.Regexp(t, `SCAN named_locks\b`, queryPlan(t,
			conn, `DELETE FROM named_locks WHERE pid = 1`), "the test sees a scan")
	}
	t.Run("as it begins", check)
	run(t, conn, `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO named_locks (kind, name, term, pid, hostname, acquired_at, expires_at,
    boot_id, expires_ms)
SELECT 'lock', 'name ' || i, i, 1, 'h', '2026-03-01T12:00:00.000000Z',
    printf('2026-03-01T12:%02d:%02d.000000Z', i / 60 % 60, i % 60), 'b', i FROM n`)
	run(t, conn, `ANALYZE`)
	t.Run("with rows, after ANALYZE", check)
	deleted, err := s.Named().Clean(bg, 100)
	require.NoError(t, err)
	require.EqualValues(t, 100, deleted)
	require.Equal(t, 4900, ask[int](t, conn, `SELECT count(*) FROM named_locks`))
}

// An operator can read the rows, and edits them into nonsense.
func TestNamedLocksOfARowThatWasEdited(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := s.Named()
	conn := foreign(t, s)
	ref := takeNamed(t, n, namedClaim(lockA, time.Minute, 0))
	run(t, conn,
		`UPDATE named_locks SET token = 'mine', acquired_at = 'yesterday', hostname = 'somebody'`)
	row := lookNamed(t, n, lockA)
	require.NotNil(t, row)
	require.Equal(t, "somebody", row.Hostname)
	require.Equal(t, driver.Token{}, row.Token)
	require.False(t, row.Resting)
	ours, err := n.Release(bg, ref, true)
	require.NoError(t, err)
	require.False(t, ours)
	run(t, conn, `UPDATE named_locks SET token = NULL`)
	require.Nil(t, lookNamed(t, n, lockA))
	run(t, conn, `DELETE FROM named_locks_floor`)
	require.Greater(t, takeNamed(t, n, namedClaim(lockA, time.Minute, 0)).Term, ref.Term)
	require.Regexp(t, "Z$", ask[string](t, conn, `SELECT acquired_at FROM named_locks`))
}

// Its holder may extend it, for longer, between the look and what that leads to.
func TestWhatWasExtendedMeanwhileIsNotMended(t *testing.T) {
	t.Parallel()
	n := (&machine{ms: 1_000_000}).on(newStore(t))
	ref := takeNamed(t, n, namedClaim(lockA, time.Minute, 0))
	seen := lookNamed(t, n, lockA)
	ours, err := n.Extend(bg, ref, time.Hour)
	require.NoError(t, err)
	require.True(t, ours)
	seen.Unsure = true
	n.mend(bg, seen)
	require.Equal(t, time.Hour, lookNamed(t, n, lockA).Left)
}

// Locks that were taken within one millisecond have the same term.
func TestARevocationIsOfOneLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := (&machine{ms: 1_000_000}).on(s)
	other := namedlock.Key{Kind: lockA.Kind, Name: "other"}
	for _, key := range []namedlock.Key{lockA, other} {
		takeNamed(t, n, namedClaim(key, time.Minute, 0))
	}
	run(t, foreign(t, s), `UPDATE named_locks SET term = 7, ttl_of = 7`)
	revoked, err := n.Revoke(bg, lockA, 7, namedlock.Revocation{By: "ann"}.Mark())
	require.NoError(t, err)
	require.True(t, revoked)
	require.NotNil(t, lookNamed(t, n, lockA).Revoked)
	require.Nil(t, lookNamed(t, n, other).Revoked)
}

// In the millisecond in which others may take it already.
func TestALockIsNobodysWhenItsTTLHasPassed(t *testing.T) {
	t.Parallel()
	s, m := newStore(t), &machine{ms: 1_000_000}
	n := m.on(s)
	ref := takeNamed(t, n, namedClaim(lockA, time.Minute, 0))
	m.pass(time.Minute)
	require.Nil(t, lookNamed(t, n, lockA))
	ours, err := n.Extend(bg, ref, time.Minute)
	require.NoError(t, err)
	require.False(t, ours)
	ours, err = n.Fence(bg, begin(t, s.DB()), ref, time.Minute)
	require.NoError(t, err)
	require.False(t, ours)
}
