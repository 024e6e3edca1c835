package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/postgres"
)

// queue is the database that the suite of queues asks for.
func (s suite) queue(t testing.TB) locktest.QueueDatabase {
	exec(t, s.admin, `DELETE FROM queue_tasks`)
	return locktest.QueueDatabase{
		Open: func(t testing.TB) taskqueue.Store { return s.open(t).Queue() },
		SetBack: func(t testing.TB, d time.Duration) {
			exec(t, s.admin, `UPDATE queue_tasks
				SET visible_at = visible_at + $1 * interval '1 microsecond',
				updated_at = updated_at + $1 * interval '1 microsecond'`, d.Microseconds())
		},
		Begin: s.begin,
	}
}

func TestQueueConformance(t *testing.T) {
	t.Parallel()
	locktest.RunQueue(t, asApp(t).queue)
}

// A capture passes over what another is about to take. If it only looked for the oldest task and
// wrote that it is its own, the second of two would wait for the first, and get the same task.
func TestACaptureThatIsUnderWayIsPassedOver(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	q := open(t, url).Queue()
	addTasks(t, q, 0, "a", "b")
	alice := begin(t, url, pgx.TxOptions{})
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
	sniff := &sniffer{}
	store := configured(t, migrated(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = sniff })
	everyCall(t, store.Queue(), func(what string, f func() error) {
		require.NoError(t, f(), what)
	})
	sniff.mu.Lock()
	defer sniff.mu.Unlock()
	require.Contains(t, sniff.texts, postgres.SQLCaptureTasks(10))
	require.Empty(t, sniff.times)
}

// everyCall calls each method with success.
func everyCall(t testing.TB, q taskqueue.Store, one func(what string, f func() error)) {
	t.Helper()
	var token driver.Token
	some := func(ids []string, err error) error {
		if err == nil && len(ids) == 0 {
			err = errors.New("no task")
		}
		return err
	}
	capture := func() error { token, _ = captureTasks(t, q, time.Hour, 10); return nil }
	one("Add", func() error { return some(q.Add(ctx, "q", 3, []string{"a", "b", "c"})) })
	one("Capture", capture)
	one("Extend", func() error {
		return some(q.Extend(ctx, "q", token, time.Hour, []string{"a", "b", "c"}))
	})
	one("Fail", func() error {
		ended, err := q.Fail(ctx, "q", token, "a", "why", time.Hour)
		require.True(t, ended)
		return err
	})
	one("Release", func() error { return some(q.Release(ctx, "q", token, []string{"b"})) })
	one("Done", func() error { return some(q.Done(ctx, "q", token, []string{"c"})) })
	one("Get", func() error {
		_, found, err := q.Get(ctx, "q", "a")
		require.True(t, found)
		return err
	})
	one("Prune", func() error {
		deleted, err := q.Prune(ctx, "q", 0, 10)
		require.EqualValues(t, 1, deleted)
		return err
	})
	one("Capture of the rest", capture)
	one("Capture of none", func() error {
		_, err := q.Capture(ctx, "q", token, time.Hour, 10)
		require.ErrorIs(t, err, taskqueue.ErrAllHeld)
		return nil
	})
	require.NoError(t, some(q.Done(ctx, "q", token, []string{"b"})))
	_, err := q.Prune(ctx, "q", 0, 10)
	require.NoError(t, err)
}

// A queue of some months: no call reads what has ended, or all that waits.
func TestNothingReadsAllTasks(t *testing.T) {
	missing.Costly(t, "fills tables")
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
	cheap := func(what string, f func() error) {
		flush()
		scansBefore, rowsBefore := read()
		require.NoError(t, f(), what)
		flush()
		scans, rows := read()
		require.Equal(t, scansBefore, scans, "%s reads the whole table", what)
		require.LessOrEqual(t, rows-rowsBefore, most, "rows that %s reads", what)
	}
	everyCall(t, q, cheap)
	exec(t, session(t, url), fmt.Sprintf(sqlMany, `('ready ', 'pending', NULL::timestamptz)`))
	exec(t, session(t, url), `VACUUM ANALYZE queue_tasks`)
	capture := func(limit int) func() error {
		return func() error { captureTasks(t, q, time.Hour, limit); return nil }
	}
	cheap("Capture of those that are ready", capture(10))
	most = 4000
	cheap("Capture of a thousand", capture(1000))
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
	waiting(t, session(t, url), 1)
	_, err = q.AddTx(ctx, tx, "q", 0, []string{"a"})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, <-got)
	require.Equal(t, []string{"c"}, added)
}
