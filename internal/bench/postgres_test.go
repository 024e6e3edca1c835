package bench

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/postgres"
)

// Through PgBouncer both sides send unnamed statements, which the server parses
// and plans each time. That is for information: it has no target.
func init() {
	for name, start := range map[string]func(*testing.B) *postgresSide{"postgres": direct,
		"pgbouncer": pooled} {
		acquireOn[name] = func(b *testing.B) { postgresAcquire(start(b)) }
		acquireOn[name+"-take-over"] = func(b *testing.B) { postgresTakeOver(start(b)) }
		heartbeatOn[name] = func(b *testing.B) { postgresHeartbeat(start(b)) }
		releaseOn[name] = func(b *testing.B) { postgresRelease(start(b)) }
		lockInfoOn[name] = func(b *testing.B) { postgresLockInfo(start(b)) }
	}
}

// A postgresSide is the store on one database.
type postgresSide struct {
	side
	url    string
	server *postgres.Store
}

func direct(b *testing.B) *postgresSide { return newPostgres(b, durable(b).Database(b)) }

func pooled(b *testing.B) *postgresSide {
	server := durable(b)
	u, err := url.Parse(server.Database(b))
	require.NoError(b, err)
	s := newPostgres(b, pgtest.PgBouncer(b, server).URL(u.Path[1:])+"&default_query_exec_mode=exec")
	require.True(b, s.server.Pooled())
	return s
}

const sqlFullHistory = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms, timeline)
SELECT n, md5(n::text), 4711, 'a-host-name-of-a-usual-length', now(), now(), 'released',
    n + 1, 60000, '00000001'
FROM generate_series(1, 1000) AS n`

// newPostgres has the lock.
func newPostgres(b *testing.B, at string) *postgresSide {
	store := openPostgres(b, at)
	s := &postgresSide{side{b: b, store: store}, at, store}
	// Terms that last for a millisecond leave more dead rows, on both sides, than
	// autovacuum, which comes once a minute, would find in life.
	s.tidy = func() { s.exec(`VACUUM`) }
	s.exec(sqlFullHistory)
	require.NoError(b, s.look())
	require.NoError(b, s.acquire())
	s.exec(`VACUUM ANALYZE`)
	return s
}

func (s *postgresSide) exec(query string) {
	s.b.Helper()
	_, err := s.server.Pool().Exec(s.b.Context(), query)
	require.NoError(s.b, err)
}

// A postgresLimit writes the same rows into tables of the same shape, in the same
// database, on a connection of its own, with prepared statements and none of our
// code. It writes in one round trip, knows everything beforehand and judges
// nothing.
type postgresLimit struct {
	b      *testing.B
	conn   *pgx.Conn
	newest int64 // term
}

const (
	sqlLimitTables = `
CREATE TABLE limit_lock (LIKE scheduler_lock INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE limit_terms (LIKE scheduler_terms INCLUDING ALL);
INSERT INTO limit_lock SELECT * FROM scheduler_lock;
INSERT INTO limit_terms SELECT * FROM scheduler_terms WHERE term <= 1000`

	sqlLimitTerm = `
term AS (
    INSERT INTO limit_terms (term, token, pid, hostname, acquired_at, ttl_ms, timeline)
    VALUES ($1::bigint, $2::text, 4711, 'a-host-name-of-a-usual-length', clock_timestamp(),
        60000, '00000001')
), oldest AS (
    DELETE FROM limit_terms WHERE term = $1 - 1000
)
UPDATE limit_terms
SET next_term = $1, ended_at = coalesce(ended_at, clock_timestamp()),
    end_reason = coalesce(end_reason, 'expired')
WHERE term = $1 - 1`

	sqlLimitLock = `
lock AS (
    INSERT INTO limit_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
                            ttl_ms, renew_deadline_ms, heartbeat_ms, timeline)
    SELECT one.id, 4711, 'a-host-name-of-a-usual-length', clock_timestamp(), clock_timestamp(),
           $2, $1, 0, 'leading', 60000, 45000, 10000, '00000001'
    FROM one
), `

	sqlLimitAcquire  = `WITH one AS (SELECT 1 AS id), ` + sqlLimitLock + sqlLimitTerm
	sqlLimitTakeOver = `WITH one AS (DELETE FROM limit_lock WHERE id = 1 RETURNING id), ` +
		sqlLimitLock + sqlLimitTerm

	sqlLimitRelease = `
WITH gone AS (DELETE FROM limit_lock WHERE id = 1)
UPDATE limit_terms
SET ended_at = clock_timestamp(), end_reason = 'released' WHERE term = $1::bigint`

	sqlLimitHeartbeat = `
UPDATE limit_lock SET beat = beat + 1, heartbeat_at = clock_timestamp() WHERE id = 1`

	// The columns that LockInfo shows.
	sqlLimitInfo = `
SELECT pid, hostname, created_at, heartbeat_at, token, term, beat, state,
       ttl_ms, renew_deadline_ms, heartbeat_ms
FROM limit_lock WHERE id = 1`
)

// limit has a lock row, too.
func (s *postgresSide) limit() *postgresLimit {
	l := &postgresLimit{b: s.b, conn: connect(s.b, s.url), newest: 1000}
	_, err := l.conn.PgConn().Exec(s.b.Context(), sqlLimitTables).ReadAll()
	require.NoError(s.b, err)
	require.NoError(s.b, l.acquire(sqlLimitTakeOver))
	s.exec(`VACUUM ANALYZE`)
	return l
}

// exec runs a statement whose last part changes one row.
func (l *postgresLimit) exec(query string, args ...any) error {
	tag, err := l.conn.Exec(l.b.Context(), query, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows were changed, not 1: %s", tag.RowsAffected(), query)
	}
	return err
}

func (l *postgresLimit) acquire(query string) error {
	l.newest++
	return l.exec(query, l.newest, "0123456789abcdef0123456789abcdef")
}

func (l *postgresLimit) release() error { return l.exec(sqlLimitRelease, l.newest) }

// An acquisition of a lock that was released.
func postgresAcquire(s *postgresSide) {
	l := s.limit()
	compareAfter(s.b, func() error { return errors.Join(s.release(), l.release(), s.look()) },
		s.acquire, func() error { return l.acquire(sqlLimitAcquire) })
}

// An acquisition that ends a holder who was judged dead.
func postgresTakeOver(s *postgresSide) {
	l := s.limit()
	compareAfter(s.b, s.look, s.acquire, func() error { return l.acquire(sqlLimitTakeOver) })
}

// A release also tells the standbys, which the limit does not.
func postgresRelease(s *postgresSide) {
	l := s.limit()
	require.NoError(s.b, errors.Join(s.release(), l.release()))
	compareAfter(s.b, func() error {
		return errors.Join(s.look(), s.acquire(), l.acquire(sqlLimitAcquire))
	}, s.release, l.release)
}

// The limit is one round trip with an UPDATE of one row by its key. Both are
// flushed.
func postgresHeartbeat(s *postgresSide) {
	l := s.limit()
	compare(s.b, s.heartbeat, func() error { return l.exec(sqlLimitHeartbeat) })
}

// The limit is one round trip with a SELECT of one row by its key.
func postgresLockInfo(s *postgresSide) {
	l := s.limit()
	compare(s.b, s.info, func() error {
		var (
			pid, term, beat, ttl, renew, interval int64
			hostname, token, state                string
			created, heartbeat                    time.Time
		)
		return l.conn.QueryRow(s.b.Context(), sqlLimitInfo).
			Scan(&pid, &hostname, &created, &heartbeat, &token, &term, &beat, &state, &ttl, &renew,
				&interval)
	})
}
