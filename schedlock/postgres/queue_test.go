package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/tasks/queue"
)

// queueDatabase is what the suite asks for: url is how the replicas come to it,
// admin a session of the test, whose URL is direct.
func queueDatabase(t testing.TB, admin *pgx.Conn, direct, url string) locktest.QueueDatabase {
	exec(t, admin, `DELETE FROM queue_tasks`)
	return locktest.QueueDatabase{
		Open: func(t testing.TB) taskqueue.Store { return open(t, url).Queue() },
		SetBack: func(t testing.TB, d time.Duration) {
			exec(t, admin, `UPDATE queue_tasks
				SET visible_at = visible_at + $1 * interval '1 microsecond',
				updated_at = updated_at + $1 * interval '1 microsecond'`, d.Microseconds())
		},
		Begin: func(t testing.TB) locktest.Tx {
			tx, err := session(t, direct).Begin(ctx)
			require.NoError(t, err)
			return locktest.Tx{Tx: tx, Commit: func() error {
				return tx.Commit(ctx)
			}, Rollback: func() error { return tx.Rollback(ctx) }}
		},
	}
}

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	admin, open := session(t, url), reopened(t, url)
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		d := queueDatabase(t, admin, url, url)
		d.Open = func(t testing.TB) taskqueue.Store { return open(t).Queue() }
		return d
	})
}

func TestQueueConformanceThroughAPooler(t *testing.T) {
	t.Parallel()
	missing.OnlyFull(t, "tries the rules once more")
	server := pgtest.Shared(t)
	direct := server.Database(t)
	url := pgtest.PgBouncer(t, server).URL(databaseName(t, direct))
	migrate(t, url)
	admin := session(t, direct)
	locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
		return queueDatabase(t, admin, direct, url+"&default_query_exec_mode=exec")
	})
}

func addTasks(t testing.TB, q taskqueue.Store, retries int, ids ...string) {
	t.Helper()
	added, err := q.Add(ctx, "q", retries, ids)
	require.NoError(t, err)
	require.Len(t, added, len(ids))
}

func captureTasks(t testing.TB, q taskqueue.Store, hold time.Duration,
	limit int) (driver.Token, []string) {
	t.Helper()
	token := driver.NewToken()
	tasks, err := q.Capture(ctx, "q", token, hold, limit)
	require.NoError(t, err)
	var ids []string
	for _, task := range tasks {
		ids = append(ids, task.ID)
	}
	return token, ids
}

// The naive way looks for the oldest task and writes that it is ours, even in
// one statement: the second of two waits for the first, and then gets the same
// task, since what it looked for was fixed before it waited. Ours passes over
// what another is about to take.
func TestTheNaiveWayGivesATaskToTwoWorkersAndOursDoesNot(t *testing.T) {
	t.Parallel()
	const sqlNaive = `
UPDATE queue_tasks SET state = 'in_progress', token = $1, visible_at = now() + interval '1 hour'
WHERE id = (SELECT id FROM queue_tasks WHERE queue = 'q' AND state = 'pending' ORDER BY seq LIMIT 1)
RETURNING id`
	url := migrated(t)
	q := open(t, url).Queue()
	addTasks(t, q, 0, "a", "b")
	var forAlice, forBob string
	alice, bob := begin(t, url, pgx.TxOptions{}), session(t, url)
	require.NoError(t, alice.QueryRow(ctx, sqlNaive, "alice").Scan(&forAlice))
	got := make(chan error, 1)
	go func() { got <- bob.QueryRow(ctx, sqlNaive, "bob").Scan(&forBob) }()
	watcher := session(t, url)
	eventually(t, "bob waits for alice", func() bool {
		return value[int](t, watcher, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	require.NoError(t, alice.Commit(ctx))
	require.NoError(t, <-got)
	require.Equal(t, "a", forAlice)
	require.Equal(t, "a", forBob, "the naive way")

	exec(t, watcher, `TRUNCATE queue_tasks`)
	addTasks(t, q, 0, "a", "b")
	alice = begin(t, url, pgx.TxOptions{})
	rows, err := alice.Query(ctx, postgres.SQLCaptureTasks(1), "q", "alice",
		time.Hour.Microseconds(), "")
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		return fmt.Sprint(values[2]), err
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids)
	_, ids = captureTasks(t, q, time.Hour, 1) // while the other has not committed
	require.Equal(t, []string{"b"}, ids)
	_, err = q.Capture(ctx, "q", driver.NewToken(), time.Hour, 1)
	require.ErrorIs(t, err, taskqueue.ErrAllHeld)
	require.NoError(t, alice.Commit(ctx))
	_, err = q.Capture(ctx, "q", driver.NewToken(), time.Hour, 1)
	require.ErrorIs(t, err, taskqueue.ErrAllHeld)
}

// A sniffer sees what is sent.
type sniffer struct {
	mu    sync.Mutex
	texts []string
	times []string
}

func (s *sniffer) TraceQueryStart(ctx context.Context, _ *pgx.Conn,
	data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts = append(s.texts, data.SQL)
	for _, arg := range data.Args {
		switch arg.(type) {
		case time.Time, *time.Time, pgtype.Timestamptz, pgtype.Timestamp:
			s.times = append(s.times, fmt.Sprintf("%v in %s", arg, data.SQL))
		}
	}
	return ctx
}

func (s *sniffer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A worker whose clock is wrong by an hour can do no harm: its clock is never
// sent, only how long.
func TestNoTimeOfAWorkerIsSent(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	sniff := &sniffer{}
	config.ConnConfig.Tracer = sniff
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer pool.Close()
	store, err := postgres.Use(pool, silent).Open(ctx)
	require.NoError(t, err)
	defer store.Close()
	everyCall(t, store.Queue(), func(_ string, f func()) { f() })
	sniff.mu.Lock()
	defer sniff.mu.Unlock()
	require.Contains(t, sniff.texts, postgres.SQLCaptureTasks(10))
	require.Empty(t, sniff.times)
}

// everyCall calls each method with success.
func everyCall(t testing.TB, q taskqueue.Store, one func(what string, f func())) {
	t.Helper()
	var (
		token driver.Token
		err   error
	)
	some := func(ids []string, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NotEmpty(t, ids)
	}
	one("Add", func() { some(q.Add(ctx, "q", 3, []string{"a", "b", "c"})) })
	one("Capture", func() { token, _ = captureTasks(t, q, time.Hour, 10) })
	one("Extend", func() { some(q.Extend(ctx, "q", token, time.Hour, []string{"a", "b", "c"})) })
	one("Fail", func() {
		var ended bool
		ended, err = q.Fail(ctx, "q", token, "a", "why", time.Hour)
		require.NoError(t, err)
		require.True(t, ended)
	})
	one("Release", func() { some(q.Release(ctx, "q", token, []string{"b"})) })
	one("Done", func() { some(q.Done(ctx, "q", token, []string{"c"})) })
	one("Get", func() {
		_, found, err := q.Get(ctx, "q", "a")
		require.NoError(t, err)
		require.True(t, found)
	})
	one("Prune", func() {
		deleted, err := q.Prune(ctx, "q", 0, 10)
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted)
	})
	one("Capture of the rest", func() { token, _ = captureTasks(t, q, time.Hour, 10) })
	one("Capture of none", func() {
		_, err := q.Capture(ctx, "q", token, time.Hour, 10)
		require.ErrorIs(t, err, taskqueue.ErrAllHeld)
	})
	some(q.Done(ctx, "q", token, []string{"b"}))
	_, err = q.Prune(ctx, "q", 0, 10)
	require.NoError(t, err)
}

func TestEachCallOfAQueueIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	trips, url := countTrips(t, direct)
	store := open(t, url)
	q := store.Queue()
	defer store.HoldMending("q")() // it is a round trip of its own, once a second
	for _, round := range []string{"what is prepared once", "counted"} {
		exec(t, session(t, direct), `TRUNCATE queue_tasks`)
		everyCall(t, q, func(what string, f func()) {
			if n := trips.during(f); round == "counted" {
				require.Equal(t, 1, n, what)
			}
		})
	}
}

func TestWhatAQueueCommitsIsDurable(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	exec(t, conn, `
		CREATE TABLE commits (synchronous_commit text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO commits VALUES (current_setting('synchronous_commit'));
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON queue_tasks
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();`)
	exec(t, conn, `ALTER DATABASE `+databaseName(t, url)+` SET synchronous_commit = off`)
	everyCall(t, open(t, url).Queue(), func(what string, f func()) {
		exec(t, conn, `TRUNCATE commits`)
		f()
		require.Zero(t, value[int](t, conn,
			`SELECT count(*) FROM commits WHERE synchronous_commit <> 'on'`), what)
		switch what {
		case "Add", "Capture", "Extend", "Fail", "Release", "Done":
			require.NotZero(t, value[int](t, conn, `SELECT count(*) FROM commits`), what)
		}
	})
}

// A queue of some months: no call reads what has ended, or all that waits.
func TestNothingReadsAllTasks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	pool, q := store.Pool(), store.Queue()
	defer store.HoldMending("q")() // it reads what is held, in 1 % of the time
	const sqlMany = `
INSERT INTO queue_tasks (queue, id, state, retries_left, token, visible_at, created_at, updated_at)
SELECT 'q', s.name || n, s.state, 3, CASE s.state WHEN 'in_progress' THEN 't' END, s.visible_at,
    now(), now() + CASE WHEN s.visible_at IS NULL THEN interval '1 day' ELSE '0' END
FROM generate_series(1, 10000) AS n CROSS JOIN (VALUES %s) AS s (name, state, visible_at)`
	exec(t, session(t, url), fmt.Sprintf(sqlMany, `
		('done ', 'done', NULL), ('done, too ', 'done', NULL), ('failed ', 'failed', NULL),
		('held ', 'in_progress', now() + interval '1 day'),
		('delayed ', 'pending', now() + interval '1 day')`))
	exec(t, session(t, url), `VACUUM ANALYZE queue_tasks`)
	read := func() (scans, rows int) {
		conn := session(t, url)
		exec(t, conn, `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, conn.QueryRow(ctx, `
SELECT t.seq_scan, t.seq_tup_read +
    (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relname = 'queue_tasks')
FROM pg_stat_user_tables t WHERE t.relname = 'queue_tasks'`).Scan(&scans, &rows))
		return scans, rows
	}
	flush := func() {
		_, err := pool.Exec(ctx, `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, err)
		_, err = pool.Exec(ctx, `SELECT 1`)
		require.NoError(t, err)
	}
	most := 200
	cheap := func(what string, f func()) {
		flush()
		scansBefore, rowsBefore := read()
		f()
		flush()
		scans, rows := read()
		require.Equal(t, scansBefore, scans, "%s reads the whole table", what)
		require.LessOrEqual(t, rows-rowsBefore, most, "rows that %s reads", what)
	}
	everyCall(t, q, cheap)
	exec(t, session(t, url), fmt.Sprintf(sqlMany, `('ready ', 'pending', NULL::timestamptz)`))
	exec(t, session(t, url), `VACUUM ANALYZE queue_tasks`)
	cheap("Capture of those that are ready", func() { captureTasks(t, q, time.Hour, 10) })
	most = 4000
	cheap("Capture of a thousand", func() { captureTasks(t, q, time.Hour, 1000) })
}

// What looks for a step of the clock reads what is held, and not what has ended.
func TestTheLookForAStepOfTheClockReadsNoEndedTask(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	exec(t, conn, `
INSERT INTO queue_tasks (queue, id, state, retries_left, token, visible_at, created_at, updated_at)
SELECT CASE WHEN n % 100 = 0 THEN 'q' ELSE 'other' END, s.state || n, s.state, n % 3,
    CASE s.state WHEN 'in_progress' THEN 't' END, s.visible_at, now(), now()
FROM generate_series(1, 10000) AS n CROSS JOIN (VALUES
    ('done', NULL), ('failed', NULL),
    ('in_progress', now() + interval '1 day'), ('pending', now() + interval '1 day')
) AS s (state, visible_at)`)
	exec(t, conn, `VACUUM ANALYZE queue_tasks`)
	rows, err := conn.Query(ctx, `EXPLAIN (ANALYZE, TIMING OFF) `+postgres.SQLMendTasks, "q")
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	plan := strings.Join(lines, "\n")
	require.NotContains(t, plan, "Seq Scan on queue_tasks", plan)
	require.Contains(t, plan, "queue_tasks_waiting", plan)
	require.Contains(t, plan, "queue_tasks_last", plan)
}

// The server's clock is set back by an hour, while one worker is dead and another
// lives.
func TestAServerWhoseClockIsSetBackKeepsNoTaskForLonger(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	url := migrated(t)
	conn := session(t, url)
	setClock(t, conn, 0)
	queues := func(store *postgres.Store, timeout time.Duration) *queue.Queues {
		q, err := queue.New(store.Queue(), queue.WithTimeout(timeout))
		require.NoError(t, err)
		return q
	}
	var log syncBuffer
	store := open(t, url, postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	_, err := queues(store, timeout).Add(ctx, "q", 1, "dead", "alive")
	require.NoError(t, err)
	dead, err := queues(store, timeout).Capture(ctx, "q", 1)
	require.NoError(t, err)
	alive, err := queues(store, time.Hour).Capture(ctx, "q", 1)
	require.NoError(t, err)
	setClock(t, conn, -time.Hour)
	next := queues(open(t, url, postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))),
		timeout)
	var got []*queue.Task
	for began := time.Now(); got == nil; time.Sleep(20 * time.Millisecond) {
		for _, q := range []*queue.Queues{next, queues(store, timeout)} {
			tasks, err := q.Capture(ctx, "q", 2)
			if err == nil {
				got = tasks
				break
			}
			require.ErrorIs(t, err, taskqueue.ErrAllHeld)
		}
		require.Less(t, time.Since(began), patience+timeout)
	}
	require.Len(t, got, 1)
	require.Equal(t, "dead", got[0].ID)
	require.Zero(t, dead[0].Left(), "two have it")
	require.Contains(t, log.String(), "the server's clock was set back")
	require.NoError(t, queues(store, time.Hour).Extend(ctx, alive...))
	require.NoError(t, queues(store, time.Hour).Done(ctx, alive...))
}

// A task added by a transaction of either kind.
func TestTasksAreAddedInEitherKindOfTransaction(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	q := open(t, url).Queue()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	for id, commit := range map[string]bool{"a": true, "b": false} {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		require.NoError(t, err)
		added, err := q.AddTx(ctx, tx, "q", 1, []string{id})
		require.NoError(t, err)
		require.Equal(t, []string{id}, added)
		_, found, err := q.Get(ctx, "q", id)
		require.NoError(t, err)
		require.False(t, found, "before the commit")
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		_, found, err = q.Get(ctx, "q", id)
		require.NoError(t, err)
		require.Equal(t, commit, found)
	}
}

// Two lists in opposite orders wait for each other, until the server ends one.
func TestListsInAnyOrderAreAdded(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	// Whoever has waited for so long looks for a deadlock, once, and is ended.
	exec(t, session(t, url), `ALTER DATABASE `+databaseName(t, url)+` SET deadlock_timeout = '2s'`)
	q := open(t, url).Queue()
	tx := begin(t, url, pgx.TxOptions{})
	_, err := tx.Exec(ctx, `SET LOCAL deadlock_timeout = '1min'`) // the list is ended, not this
	require.NoError(t, err)
	_, err = q.AddTx(ctx, tx, "q", 0, []string{"b"})
	require.NoError(t, err)
	got := make(chan error, 1)
	var added []string
	go func() {
		var err error
		added, err = q.Add(ctx, "q", 0, []string{"a", "b", "c"})
		got <- err
	}()
	watcher := session(t, url)
	eventually(t, "the list waits for b", func() bool {
		return value[int](t, watcher, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	_, err = q.AddTx(ctx, tx, "q", 0, []string{"a"})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, <-got)
	require.Equal(t, []string{"c"}, added)
}
