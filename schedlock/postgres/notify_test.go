package postgres_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// fillNotifyQueue makes the server refuse each transaction that notifies, at its
// commit, as it does while its queue is full. That takes 8 GB on PostgreSQL 15, so
// the queue cannot be written to the disk here: it is full with what fits into the
// memory.
func fillNotifyQueue(t *testing.T, server *pgtest.Server, conn *pgx.Conn) (empty func()) {
	t.Helper()
	dir := filepath.Join(server.Dir(), "data", "pg_notify")
	require.NoError(t, os.Rename(dir, dir+".away"))
	empty = func() { require.NoError(t, os.Rename(dir+".away", dir)) }
	notify := `SELECT pg_notify('scheduler_lock', '')`
	for range 100 { // pages of 8 kB, of which a few are in memory
		if _, err := conn.Exec(ctx, `SELECT pg_notify('x', repeat('x', 7000))`); err != nil {
			break
		}
	}
	for range 1000 { // what is left of the last one
		if _, err := conn.Exec(ctx, notify); err != nil {
			require.ErrorContains(t, err, "could not access status")
			return empty
		}
	}
	t.Fatal("the server still takes notifications")
	return empty
}

func TestAFullNotifyQueueKeepsNobodyFromReleasing(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.Database(t)
	migrate(t, url)
	var log logtest.Log
	holder := open(t, url, postgres.WithLogger(log.Logger()))
	conn := session(t, url)
	ref := acquire(t, holder, time.Minute)
	empty := fillNotifyQueue(t, server, conn)

	release(t, holder, ref)
	require.Nil(t, look(t, holder).Row)
	require.False(t, look(t, holder).Newest.Open())
	lock := newLock(t, open(t, url), time.Minute)
	lease, err := lock.Acquire(ctx)
	require.NoError(t, err, "the next one leads at once")
	require.NoError(t, lease.Release(ctx))
	release(t, holder, acquire(t, holder, time.Minute))
	require.Equal(t, 1, strings.Count(log.String(), "does not notify the standbys"), log.String())

	empty()
	standby := open(t, url)
	ref = acquire(t, holder, time.Minute)
	woken := awaiting(ctx, standby, look(t, standby))
	release(t, holder, ref)
	ends(t, woken)
}

// A commit that notifies waits for all others that do: here for one that waits for a replica.
func TestACommitThatNotifiesAndHangsKeepsNobodyFromReleasing(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.Database(t)
	migrate(t, url)
	var log logtest.Log
	holder, conn, stuck := open(t, url, postgres.WithLogger(log.Logger())), session(t, url),
		session(t, url)
	ref := acquire(t, holder, time.Minute)
	exec(t, conn, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	exec(t, conn, `SELECT pg_reload_conf()`)
	exec(t, stuck, `SET synchronous_commit = on`)
	var over atomic.Bool
	hangs := make(chan struct{})
	t.Cleanup(func() {
		over.Store(true)
		exec(t, conn, `ALTER SYSTEM RESET synchronous_standby_names`)
		exec(t, conn, `SELECT pg_reload_conf()`)
		ends(t, hangs)
	})
	go func() {
		defer close(hangs)
		// The first may pass: commits wait once the server's checkpointer, too, has the setting.
		for n := 0; !over.Load(); n++ {
			_, _ = stuck.Exec(ctx, fmt.Sprintf(`CREATE TABLE t%d (); NOTIFY x`, n))
		}
	}()
	eventually(t, "it hangs", func() bool {
		return value[int](t, conn,
			`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) == 1
	})
	release(t, holder, ref)
	require.False(t, look(t, holder).Newest.Open())
	require.Equal(t, 1, strings.Count(log.String(), "does not notify the standbys"), log.String())
	stays(t, hangs)
}

// So a campaign does not listen after it has given back what it acquired.
func TestAReplicaIsToldOfItsOwnRelease(t *testing.T) {
	t.Parallel()
	store := open(t, migrated(t))
	ref := acquire(t, store, time.Minute)
	held := look(t, store)
	release(t, store, ref)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	require.Equal(t, ref.Term, store.AwaitHint(limited, held).Term)
}

func TestAReleaseThatHasWaitedForItsRowIsToldOf(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, conn, other := open(t, url), open(t, url), session(t, url), session(t, url)
	ref := acquire(t, holder, time.Minute)
	view := look(t, standby)
	told := make(chan driver.Release, 1)
	go func() { told <- standby.AwaitHint(ctx, view) }()
	exec(t, other, `BEGIN; SELECT FROM scheduler_lock FOR KEY SHARE`)
	released := make(chan struct{})
	go func() {
		defer close(released)
		release(t, holder, ref)
	}()
	eventually(t, "the release has waited for longer than it may wait to notify", func() bool {
		return value[int](t, conn, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE datname = current_database() AND NOT granted
				AND waitstart < clock_timestamp() - interval '300 ms'`) > 0
	})
	exec(t, other, `COMMIT`)
	ends(t, released)
	require.Equal(t, ref.Term, (<-told).Term)
}
