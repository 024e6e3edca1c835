package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// soon is the bound of a statement that gives up a lock after a second.
const soon = 5 * time.Second

func begin(t testing.TB, url string, opts pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := session(t, url).BeginTx(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(ctx) })
	return tx
}

func TestATransactionThatKeepsAnExpiredHoldersRowIsNamed(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, 500*time.Millisecond)
	tx := begin(t, as(t, url, "postgres", "application_name", "importer"), pgx.TxOptions{})
	require.NoError(t, store.Fence(ctx, tx, ref))
	_, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	require.NoError(t, err)

	var log syncBuffer
	lock := newLock(t, open(t, url), time.Minute,
		schedlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	leading := make(chan *schedlock.Lease, 1)
	go func() {
		lease, _ := lock.Wait(ctx)
		leading <- lease
	}()

	pid := tx.Conn().PgConn().PID()
	var view driver.Snapshot
	// Before, a look may name a session that is just ending.
	eventually(t, "the row expires", func() bool {
		view = look(t, store)
		return strings.Contains(view.Blocker, fmt.Sprintf("backend %d,", pid))
	})
	info, err := schedlock.GetLockInfo(ctx, store)
	require.NoError(t, err)
	for _, blocker := range []string{view.Blocker, info.Blocker} {
		require.Contains(t, blocker, fmt.Sprintf("backend %d,", pid))
		require.Contains(t, blocker, `application "importer"`)
		require.Contains(t, blocker, "client 127.0.0.1")
		require.Contains(t, blocker, "since 20")
	}
	began := time.Now()
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrBlocked)
	require.ErrorContains(t, err, "importer")
	require.Less(t, time.Since(began), soon)

	eventually(t, "the waiting lock says it", func() bool {
		return strings.Contains(log.String(), "cannot be taken over")
	})
	time.Sleep(2500 * time.Millisecond) // two more tries
	require.Empty(t, leading)
	require.Equal(t, 1, strings.Count(log.String(), "cannot be taken over"), log.String())
	require.Contains(t, log.String(), "importer")
	require.NoError(t, tx.Commit(ctx))
	select {
	case lease := <-leading:
		require.NotNil(t, lease)
		require.NoError(t, lease.Release(ctx))
	case <-time.After(patience):
		t.Fatal("the transaction has ended, and the lock does not lead")
	}
}

func TestARowInTheMakingHoldsAnAcquisitionUpForASecondAtMost(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	release(t, store, acquire(t, store, time.Minute))
	insert := func() pgx.Tx {
		tx := begin(t, url, pgx.TxOptions{})
		_, err := tx.Exec(ctx, `INSERT INTO scheduler_lock
			(id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
			ttl_ms, renew_deadline_ms, heartbeat_ms)
			VALUES (1, 1, 'by hand', now(), now(), 'x', 1, 0, 'leading', 1000, 700, 100)`)
		require.NoError(t, err)
		return tx
	}
	view := look(t, store)
	tx := insert()
	began := time.Now()
	_, err := store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrBlocked)
	require.Less(t, time.Since(began), soon)
	require.NoError(t, tx.Commit(ctx))
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrConflict)
	tx = begin(t, url, pgx.TxOptions{})
	_, err = tx.Exec(ctx, `DELETE FROM scheduler_lock`)
	require.NoError(t, err)
	began = time.Now()
	_, err = store.Acquire(ctx, claim(view, time.Minute)) // behind a deletion that is not committed
	require.Error(t, err)
	require.Less(t, time.Since(began), soon)
	require.NoError(t, tx.Commit(ctx))
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.NoError(t, err)
}

// Each claimant takes the lock whenever it looks free, and gives it back at
// once: much happens between another's look and its acquisition.
func TestManyClaimantsNeverHoldItTogetherAndTermsGrow(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	var (
		wg      sync.WaitGroup
		holders atomic.Int64
		mu      sync.Mutex
		terms   []int64 // in the order in which they were held
	)
	const want = 300
	end := time.Now().Add(3 * patience)
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(terms) >= want || time.Now().After(end)
	}
	for range 8 {
		store := open(t, url)
		wg.Go(func() {
			for !done() {
				view, err := store.Look(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if view.Row != nil {
					continue
				}
				c := claim(view, time.Minute)
				grant, err := store.Acquire(ctx, c)
				if errors.Is(err, driver.ErrConflict) || errors.Is(err, driver.ErrBlocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				mu.Lock()
				terms = append(terms, grant.Term)
				mu.Unlock()
				c.Term = grant.Term
				holders.Add(-1)
				if deleted, err := store.Release(ctx, c.Ref, driver.EndReleased); err != nil ||
					!deleted {
					t.Error(deleted, err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.GreaterOrEqual(t, len(terms), want)
	for i := 1; i < len(terms); i++ {
		require.Greater(t, terms[i], terms[i-1])
	}
	history, err := open(t, url).Terms(ctx, 1000)
	require.NoError(t, err)
	for i, term := range history {
		require.Equal(t, terms[len(terms)-1-i], term.Term)
		if i > 0 {
			require.Equal(t, history[i-1].Term, term.NextTerm)
		}
	}
}

func TestACancelledAcquisitionReturnsAtOnceAndTheStoreGoesOn(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	view := look(t, store)
	tx := begin(t, url, pgx.TxOptions{})
	_, err := tx.Exec(ctx, `LOCK TABLE scheduler_lock`)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = store.Acquire(short, claim(view, time.Minute))
	require.Error(t, err)
	require.Less(t, time.Since(began), soon)
	require.NoError(t, tx.Commit(ctx))
	eventually(t, "a heartbeat", func() bool {
		_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
		return err == nil
	})
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
