package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// locked opens a transaction that keeps a row of table work locked.
func locked(t testing.TB, url string) pgx.Tx {
	t.Helper()
	conn := session(t, url)
	exec(t, conn, `CREATE TABLE IF NOT EXISTS work (id int); INSERT INTO work VALUES (1)`)
	tx := begin(t, as(t, url, "postgres", "application_name", "shell"), pgx.TxOptions{})
	_, err := tx.Exec(ctx, `UPDATE work SET id = 2`)
	require.NoError(t, err)
	return tx
}

// The client is gone, but its server process waits for a row that somebody has
// locked, and has the lock row locked itself. The server need not wait for that
// somebody to find out.
func TestAKilledLeadersServerProcessThatWaitsBlocksNobodyForLong(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	other := locked(t, url)
	holder, standby := open(t, url), open(t, url)
	for name, fence := range map[string]func(t *testing.T, tx pgx.Tx, ref driver.Ref){
		"the scheduler's fence": func(t *testing.T, tx pgx.Tx, ref driver.Ref) {
			require.NoError(t, holder.Fence(ctx, tx, ref))
		},
		"a named lock's fence": func(t *testing.T, tx pgx.Tx, _ driver.Ref) {
			fenceNamed(t, holder.Named(), tx, takeNamed(t,
				holder.Named(), namedClaim(lockA, time.Minute)), true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ref := acquire(t, standby, time.Minute)
			line, through := servertest.Through(t, url)
			conn := session(t, as(t, through, "postgres", "application_name", "importer"))
			tx, err := conn.Begin(ctx)
			require.NoError(t, err)
			fence(t, tx, ref)
			pid := conn.PgConn().PID()
			working := make(chan error, 1)
			go func() { _, err := tx.Exec(ctx, `UPDATE work SET id = 3`); working <- err }()
			watcher := session(t, url)
			there := fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d`, pid)
			eventually(t, "it waits", func() bool {
				return value[int](t, watcher, there+` AND wait_event_type = 'Lock'`) == 1
			})
			line.Close() // as the kernel does when a process dies; nor can it cancel anything
			require.Error(t, <-working)
			// Not only its wait, which ends for a moment whenever it looks for its client.
			eventually(t, "its server process has ended", func() bool {
				return value[int](t, watcher, there) == 0
			})
			acquire(t, standby, time.Minute)
		})
	}
	require.NoError(t, other.Rollback(ctx))
}

// What the store itself does with the lock row locked does not wait for long.
func TestNoStatementThatLocksTheLockRowWaitsForLong(t *testing.T) {
	t.Parallel()
	eachWay(t, migrated, func(t *testing.T, direct, url string) {
		store := open(t, url)
		ref := acquire(t, store, time.Minute)
		_, _, err := store.Decide(ctx, ref, ledger.Decision{Job: "j",
			Spec: "s", To: tick, Start: tick})
		require.NoError(t, err)
		run, _, err := store.Run(ctx, "j", tick)
		require.NoError(t, err)
		blocked := func(t *testing.T, lock string, f func(ctx context.Context) error) {
			t.Helper()
			tx := begin(t, as(t, direct, "postgres", "application_name", "shell"),
				pgx.TxOptions{})
			_, err := tx.Exec(ctx, `SELECT FROM `+lock)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err = f(ctx)
			require.ErrorContains(t, err, "lock timeout")
			require.NoError(t, ctx.Err())
			require.NoError(t, tx.Rollback(ctx))
		}
		const lock, runs = "scheduler_lock FOR UPDATE", "scheduler_runs FOR UPDATE"
		t.Run("Heartbeat", func(t *testing.T) {
			blocked(t, lock, func(ctx context.Context) error {
				_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
				require.ErrorContains(t, err, `application "shell"`)
				return err
			})
			heartbeat(t, store, ref)
		})
		t.Run("Revoke", func(t *testing.T) {
			blocked(t, lock, func(ctx context.Context) error {
				_, err := store.Revoke(ctx, ref.Term, "me", "")
				return err
			})
		})
		t.Run("Finish", func(t *testing.T) {
			blocked(t, runs, func(ctx context.Context) error {
				_, err := store.Finish(ctx, run, ledger.End{Status: ledger.Done})
				return err
			})
		})
		t.Run("Release", func(t *testing.T) {
			blocked(t, "scheduler_lock FOR KEY SHARE", func(ctx context.Context) error {
				_, err := store.Release(ctx, ref, driver.EndReleased)
				return err
			})
		})
		t.Run("Abandon", func(t *testing.T) {
			next := acquire(t, store, time.Minute)
			blocked(t, runs, func(ctx context.Context) error {
				_, err := store.Abandon(ctx, next, nil)
				return err
			})
			left, err := store.Abandon(ctx, next, nil)
			require.NoError(t, err)
			require.Len(t, left, 1)
		})
	})
}

// Who asks hears at once who is in the way, long before the TTL has passed.
func TestABlockerIsNamedAsSoonAsItBlocks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	other := locked(t, url)
	defer other.Rollback(ctx)
	store := open(t, url)
	dead := open(t, url)
	ref, s := acquireWatched(t, dead, time.Hour)
	require.NotNil(t, s)
	importer := begin(t, as(t, url, "postgres", "application_name", "importer"), pgx.TxOptions{})
	require.NoError(t, store.Fence(ctx, importer, ref))
	_, err := importer.Exec(ctx, `SET LOCAL client_connection_check_interval = 0`)
	require.NoError(t, err)
	pid := importer.Conn().PgConn().PID()
	working := make(chan error, 1)
	go func() {
		_, err := importer.Exec(ctx,
			`UPDATE work /* password 'secret' */ SET id = 3 WHERE id <> 123456`)
		working <- err
	}()
	view := look(t, store)
	require.Empty(t, view.Blocker, "its holder lives")
	names := func(t *testing.T, blocker string) {
		t.Helper()
		for _, part := range []string{fmt.Sprintf("backend %d,", pid), `application "importer"`,
			"client 127.0.0.1", "in a transaction since 20", `active "UPDATE work`,
			"waits for backend", `application "shell"`} {
			require.Contains(t, blocker, part)
		}
		require.NotContains(t, blocker, "secret")
		require.NotContains(t, blocker, "123456")
	}
	// Two heartbeats of six to a TTL are missing, and the session has not ended.
	exec(t, session(t, url), `UPDATE scheduler_lock
		SET heartbeat_at = now() - interval '30 minutes'`)
	eventually(t, "a holder that is late has its blocker named before its TTL", func() bool {
		view = look(t, store)
		return strings.Contains(view.Blocker, fmt.Sprintf("backend %d,", pid))
	})
	require.NotEqual(t, driver.SignEnded, view.Sign)
	names(t, view.Blocker)
	require.NoError(t, dead.Close())
	// The session that ends may be named for a moment: it holds its locks longer
	// than it says since when.
	eventually(t, "the look that sees the session's end names it", func() bool {
		view = lookAtSession(t, store)
		return strings.Contains(view.Blocker, fmt.Sprintf("backend %d,", pid))
	})
	names(t, view.Blocker)
	view.Blocker = ""
	_, err = store.Acquire(ctx, claim(view, time.Minute))
	require.ErrorIs(t, err, driver.ErrBlocked)
	names(t, err.Error())

	// A role that may not see the session learns no more than who it is.
	role := newRole(t, url, "")
	exec(t, session(t, url), `GRANT SELECT ON scheduler_lock, scheduler_terms,
		scheduler_lock_schema, scheduler_jobs, scheduler_runs, scheduler_requests, scheduler_pauses
		TO `+role)
	exec(t, session(t, url), `UPDATE scheduler_lock SET heartbeat_at = now() - interval '2 hours'`)
	stranger := look(t, open(t, as(t, url, role)))
	require.Contains(t, stranger.Blocker, fmt.Sprintf("backend %d,", pid))
	require.NotContains(t, stranger.Blocker, "UPDATE")
	require.NoError(t, other.Rollback(ctx))
	require.NoError(t, <-working)
}

// A leader whose heartbeats are in time is not said to be blocked, whatever its
// own transactions do.
func TestNobodyIsNamedWhileTheLeaderLives(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Hour)
	tx := begin(t, url, pgx.TxOptions{})
	require.NoError(t, store.Fence(ctx, tx, ref))
	_, err := tx.Exec(ctx, `SELECT $a$open sesame$a$`) // a text, which has a tag
	require.NoError(t, err)
	exec(t, session(t, url), `SELECT pg_sleep(1.1)`) // old enough to be named
	require.Empty(t, look(t, store).Blocker)
	// two of ten minutes each
	exec(t, session(t, url),
		`UPDATE scheduler_lock SET heartbeat_at = now() - interval '21 minutes'`)
	require.Contains(t, look(t, store).Blocker, `"SELECT ..."`, "no text of a statement is shown")
}

// A look at a holder that gives no sign of life is one of the two by which a standby takes over: it
// must not fail because the server does not say who is in the way.
func TestALookStandsAlthoughTheServerDoesNotSayWhoBlocks(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	ref := acquire(t, open(t, url), time.Hour)
	tx := begin(t, url, pgx.TxOptions{})
	require.NoError(t, open(t, url).Fence(ctx, tx, ref))
	exec(t, admin, `SELECT pg_sleep(1.1)`) // old enough to be named
	exec(t, admin, `UPDATE scheduler_lock SET heartbeat_at = now() - interval '1 hour'`)
	// A character that an encoding lacks would be an error of the whole statement.
	odd := look(t, open(t, as(t, url, role, "client_encoding", "EUC_JP")))
	require.Contains(t, odd.Blocker, fmt.Sprintf("backend %d,", tx.Conn().PgConn().PID()))
	exec(t, admin, `REVOKE SELECT ON pg_locks FROM PUBLIC`)
	view := look(t, open(t, url))
	require.Equal(t, ref.Token, view.Row.Token)
	require.Empty(t, view.Blocker)
}

// The start of a run holds the lock row while it waits for other rows. Its
// client may be cut off by then, so the server itself must bound the wait.
func TestAStartThatWaitsDoesNotKeepTheLockRowFromATakeOver(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	line, through := servertest.Through(t, url)
	holder, standby := open(t, through), open(t, url)
	ref := acquire(t, holder, time.Minute)
	_, _, err := holder.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick})
	require.NoError(t, err)
	admin := session(t, url)
	exec(t, admin, `BEGIN; SELECT FROM scheduler_jobs FOR UPDATE`)
	next, started := tick.Add(time.Minute), make(chan struct{})
	go func() {
		defer close(started)
		_, _, _ = holder.Decide(t.Context(), ref, ledger.Decision{Job: "j",
			Spec: "s", From: tick, To: next, Start: next})
	}()
	waiting(t, session(t, url), 1)
	line.Cut()
	eventually(t, "another takes over", func() bool {
		_, err := standby.Acquire(ctx, claim(look(t, standby), time.Minute))
		return err == nil
	})
	exec(t, admin, `ROLLBACK`)
	line.Close()
	ends(t, started)
}

// soon is the bound of a statement that gives up a lock after a second.
const soon = 5 * time.Second

func begin(t testing.TB, url string, opts pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := session(t, url).BeginTx(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(ctx) })
	return tx
}

func TestARowInTheMakingHoldsAnAcquisitionUpForASecondAtMost(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	release(t, store, acquire(t, store, time.Minute))
	view := look(t, store)
	tx := begin(t, url, pgx.TxOptions{})
	_, err := tx.Exec(ctx, `INSERT INTO scheduler_lock
		(id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
		ttl_ms, renew_deadline_ms, heartbeat_ms)
		VALUES (1, 1, 'by hand', now(), now(), 'x', 1, 0, 'leading', 1000, 700, 100)`)
	require.NoError(t, err)
	began := time.Now()
	_, err = store.Acquire(ctx, claim(view, time.Minute))
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
