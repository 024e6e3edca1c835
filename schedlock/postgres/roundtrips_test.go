package postgres_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// A counter stands between a client and the server, and counts the round trips
// that the client asks for: its messages Sync and Query.
type counter struct {
	mu    sync.Mutex
	trips int
}

// countTrips returns a URL that leads through the counter.
func countTrips(t testing.TB, databaseURL string) (*counter, string) {
	c := &counter{}
	return c, between(t, databaseURL, func(client, server net.Conn) {
		defer client.Close()
		defer server.Close()
		go func() {
			_, _ = io.Copy(client, server)
			client.Close()
		}()
		c.forward(server, client)
	})
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trips
}

// forward copies what a client says.
func (c *counter) forward(server io.Writer, client io.Reader) {
	for untyped := true; ; untyped = false {
		message, err := readMessage(client, untyped)
		if err != nil {
			return
		}
		// A pool asks a connection that was idle for more than a second whether it lives.
		ping := message[0] == 'Q' && bytes.Contains(message, []byte("-- ping"))
		if !untyped && (message[0] == 'S' || message[0] == 'Q') && !ping {
			c.mu.Lock()
			c.trips++
			c.mu.Unlock()
		}
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}

// during counts the round trips of f.
func (c *counter) during(f func()) int {
	before := c.count()
	f()
	return c.count() - before
}

func TestEachStatementOfTheLockIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	for _, tc := range []struct{ name, param, value string }{
		{"prepared", "default_query_exec_mode", "cache_statement"},
		{"as behind a pooler", "default_query_exec_mode", "exec"},
		{"behind a pooler", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := as(t, direct, "postgres", tc.param, tc.value)
			if tc.param == "" {
				to = pgtest.PgBouncer(t, pgtest.Shared(t)).URL(databaseName(t, direct))
			}
			trips, url := countTrips(t, to)
			store := open(t, url)
			require.Equal(t, tc.param == "", store.Pooled())
			round := func(wanted bool) {
				view := look(t, store)
				one := func(what string, f func()) {
					if n := trips.during(f); wanted {
						require.Equal(t, 1, n, what)
					}
				}
				free := claim(view, time.Minute)
				one("acquire a free lock", func() {
					grant, err := store.Acquire(ctx, free)
					require.NoError(t, err)
					free.Term = grant.Term
				})
				one("look", func() { view = look(t, store) })
				over := claim(view, time.Minute)
				one("take over", func() {
					grant, err := store.Acquire(ctx, over)
					require.NoError(t, err)
					over.Term = grant.Term
				})
				for range 3 {
					one("heartbeat", func() { heartbeat(t, store, over.Ref) })
				}
				one("revoke", func() {
					_, err := store.Revoke(ctx, over.Term, "me", "")
					require.NoError(t, err)
				})
				one("release, with its notification", func() { release(t, store, over.Ref) })
			}
			round(false) // the very first term, and what is prepared once
			round(false)
			round(true)
		})
	}
}

// At first they are prepared, and a connection to the pool is opened: only the last round counts.
func TestEachStatementOfTheLedgerOfQueuesAndNamedLocksIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	trips, url := countTrips(t, direct)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	defer store.HoldMending("q")() // it is a round trip of its own, once a second
	for round := range 3 {
		one := func(what string, f func() error) {
			t.Helper()
			if n := trips.during(func() { require.NoError(t, f(), what) }); round == 2 {
				require.Equal(t, 1, n, what)
			}
		}
		oneRoundTripEach(t, store, ref, fmt.Sprint("j", round), one)
		exec(t, session(t, direct), `TRUNCATE queue_tasks`)
		everyCall(t, store.Queue(), one)
		everyNamedCall(t, store.Named(), one)
	}
}

func oneRoundTripEach(t *testing.T, store *postgres.Store, ref driver.Ref, job string,
	one func(string, func() error)) {
	t.Helper()
	at := time.Unix(1_800_000_000, 0)
	var run ledger.Run
	one("Decide", func() (err error) {
		run, _, err = store.Decide(ctx, ref, ledger.Decision{Job: job,
			Spec: "s", To: at, Start: at})
		return err
	})
	one("Finish", func() error {
		_, err := store.Finish(ctx, run, ledger.End{Status: ledger.Failed, RetryAt: at})
		return err
	})
	one("Retries", func() error { _, err := store.Retries(ctx); return err })
	one("Retry", func() (err error) {
		run, _, err = store.Retry(ctx, ref, run)
		return err
	})
	require.Equal(t, 2, run.Attempt)
	one("GiveUp", func() error { _, err := store.GiveUp(ctx, ref, run); return err })
	var request ledger.Request
	one("Trigger", func() (err error) {
		request, err = store.Trigger(ctx, ledger.Action{Job: job, By: "me"})
		return err
	})
	one("Inbox", func() error { _, err := store.Pending(ctx); return err })
	one("Answer", func() (err error) {
		run, _, err = store.Answer(ctx, ref, request, "")
		return err
	})
	require.Equal(t, "me", run.RequestedBy)
	one("Run", func() error { _, _, err := store.Run(ctx, job, at); return err })
	one("Resume", func() error { _, err := store.Resume(ctx, job, "me"); return err })
	one("ResetCursor", func() error {
		_, err := store.ResetCursor(ctx, ledger.Action{Job: job, By: "me"})
		return err
	})
	one("Audit", func() error { _, err := store.Audit(ctx, job, 1); return err })
	one("Prune", func() error { _, err := store.Prune(ctx, job, 1, 1); return err })
}

// hot asserts that all updates of a table were HOT updates, once the statistics have so many.
func hot(t testing.TB, conn *pgx.Conn, table string, n int) {
	t.Helper()
	var updates, hot int
	eventually(t, "the statistics of the updates", func() bool {
		exec(t, conn, `SELECT pg_stat_clear_snapshot()`)
		require.NoError(t, conn.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd
			FROM pg_stat_user_tables WHERE relname = $1`, table).Scan(&updates, &hot))
		return updates == n
	})
	require.Equal(t, updates, hot)
}

// Not in parallel: a session that is being opened, to any database, keeps dead rows.
func TestHeartbeatsAreHotUpdatesOfALoggedTable(t *testing.T) {
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	ref := acquire(t, store, time.Minute)
	for range 100 {
		heartbeat(t, store, ref)
	}
	require.NoError(t, store.Close()) // a session's last statistics are flushed at its end
	hot(t, conn, "scheduler_lock", 100)
	require.Zero(t, value[int](t, conn, `SELECT count(*) FROM pg_class
		WHERE relname LIKE 'scheduler%' AND relkind = 'r' AND relpersistence <> 'p'`))
}

// noteCommits notes with which synchronous_commit the transactions that write to the tables are
// committed, and turns it off for new sessions. It returns what tells the different ones, once.
func noteCommits(t testing.TB, conn *pgx.Conn, tables ...string) (noted func() []string) {
	t.Helper()
	// A deferred trigger runs as the transaction commits.
	exec(t, conn, `
		CREATE TABLE commits (setting text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO commits VALUES (current_setting('synchronous_commit'));
			RETURN NULL;
		END $$`)
	for _, table := range tables {
		exec(t, conn, `CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON `+table+
			` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
	}
	exec(t, conn, `ALTER DATABASE `+conn.Config().Database+` SET synchronous_commit = off`)
	return func() []string {
		return value[[]string](t, conn, `WITH gone AS (DELETE FROM commits RETURNING setting)
			SELECT coalesce(array_agg(DISTINCT setting), '{}') FROM gone`)
	}
}

// noLeak asserts that no setting of one statement is left in a session of the pool.
func noLeak(t testing.TB, store *postgres.Store) {
	t.Helper()
	var off, timeout string
	require.NoError(t, store.Pool().QueryRow(ctx,
		`SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')`).
		Scan(&off, &timeout))
	require.Equal(t, []string{"off", "1s"}, []string{off, timeout})
}

func TestCommitsAreDurableWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	commits := noteCommits(t, conn, "scheduler_lock", "scheduler_runs", "scheduler_requests",
		"scheduler_pauses", "named_locks", "queue_tasks")

	var own *pgx.Conn // the store's
	store := configured(t, url, func(config *pgxpool.Config) {
		config.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
			own = cmp.Or(own, c)
			return nil
		}
	})
	committed := func(wanted string, f func()) {
		t.Helper()
		f()
		require.Equal(t, []string{wanted}, commits())
		require.Equal(t, "off", value[string](t, own, `SHOW synchronous_commit`),
			"it leaks into the session")
		require.Equal(t, "1s", value[string](t, own, `SHOW lock_timeout`),
			"it leaks into the session, whose own default is ours")
		noLeak(t, store)
	}
	var ref driver.Ref
	committed("on", func() { ref = acquire(t, store, time.Minute) }) // the first
	committed("on", func() { ref = acquire(t, store, time.Minute) }) // a take-over
	committed("local", func() { heartbeat(t, store, ref) })
	at := time.Unix(1_800_000_000, 0)
	committed("on", func() {
		_, _, err := store.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: at, Start: at})
		require.NoError(t, err)
	})
	var request ledger.Request
	committed("on", func() {
		var err error
		request, err = store.Trigger(ctx, ledger.Action{Job: "j", By: "me"})
		require.NoError(t, err)
	})
	committed("on", func() {
		_, _, err := store.Answer(ctx, ref, request, "")
		require.NoError(t, err)
	})
	committed("on", func() {
		_, err := store.Pause(ctx, ledger.Action{Job: "j", By: "me"})
		require.NoError(t, err)
	})
	committed("on", func() {
		_, err := store.Resume(ctx, "j", "me")
		require.NoError(t, err)
	})
	var left []ledger.Run
	committed("on", func() {
		var err error
		ref = acquire(t, store, time.Minute)
		left, err = store.Abandon(ctx, ref, func(ledger.Run) time.Time { return at })
		require.NoError(t, err)
		require.Len(t, left, 2)
	})
	committed("on", func() {
		_, _, err := store.Retry(ctx, ref, left[0])
		require.NoError(t, err)
	})
	committed("on", func() {
		_, err := store.GiveUp(ctx, ref, left[1])
		require.NoError(t, err)
	})
	committed("off", func() { release(t, store, ref) })
	committed("on", func() { acquire(t, store, time.Minute) }) // of a free lock
	n := store.Named()
	for range 2 {
		var ref namedlock.Ref
		committed("on", func() { ref = takeNamed(t, n, namedClaim(lockA, time.Minute)) })
		committed("local", func() {
			_, err := n.Extend(ctx, ref, time.Minute)
			require.NoError(t, err)
		})
		committed("local", func() {
			_, err := n.Release(ctx, ref, true)
			require.NoError(t, err)
		})
	}
	everyCall(t, store.Queue(), func(what string, f func() error) {
		require.NoError(t, f(), what)
		switch noted := commits(); what {
		case "Add", "Capture", "Extend", "Fail", "Release", "Done":
			require.Equal(t, []string{"on"}, noted, what)
		case "Prune": // what is deleted again is of no harm
		default:
			require.Subset(t, []string{"on"}, noted, what)
		}
	})
}
