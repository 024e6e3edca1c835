package main_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

const sqlFullHistoryOfSQLite = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms, file_id)
SELECT i, printf('%032x', i), 4711, 'a-host-name-of-a-usual-length',
    '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:01.000000Z', 'released', i + 1, 60000,
    'd41d8cd98f00b204e9800998ecf8427e-1234567-1795247612.123456789' FROM n`

func withFullHistory(b *testing.B, name string) *sqlite.Store {
	store := openSQLite(b, filepath.Join(b.TempDir(), name))
	_, err := store.DB().ExecContext(b.Context(), sqlFullHistoryOfSQLite)
	require.NoError(b, err)
	return store
}

func newSQLite(b *testing.B, flushed bool) (*side, limit) {
	store := withFullHistory(b, "app.db")
	s := &side{b: b, store: store}
	b.Cleanup(func() { // its byte of the lease file
		_, err := store.Release(context.Background(), s.ref, driver.EndReleased)
		require.NoError(b, err)
	})
	l := &sqliteLimit{prepare(b, withFullHistory(b, "limit.db")), 1000}
	synchronous := "NORMAL"
	if flushed {
		synchronous = "FULL"
	}
	_, err := l.conn.ExecContext(b.Context(), `PRAGMA synchronous = `+synchronous)
	require.NoError(b, err)
	require.NoError(b, errors.Join(s.look(), s.acquire(), l.acquire()))
	return s, l
}

// A sqliteLimit writes the same rows into tables of the same shape, in another
// file of the same folder, with prepared statements.
type sqliteLimit struct {
	*prepared
	newest int64 // term
}

const (
	limitLock = `
INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
    ttl_ms, renew_deadline_ms, heartbeat_ms, file_id)
VALUES (1, 4711, 'a-host-name-of-a-usual-length', ?1, ?1, ?2, ?3, 0, 'leading', 60000, 45000, 10000,
    'd41d8cd98f00b204e9800998ecf8427e-1234567-1795247612.123456789')`

	limitTerm = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms, file_id)
VALUES (?3, ?2, 4711, 'a-host-name-of-a-usual-length', ?1, 60000,
    'd41d8cd98f00b204e9800998ecf8427e-1234567-1795247612.123456789')`

	limitNext      = `UPDATE scheduler_terms SET next_term = ?1 WHERE term = ?2`
	limitOldest    = `DELETE FROM scheduler_terms WHERE term = ?1`
	limitHeartbeat = `UPDATE scheduler_lock SET beat = beat + 1, heartbeat_at = ?1 WHERE id = 1`
	limitUnlock    = `DELETE FROM scheduler_lock WHERE id = 1`
	limitEnd       = `
UPDATE scheduler_terms SET ended_at = ?1, end_reason = 'released' WHERE term = ?2`
	limitSelect = `
SELECT pid, hostname, created_at, heartbeat_at, token, term, beat, state,
    ttl_ms, renew_deadline_ms, heartbeat_ms
FROM scheduler_lock WHERE id = 1`
)

func (l *sqliteLimit) exec(query string, args ...any) error {
	_, err := l.prepared.exec(query, args...)
	return err
}

const limitStamp = "2026-01-01T00:00:02.000000Z"

func (l *sqliteLimit) acquire() error {
	last := l.newest
	l.newest++
	return errors.Join(
		l.exec(`BEGIN IMMEDIATE`),
		l.exec(limitNext, l.newest, last),
		l.exec(limitLock, limitStamp, "0123456789abcdef0123456789abcdef", l.newest),
		l.exec(limitTerm, limitStamp, "0123456789abcdef0123456789abcdef", l.newest),
		l.exec(limitOldest, l.newest-1000),
		l.exec(`COMMIT`))
}

func (l *sqliteLimit) release() error {
	return errors.Join(
		l.exec(`BEGIN IMMEDIATE`),
		l.exec(limitUnlock),
		l.exec(limitEnd, limitStamp, l.newest),
		l.exec(`COMMIT`))
}

func (l *sqliteLimit) heartbeat() error { return l.exec(limitHeartbeat, limitStamp) }

// info neither asks whether the file is still the one that was opened, nor whether the holder
// lives.
func (l *sqliteLimit) info() error {
	stmt, err := l.stmt(limitSelect)
	if err != nil {
		return err
	}
	return scanInfo[string](stmt.QueryRowContext(l.b.Context()))
}
