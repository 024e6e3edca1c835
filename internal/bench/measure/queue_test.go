package main_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// A rawTasks writes what the store writes, into a table of the same shape, by
// the key, on a connection of its own, with prepared statements and none of our
// code: it chooses nothing.
type rawTasks struct {
	sqlAdd, sqlTake, sqlEnd string
	exec                    func(query string, args ...any) (changed int64, err error)
}

func (r *rawTasks) changes(want int, query string, args ...any) error {
	n, err := r.exec(query, args...)
	if err == nil && n != int64(want) {
		err = fmt.Errorf("%d rows were changed, not %d: %s", n, want, query)
	}
	return err
}

// add adds tasks first, first + 1, …
func (r *rawTasks) add(first, n int) error { return r.changes(n, r.sqlAdd, first, n) }

// take writes that they are in progress, in one statement.
func (r *rawTasks) take(first, n int) error {
	return r.changes(n, r.sqlTake, taskID(first), taskID(first+n-1))
}

// end writes that they are done.
func (r *rawTasks) end(first, n int) error {
	return r.changes(n, r.sqlEnd, taskID(first), taskID(first+n-1))
}

func taskID(n int) string { return fmt.Sprintf("task-%012d", n) }

// A taskDatabase is a database whose queues are measured.
type taskDatabase struct {
	store func() taskqueue.Store // another handle
	raw   func() *rawTasks       // another connection, to a table that they share
	exec  func(sqlite, postgres string)
}

var taskDatabases = map[string]func(b *testing.B) taskDatabase{
	"sqlite": func(b *testing.B) taskDatabase {
		path, limit := filepath.Join(b.TempDir(), "app.db"), filepath.Join(b.TempDir(), "limit.db")
		return taskDatabase{
			store: func() taskqueue.Store { return openSQLite(b, path).Queue() },
			raw: func() *rawTasks {
				return &rawTasks{sqlRawAdd, sqlRawTake, sqlRawEnd,
					prepare(b, openSQLite(b, limit)).exec}
			},
			exec: onSQLite(b, openSQLite(b, path)),
		}
	},
	"postgres": func(b *testing.B) taskDatabase {
		url := durable(b).Database(b)
		exec := onPostgres(b, openPostgres(b, url))
		exec("", `CREATE TABLE limit_tasks (LIKE queue_tasks INCLUDING ALL)
			WITH (autovacuum_vacuum_scale_factor = 0.02)`)
		return taskDatabase{
			store: func() taskqueue.Store { return openPostgres(b, url).Queue() },
			raw: func() *rawTasks {
				conn := connect(b, url)
				return &rawTasks{sqlLimitAddTasks, sqlLimitTake, sqlLimitEndTasks,
					func(query string, args ...any) (int64, error) {
						tag, err := conn.Exec(b.Context(), query, args...)
						return tag.RowsAffected(), err
					}}
			},
			exec: exec,
		}
	},
}

const (
	sqlRawAdd = `
WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + ?2 - 1)
INSERT INTO queue_tasks (queue, id, state, retries_left, created_at, updated_at)
SELECT 'q', printf('task-%012d', i), 'pending', 3,
    '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z' FROM n`

	sqlRawTake = `
UPDATE queue_tasks
SET state = 'in_progress', token = '0123456789abcdef0123456789abcdef', attempts = attempts + 1,
    boot_id = 'dc1c6842-2355-4d1d-87f3-637599c70f97', visible_ms = 1795247612,
    visible_at = '2026-01-01T00:01:00.000000Z', updated_at = '2026-01-01T00:00:00.000000Z'
WHERE queue = 'q' AND id BETWEEN ?1 AND ?2`

	sqlRawEnd = `
UPDATE queue_tasks
SET state = 'done', boot_id = NULL, visible_ms = NULL, visible_at = NULL,
    updated_at = '2026-01-01T00:00:00.000000Z'
WHERE queue = 'q' AND id BETWEEN ?1 AND ?2`
)

const (
	sqlLimitAddTasks = `
INSERT INTO limit_tasks (queue, id, state, retries_left, created_at, updated_at)
SELECT 'q', 'task-' || lpad(n::text, 12, '0'), 'pending', 3, clock_timestamp(), clock_timestamp()
FROM generate_series($1::bigint, $1 + $2::bigint - 1) AS n`

	sqlLimitTake = `
UPDATE limit_tasks
SET state = 'in_progress', token = '0123456789abcdef0123456789abcdef', attempts = attempts + 1,
    visible_at = clock_timestamp() + interval '1 minute', updated_at = clock_timestamp()
WHERE queue = 'q' AND id BETWEEN $1 AND $2`

	sqlLimitEndTasks = `
UPDATE limit_tasks SET state = 'done', visible_at = NULL, updated_at = clock_timestamp()
WHERE queue = 'q' AND id BETWEEN $1 AND $2`
)

// stocked is how many tasks lie in a queue at least.
const stocked = 5000

// A taskSide is both sides of a comparison: they go through the same numbers of
// tasks.
type taskSide struct {
	b     *testing.B
	db    taskDatabase
	store taskqueue.Store
	raw   *rawTasks
	token driver.Token
	ids   []string // what was captured last
	next  int      // number of the next raw task
	added int
	begun int // captured
}

func newTaskSide(b *testing.B, open func(*testing.B) taskDatabase) *taskSide {
	db := open(b)
	s := &taskSide{b: b, db: db, store: db.store(), raw: db.raw()}
	require.NoError(b, s.stock())
	db.exec(`ANALYZE`, `VACUUM ANALYZE`)
	return s
}

// stock sees to it that the next n can be captured, on both sides.
func (s *taskSide) stock() error {
	if s.added-s.begun >= stocked && s.added-s.next >= stocked {
		return nil
	}
	first := s.added
	s.added += 2 * stocked
	ids := make([]string, 0, 2*stocked)
	for i := first; i < s.added; i++ {
		ids = append(ids, taskID(i))
	}
	_, err := s.store.Add(s.b.Context(), "q", 3, ids)
	return errors.Join(err, s.raw.add(first, len(ids)))
}

func (s *taskSide) capture(n int) error {
	s.token = driver.NewToken()
	tasks, err := s.store.Capture(s.b.Context(), "q", s.token, time.Minute, n)
	s.ids = s.ids[:0]
	for _, t := range tasks {
		s.ids = append(s.ids, t.ID)
	}
	s.begun += len(tasks)
	if err == nil && len(tasks) != n {
		err = fmt.Errorf("%d tasks were captured, not %d", len(tasks), n)
	}
	return err
}

func (s *taskSide) done() error {
	done, err := s.store.Done(s.b.Context(), "q", s.token, s.ids)
	if err == nil && len(done) != len(s.ids) {
		err = fmt.Errorf("%d tasks were done, not %d", len(done), len(s.ids))
	}
	return err
}

func (s *taskSide) take(n int) error {
	s.next += n
	return s.raw.take(s.next-n, n)
}

func (s *taskSide) end(n int) error { return s.raw.end(s.next-n, n) }

// BenchmarkQueue compares one call, of one task or of a hundred, with one UPDATE
// that writes the same rows by their key, as durably: a capture also chooses
// them. "both" is a task's whole life after Add: a capture and a Done, and two
// UPDATEs. tasks-s is how many of them one worker does in a second, which does
// nothing else, and updates-s how many rows the raw UPDATEs write.
func BenchmarkQueue(b *testing.B) {
	for _, name := range []string{"sqlite", "postgres"} {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/capture-%d", name, n), func(b *testing.B) {
				s := newTaskSide(b, taskDatabases[name])
				compareAfter(b, s.stock, func() error {
					return s.capture(n)
				}, func() error { return s.take(n) })
			})
			b.Run(fmt.Sprintf("%s/done-%d", name, n), func(b *testing.B) {
				s := newTaskSide(b, taskDatabases[name])
				compareAfter(b, func() error {
					return errors.Join(s.stock(), s.capture(n), s.take(n))
				}, s.done, func() error { return s.end(n) })
			})
			b.Run(fmt.Sprintf("%s/both-%d", name, n), func(b *testing.B) {
				s := newTaskSide(b, taskDatabases[name])
				var op, limit time.Duration
				var rounds int
				compareAfter(b, s.stock, func() error {
					begin := time.Now()
					err := errors.Join(s.capture(n), s.done())
					op, rounds = op+time.Since(begin), rounds+1
					return err
				}, func() error {
					begin := time.Now()
					err := errors.Join(s.take(n), s.end(n))
					limit += time.Since(begin)
					return err
				})
				b.ReportMetric(float64(n*rounds)/op.Seconds(), "tasks-s")
				b.ReportMetric(float64(2*n*rounds)/limit.Seconds(), "updates-s")
			})
		}
	}
}

// BenchmarkQueueMillion compares a capture from a queue with a million tasks
// that are done to one from a queue with none: here x-limit should be 1.
func BenchmarkQueueMillion(b *testing.B) {
	for _, name := range []string{"sqlite", "postgres"} {
		b.Run(name, func(b *testing.B) {
			full, empty := newTaskSide(b, taskDatabases[name]), newTaskSide(b, taskDatabases[name])
			full.db.exec(`
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
INSERT INTO queue_tasks (queue, id, state, retries_left, attempts, created_at, updated_at)
SELECT 'q', 'done ' || i, 'done', 3, 1,
    '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z' FROM n`, `
INSERT INTO queue_tasks (queue, id, state, retries_left, attempts, created_at, updated_at)
SELECT 'q', 'done ' || i, 'done', 3, 1, now(), now() FROM generate_series(1, 1000000) AS i`)
			full.db.exec(`ANALYZE`, `VACUUM ANALYZE`)
			compareAfter(b, func() error { return errors.Join(full.stock(), empty.stock()) },
				func() error { return full.capture(1) }, func() error { return empty.capture(1) })
		})
	}
}

// BenchmarkQueueWorkers lets eight workers, each with connections of its own,
// work off a queue for three seconds, and then eight connections write rows by
// their key. tasks-s are done in a second, updates-s written, one a transaction;
// a task takes two.
func BenchmarkQueueWorkers(b *testing.B) {
	const workers, length = 8, 3 * time.Second
	for _, name := range []string{"sqlite", "postgres"} {
		for _, n := range []int{1, 10} {
			b.Run(fmt.Sprintf("%s/batches-of-%d", name, n), func(b *testing.B) {
				s := newTaskSide(b, taskDatabases[name])
				for s.added < 120_000 {
					s.begun, s.next = s.added, s.added // stock adds more
					require.NoError(b, s.stock())
				}
				s.db.exec(`ANALYZE`, `VACUUM ANALYZE`)
				var tasks, updates, busy atomic.Int64
				race := func(do func(worker int) error) {
					var wg sync.WaitGroup
					end := time.Now().Add(length)
					for i := range workers {
						wg.Go(func() {
							for time.Now().Before(end) {
								if err := do(i); err != nil {
									busy.Add(1)
								}
							}
						})
					}
					wg.Wait()
				}
				sides := make([]taskSide, workers)
				for i := range sides {
					sides[i] = taskSide{b: b, db: s.db, store: s.db.store(), raw: s.db.raw(),
						next: i * 120_000 / workers}
				}
				race(func(i int) error {
					err := errors.Join(sides[i].capture(n), sides[i].done())
					if err == nil {
						tasks.Add(int64(n))
					}
					return err
				})
				race(func(i int) error {
					err := sides[i].take(1)
					if err == nil {
						updates.Add(1)
					}
					return err
				})
				b.ReportMetric(float64(tasks.Load())/length.Seconds(), "tasks-s")
				b.ReportMetric(float64(updates.Load())/length.Seconds(), "updates-s")
				b.ReportMetric(float64(busy.Load()), "errors")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
