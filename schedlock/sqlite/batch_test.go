package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// held keeps the connection busy, so that calls gather, until release is called.
func held(t *testing.T, s *Store) (release func()) {
	t.Helper()
	s.turn <- struct{}{}
	release = sync.OnceFunc(func() { <-s.turn })
	t.Cleanup(release)
	return release
}

// gather starts n calls and returns when the first has the turn and all others
// wait for it. Calls that come together with the first would share its
// transaction.
func gather(t *testing.T, s *Store, wg *sync.WaitGroup, n int, call func(i int)) {
	t.Helper()
	under := func() bool {
		s.batch.mu.Lock()
		defer s.batch.mu.Unlock()
		return s.batch.busy && len(s.batch.waiting) == 0
	}
	wg.Go(func() { call(0) })
	require.Eventually(t, under, soon, time.Millisecond)
	for i := 1; i < n; i++ {
		wg.Go(func() { call(i) })
	}
	require.Eventually(t, func() bool { return waiting(s) == n-1 }, soon, time.Millisecond)
}

func waiting(s *Store) int {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	return len(s.batch.waiting)
}

func mark(name string) func(context.Context, tx) error {
	return func(ctx context.Context, tx tx) error {
		_, err := tx.exec(ctx, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
			VALUES (?1, 's', '2026-01-01T00:00:00.000000Z', '')`, name)
		return err
	}
}

func marks(t *testing.T, s *Store) int {
	t.Helper()
	return ask[int](t, s.DB(), `SELECT count(*) FROM scheduler_jobs`)
}

func TestCallsThatComeTogetherShareACommit(t *testing.T) {
	s := newStore(t)
	release := held(t, s)
	var (
		wg      sync.WaitGroup
		commits atomic.Int64
	)
	seen := sync.Map{}
	gather(t, s, &wg, 100, func(i int) {
		assert.NoError(t, s.share(t.Context(), func(ctx context.Context, tx tx) error {
			if _, known := seen.LoadOrStore(ctx, true); !known { // one context for each transaction
				commits.Add(1)
			}
			return mark(fmt.Sprint(i))(ctx, tx)
		}))
	})
	release()
	wg.Wait()
	assert.Equal(t, 100, marks(t, s))
	assert.LessOrEqual(t, commits.Load(), int64(3), "the first alone, and the others by %d",
		maxBatch)
	assert.Zero(t, waiting(s))
}

func TestAPartThatFailsUndoesOnlyItsOwn(t *testing.T) {
	s := newStore(t)
	errOwn := errors.New("own fault")
	release := held(t, s)
	var wg sync.WaitGroup
	gather(t, s, &wg, 20, func(i int) {
		err := s.share(t.Context(), func(ctx context.Context, tx tx) error {
			if err := mark(fmt.Sprint(i))(ctx, tx); err != nil || i%2 == 0 {
				return err
			}
			return errOwn
		})
		assert.Equal(t, i%2 == 1, errors.Is(err, errOwn), "%v", err)
	})
	release()
	wg.Wait()
	assert.Equal(t, 10, marks(t, s))
	require.ErrorIs(t, s.share(t.Context(), func(context.Context, tx) error {
		return errOwn
	}), errOwn, "alone")
}

// Its context ends before its turn, or while it is under way.
func TestACallThatGivesUpHarmsNoOther(t *testing.T) {
	s := newStore(t)
	release := held(t, s)
	var wg sync.WaitGroup
	gone, giveUp := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	gather(t, s, &wg, 20, func(i int) {
		ctx := t.Context()
		if i%2 == 1 {
			ctx = gone
		}
		err := s.share(ctx, mark(fmt.Sprint(i)))
		if i%2 == 0 {
			assert.NoError(t, err)
		} else {
			assert.Error(t, err)
		}
	})
	giveUp(errGone)
	require.Eventually(t, func() bool { return waiting(s) <= 10 }, soon, time.Millisecond)
	release()
	wg.Wait()
	assert.Equal(t, 10, marks(t, s))
	for range 50 { // given the turn, and gone
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = s.share(ctx, func(context.Context, tx) error { return errGone })
	}
	require.NoError(t, s.share(t.Context(), mark("after")), "and the turn is not lost")
}

// The end of a lease may end one of the calls: that says nothing to another, which is repeated.
func TestWhyACallGivesUpConcernsNoOther(t *testing.T) {
	s := newStore(t)
	held(t, s)
	var parts []*part
	for _, why := range []error{driver.ErrLost, driver.ErrConflict} {
		ctx, leave := context.WithCancelCause(t.Context())
		leave(why)
		parts = append(parts, &part{ctx: ctx, do: mark(why.Error())})
	}
	s.commit(parts)
	require.NotErrorIs(t, parts[0].err, driver.ErrConflict)
	require.NotErrorIs(t, parts[1].err, driver.ErrLost)
	require.Error(t, parts[0].err)
}

func TestTheFailureOfATransactionIsThatOfAllItsParts(t *testing.T) {
	missing.Long(t, "waits for a writer")
	t.Parallel()
	s := newStore(t)
	conn := foreign(t, s)
	run(t, conn, `BEGIN IMMEDIATE`)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			assert.ErrorContains(t, s.share(t.Context(), mark(fmt.Sprint(i))), "locked")
		})
	}
	wg.Wait()
	run(t, conn, `ROLLBACK`)
	assert.Zero(t, marks(t, s))
}

// SQLite rolls back all of the transaction then, with the savepoints.
func TestAllPartsAreToldThatTheDiskIsFull(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.use(t.Context(), func(_ context.Context, conn *sql.Conn) error {
		run(t, conn, fmt.Sprintf(`PRAGMA max_page_count = %d`,
			ask[int](t, conn, `PRAGMA page_count`)))
		return nil
	}))
	release := held(t, s)
	var wg sync.WaitGroup
	gather(t, s, &wg, 4, func(i int) {
		name := fmt.Sprint(i)
		if i > 0 {
			name += strings.Repeat("x", 100_000)
		}
		err := s.share(t.Context(), mark(name))
		assert.Equal(t, i > 0, errors.Is(err, sqlite3.FULL), "%v", err)
	})
	release()
	wg.Wait()
	assert.Equal(t, 1, marks(t, s))
}

// Decisions, ends and refusals in one transaction.
func TestALeaderAndAnOldOneShareNothing(t *testing.T) {
	s := newStore(t)
	old, ref := acquire(t, s), acquire(t, s)
	free := held(t, s)
	var wg sync.WaitGroup
	gather(t, s, &wg, 30, func(i int) {
		by := ref
		if i%3 == 0 {
			by = old
		}
		_, started, err := s.Decide(t.Context(), by, ledger.Decision{
			Job: fmt.Sprint(i), Spec: "s", To: time.Unix(1, 0), Start: time.Unix(1, 0),
		})
		if i%3 == 0 {
			assert.ErrorIs(t, err, driver.ErrLost)
		} else {
			assert.NoError(t, err)
		}
		assert.Equal(t, i%3 != 0, started)
	})
	free()
	wg.Wait()
	assert.Len(t, runs(t, s, ""), 20)
	release(t, s, ref)
}
