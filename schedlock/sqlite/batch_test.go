package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func openForBatch(t *testing.T) *Store {
	t.Helper()
	s, err := Opener("file:" + filepath.Join(t.TempDir(), "app.db"))(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.(*Store).Close()) })
	return s.(*Store)
}

// held keeps the connection busy, so that calls gather, until release is called.
func held(t *testing.T, s *Store) (release func()) {
	t.Helper()
	s.turn <- struct{}{}
	return sync.OnceFunc(func() { <-s.turn })
}

func waiting(s *Store) int {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	return len(s.batch.waiting)
}

func mark(name string) func(context.Context, tx) error {
	return func(ctx context.Context, tx tx) error {
		_, err := tx.exec(ctx, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at) VALUES (?1, 's', '2026-01-01T00:00:00.000000Z', '')`, name)
		return err
	}
}

func marks(t *testing.T, s *Store) (n int) {
	t.Helper()
	require.NoError(t, s.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM scheduler_jobs`).Scan(&n))
	return n
}

func TestCallsThatComeTogetherShareACommit(t *testing.T) {
	s := openForBatch(t)
	release := held(t, s)
	var (
		wg      sync.WaitGroup
		commits atomic.Int64
	)
	seen := sync.Map{}
	for i := range 100 {
		wg.Go(func() {
			assert.NoError(t, s.share(t.Context(), func(ctx context.Context, tx tx) error {
				if _, known := seen.LoadOrStore(ctx, true); !known { // one context for each transaction
					commits.Add(1)
				}
				return mark(fmt.Sprint(i))(ctx, tx)
			}))
		})
	}
	require.Eventually(t, func() bool { return waiting(s) >= 99 }, 10*time.Second, time.Millisecond)
	release()
	wg.Wait()
	assert.Equal(t, 100, marks(t, s))
	assert.LessOrEqual(t, commits.Load(), int64(3), "the first alone, and the others by %d", maxBatch)
	assert.Zero(t, waiting(s))
}

func TestAPartThatFailsUndoesOnlyItsOwn(t *testing.T) {
	s := openForBatch(t)
	errOwn := errors.New("own fault")
	release := held(t, s)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			err := s.share(t.Context(), func(ctx context.Context, tx tx) error {
				if err := mark(fmt.Sprint(i))(ctx, tx); err != nil || i%2 == 0 {
					return err
				}
				return errOwn
			})
			assert.Equal(t, i%2 == 1, errors.Is(err, errOwn), "%v", err)
		})
	}
	require.Eventually(t, func() bool { return waiting(s) >= 19 }, 10*time.Second, time.Millisecond)
	release()
	wg.Wait()
	assert.Equal(t, 10, marks(t, s))
	require.ErrorIs(t, s.share(t.Context(), func(context.Context, tx) error { return errOwn }), errOwn, "alone")
}

// Its context ends before its turn, or while it is under way.
func TestACallThatGivesUpHarmsNoOther(t *testing.T) {
	s := openForBatch(t)
	release := held(t, s)
	var wg sync.WaitGroup
	gone, giveUp := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	for i := range 20 {
		wg.Go(func() {
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
	}
	require.Eventually(t, func() bool { return waiting(s) >= 19 }, 10*time.Second, time.Millisecond)
	giveUp(errGone)
	require.Eventually(t, func() bool { return waiting(s) <= 10 }, 10*time.Second, time.Millisecond)
	release()
	wg.Wait()
	n := marks(t, s)
	assert.Equal(t, 10, n)
	for range 50 { // given the turn, and gone
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = s.share(ctx, func(context.Context, tx) error { return errGone })
	}
	require.NoError(t, s.share(t.Context(), mark("after")), "and the turn is not lost")
}

func TestTheFailureOfATransactionIsThatOfAllItsParts(t *testing.T) {
	t.Parallel()
	s := openForBatch(t)
	other, err := Open(t.Context(), "file:"+s.Path())
	require.NoError(t, err)
	defer other.Close()
	conn, err := other.DB().Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { assert.ErrorContains(t, s.share(t.Context(), mark(fmt.Sprint(i))), "locked") })
	}
	wg.Wait()
	_, err = conn.ExecContext(t.Context(), `ROLLBACK`)
	require.NoError(t, err)
	assert.Zero(t, marks(t, s))
}

// Decisions, ends and refusals in one transaction.
func TestALeaderAndAnOldOneShareNothing(t *testing.T) {
	s := openForBatch(t)
	grant := func() schedlock.Ref {
		view, err := s.Look(t.Context())
		require.NoError(t, err)
		ref := schedlock.Ref{Owner: schedlock.Owner{PID: 1, Hostname: "h"}, Token: schedlock.NewToken()}
		g, err := s.Acquire(t.Context(), schedlock.Claim{Ref: ref, Judged: view, Reason: schedlock.EndExpired,
			Timing: schedlock.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second, HeartbeatInterval: 10 * time.Second}})
		require.NoError(t, err)
		ref.Term = g.Term
		return ref
	}
	old := grant()
	ref := grant()
	release := held(t, s)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			by := ref
			if i%3 == 0 {
				by = old
			}
			_, started, err := s.Decide(t.Context(), by, ledger.Decision{Job: fmt.Sprint(i), Spec: "s", To: time.Unix(1, 0), Start: time.Unix(1, 0)})
			if i%3 == 0 {
				assert.ErrorIs(t, err, schedlock.ErrLost)
			} else {
				assert.NoError(t, err)
			}
			assert.Equal(t, i%3 != 0, started)
		})
	}
	require.Eventually(t, func() bool { return waiting(s) >= 29 }, 10*time.Second, time.Millisecond)
	release()
	wg.Wait()
	runs, err := s.Runs(t.Context(), "", 100)
	require.NoError(t, err)
	assert.Len(t, runs, 20)
	_, err = s.Release(t.Context(), ref, schedlock.EndReleased)
	require.NoError(t, err)
}
