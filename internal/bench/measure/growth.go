//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

// growth is what operations take on databases of several sizes, in turns.
type growth struct {
	DB    string
	Sizes []history
	N     int        // rounds
	Ops   []string   // in the order of the table
	Took  [][]sample // by operation, then size
	Beats beats
}

// A history is how much a database remembers.
type history struct{ Terms, Runs int }

// growth leaves MariaDB out.
func (m *measurer) growth(ctx context.Context) error {
	for _, db := range []string{dbSQLite, dbPostgres} {
		g := growth{DB: db, Sizes: []history{{1, 1000}, {1000, 1000}, {1, 1_000_000}},
			N: m.rounds(150)}
		if m.quick {
			g.Sizes = []history{{1, 10}, {10, 10}, {1, 1000}}
		}
		err := m.on(db, func(string) error {
			err := m.grow(ctx, &g)
			m.report.Growth = append(m.report.Growth, g)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *measurer) grow(ctx context.Context, g *growth) error {
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	for _, size := range g.Sizes {
		dsn, err := m.newDatabase(g.DB)
		if err != nil {
			return err
		}
		s, err := newSubject(ctx, dsn, size)
		if err != nil {
			return err
		}
		subjects = append(subjects, s)
	}
	for _, op := range subjects[0].operations(ctx) {
		g.Ops = append(g.Ops, op.name)
		g.Took = append(g.Took, make([]sample, len(subjects)))
	}
	for round := range g.N {
		for i := range subjects { // another one comes first each time
			i = (i + round) % len(subjects)
			for n, op := range subjects[i].operations(ctx) {
				begin := time.Now()
				if err := op.do(); err != nil {
					return fmt.Errorf("%s: %w", op.name, err)
				}
				g.Took[n][i] = append(g.Took[n][i], time.Since(begin))
			}
			if err := subjects[i].trim(ctx); err != nil {
				return err
			}
		}
	}
	for _, sizes := range g.Took {
		for _, s := range sizes {
			slices.Sort(s)
		}
	}
	var err error
	g.Beats, err = manyBeats(ctx, subjects[0], m.rounds(10_000))
	return err
}

// A subject is a database of one size, with a leader.
type subject struct {
	kept  history
	store metered
	lock  *schedlock.Lock
	lease *schedlock.Lease
	tick  time.Time // the newest of the job whose runs are measured
}

// firstTick is newer than all runs that were put into the table.
var firstTick = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const sqlRuns = `
INSERT INTO scheduler_runs
    (job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt)
`

const (
	sqliteRuns = sqlRuns + `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
SELECT CASE WHEN i %% 2 = 0 THEN 'j' ELSE 'job ' || i %% 100 END,
    strftime('%%Y-%%m-%%dT%%H:%%M:%%S', 1600000000 + i, 'unixepoch') || '.000000Z',
    '2025-01-01T00:00:00.000000Z', '2025-01-01T00:00:01.000000Z', 'done', 1, 1, 'h', 1 FROM n`
	postgresRuns = sqlRuns + `
SELECT CASE WHEN i %% 2 = 0 THEN 'j' ELSE 'job ' || i %% 100 END, to_timestamp(1600000000 + i),
    now(), now(), 'done', 1, 1, 'h', 1
FROM generate_series(1, %d) i`

	sqliteTerms = `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO scheduler_terms
    (term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms)
SELECT i, printf('%%032x', i), 1, 'h', '2025-01-01T00:00:00.000000Z',
    '2025-01-01T00:00:01.000000Z', 'released', i + 1, 60000 FROM n`
	postgresTerms = `
INSERT INTO scheduler_terms
    (term, token, pid, hostname, acquired_at, ended_at, end_reason, next_term, ttl_ms)
SELECT i, md5(i::text), 1, 'h', now(), now(), 'released', i + 1, 60000
FROM generate_series(1, %d) i`

	// sqlOneTerm keeps the history of terms at one.
	sqlOneTerm = `DELETE FROM scheduler_terms WHERE term < (SELECT max(term) FROM scheduler_terms)`
)

func newSubject(ctx context.Context, dsn string, size history) (*subject, error) {
	store, err := openStore(ctx, dsn, &meter{}, false)
	if err != nil {
		return nil, err
	}
	s := &subject{kept: size, store: store}
	statements := []string{fmt.Sprintf(sqliteRuns, size.Runs), fmt.Sprintf(sqliteTerms, size.Terms),
		"ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"}
	if isPostgres(dsn) {
		statements = []string{fmt.Sprintf(postgresRuns, size.Runs),
			fmt.Sprintf(postgresTerms, size.Terms), "VACUUM ANALYZE", "CHECKPOINT"}
	}
	for _, q := range statements {
		if err := s.exec(ctx, q); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(q), err)
		}
	}
	s.lock, err = schedlock.New(store, schedlock.WithLogger(quiet),
		schedlock.WithTTL(driver.MaxTTL), schedlock.WithHeartbeatInterval(6*time.Hour))
	if err != nil {
		return nil, err
	}
	s.lease, err = s.lock.Acquire(ctx)
	return s, err
}

func (s *subject) exec(ctx context.Context, query string) (err error) {
	switch store := s.store.fullStore.(type) {
	case *sqlite.Store:
		_, err = store.DB().ExecContext(ctx, query)
	case *postgres.Store:
		_, err = store.Pool().Exec(ctx, query)
	}
	return err
}

func (s *subject) close() {
	if s.lease != nil {
		_ = s.lease.Release(context.Background())
	}
	_ = s.store.Close()
}

// trim keeps the history of terms at one, if it was so short.
func (s *subject) trim(ctx context.Context) error {
	if s.kept.Terms > 1 {
		return nil
	}
	return s.exec(ctx, sqlOneTerm)
}

// An operation is one whose cost may grow.
type operation struct {
	name string
	do   func() error
}

// operations are all of them, in the order in which they are done.
func (s *subject) operations(ctx context.Context) []operation {
	return []operation{
		{"GetLockInfo", func() error {
			_, err := schedlock.GetLockInfo(ctx, s.store)
			return err
		}},
		{"heartbeat", func() error { return s.lease.Heartbeat(ctx) }},
		{"release", func() error { return s.lease.Release(ctx) }},
		{"acquire (look and take)", func() (err error) {
			s.lease, err = s.lock.Acquire(ctx)
			return err
		}},
		{"start and end of a run", func() error { return s.run(ctx) }},
		{"newest 30 runs", func() error { _, err := s.store.Runs(ctx, "", 30); return err }},
		{"newest 30 runs of a job", func() error {
			_, err := s.store.Runs(ctx, "j", 30)
			return err
		}},
		{"all jobs with statistics", func() error { _, err := s.store.Jobs(ctx); return err }},
		{"requests and pauses", func() error { _, err := s.store.Pending(ctx); return err }},
		{"runs owed an attempt", func() error { _, err := s.store.Retries(ctx); return err }},
	}
}

func (s *subject) run(ctx context.Context) error {
	next := firstTick
	if !s.tick.IsZero() { // else the job has no row yet
		next = s.tick.Add(time.Second)
	}
	run, _, err := s.store.Decide(ctx, s.lease.Ref(), ledger.Decision{Job: "measured",
		Spec: "every 1s offset 0s", From: s.tick, To: next, Start: next})
	if err != nil {
		return err
	}
	s.tick = next
	_, err = s.store.Finish(ctx, run, ledger.End{Status: ledger.Done, Took: time.Millisecond})
	return err
}

// beats are many heartbeats, without and with a reader that never ends its
// transaction: how large what they write to becomes.
type beats struct {
	P50   time.Duration
	Sizes [4]written // before, after so many, after as many with a reader, after it has ended
}

// written is what heartbeats write to.
type written struct {
	log  int64 // the WAL (SQLite), the table (PostgreSQL)
	file int64 // SQLite: the database file
}

func manyBeats(ctx context.Context, s *subject, n int) (b beats, err error) {
	var took []time.Duration
	beat := func(n int, into *written) error {
		for range n {
			begin := time.Now()
			if err := s.lease.Heartbeat(ctx); err != nil {
				return err
			}
			took = append(took, time.Since(begin))
		}
		return s.size(ctx, into)
	}
	if err := errors.Join(beat(0, &b.Sizes[0]), beat(n, &b.Sizes[1])); err != nil {
		return b, err
	}
	end, err := s.read(ctx)
	if err != nil {
		return b, err
	}
	err = beat(n, &b.Sizes[2])
	end()
	err = errors.Join(err, beat(n/10, &b.Sizes[3]))
	b.P50 = newSample(took).p50()
	return b, err
}

// size reads how large it is by now.
func (s *subject) size(ctx context.Context, w *written) error {
	if store, ok := s.store.fullStore.(*sqlite.Store); ok {
		w.file, w.log = fileSize(store.Path()), fileSize(store.Path()+"-wal")
		return nil
	}
	return s.store.fullStore.(*postgres.Store).Pool().QueryRow(ctx,
		`SELECT pg_total_relation_size('scheduler_lock')`).Scan(&w.log)
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// read begins a transaction that has read something, and keeps it.
func (s *subject) read(ctx context.Context) (end func(), err error) {
	const sqlSome = `SELECT count(*) FROM scheduler_lock`
	var n int
	if store, ok := s.store.fullStore.(*postgres.Store); ok {
		tx, err := store.Pool().Begin(ctx)
		if err != nil {
			return nil, err
		}
		end = func() { _ = tx.Rollback(ctx) }
		if _, err = tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`); err == nil {
			err = tx.QueryRow(ctx, sqlSome).Scan(&n)
		}
		return end, err
	}
	conn, err := s.store.fullStore.(*sqlite.Store).DB().Conn(ctx)
	if err != nil {
		return nil, err
	}
	end = func() { _, _ = conn.ExecContext(ctx, `ROLLBACK`); _ = conn.Close() }
	if _, err = conn.ExecContext(ctx, `BEGIN DEFERRED`); err == nil {
		err = conn.QueryRowContext(ctx, sqlSome).Scan(&n)
	}
	return end, err
}
