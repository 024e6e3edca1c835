package main_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const sqlFullHistory = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms, timeline)
SELECT n, md5(n::text), 4711, 'a-host-name-of-a-usual-length', now(), now(), 'released',
    n + 1, 60000, '00000001'
FROM generate_series(1, 1000) AS n`

func newPostgres(b *testing.B, _ bool) (*side, limit) {
	url := durable(b).Database(b)
	store := openPostgres(b, url)
	exec := onPostgres(b, store)
	// Terms that last for a millisecond leave more dead rows, on both sides, than
	// autovacuum, which comes once a minute, would find in life.
	s := &side{b: b, store: store, tidy: func() { exec("", `VACUUM`) }}
	exec("", sqlFullHistory)
	l := &postgresLimit{b: b, conn: connect(b, url), newest: 1000}
	_, err := l.conn.PgConn().Exec(b.Context(), sqlLimitTables).ReadAll()
	require.NoError(b, err)
	require.NoError(b, errors.Join(s.look(), s.acquire(), l.acquire()))
	exec("", `VACUUM ANALYZE`)
	return s, l
}

// A postgresLimit writes the same rows into tables of the same shape, in the same
// database, on a connection of its own, with prepared statements, in one round trip.
type postgresLimit struct {
	b      *testing.B
	conn   *pgx.Conn
	newest int64 // term
}

const (
	sqlLimitTables = `
CREATE TABLE limit_lock (LIKE scheduler_lock INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE limit_terms (LIKE scheduler_terms INCLUDING ALL);
INSERT INTO limit_terms SELECT * FROM scheduler_terms`

	sqlLimitAcquire = `
WITH lock AS (
    INSERT INTO limit_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
                            ttl_ms, renew_deadline_ms, heartbeat_ms, timeline)
    VALUES (1, 4711, 'a-host-name-of-a-usual-length', clock_timestamp(), clock_timestamp(),
        $2, $1, 0, 'leading', 60000, 45000, 10000, '00000001')
), term AS (
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

// exec runs a statement whose last part changes one row.
func (l *postgresLimit) exec(query string, args ...any) error {
	tag, err := l.conn.Exec(l.b.Context(), query, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows were changed, not 1: %s", tag.RowsAffected(), query)
	}
	return err
}

func (l *postgresLimit) acquire() error {
	l.newest++
	return l.exec(sqlLimitAcquire, l.newest, "0123456789abcdef0123456789abcdef")
}

// A release of the store also tells the standbys.
func (l *postgresLimit) release() error { return l.exec(sqlLimitRelease, l.newest) }

func (l *postgresLimit) heartbeat() error { return l.exec(sqlLimitHeartbeat) }

func (l *postgresLimit) info() error {
	return scanInfo[time.Time](l.conn.QueryRow(l.b.Context(), sqlLimitInfo))
}
