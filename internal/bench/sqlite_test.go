package bench

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

func init() {
	acquireOn["sqlite"] = sqliteAcquire
	acquireOn["sqlite-take-over"] = sqliteTakeOver
	heartbeatOn["sqlite"] = sqliteHeartbeat
	releaseOn["sqlite"] = sqliteRelease
	lockInfoOn["sqlite"] = sqliteLockInfo
}

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

// newSQLite has the lock.
func newSQLite(b *testing.B) *side {
	store := withFullHistory(b, "app.db")
	s := &side{b: b, store: store}
	require.NoError(b, s.look())
	require.NoError(b, s.acquire())
	b.Cleanup(func() { // its byte of the lease file
		_, err := store.Release(context.Background(), s.ref, driver.EndReleased)
		require.NoError(b, err)
	})
	return s
}

// A sqliteLimit writes the same rows into tables of the same shape, in another
// file of the same folder, through the same driver, with prepared statements and
// none of our code. It knows everything beforehand and judges nothing.
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
	limitEndNext = `
UPDATE scheduler_terms SET ended_at = ?1, end_reason = 'expired', next_term = ?2 WHERE term = ?3`
	limitSelect = `
SELECT pid, hostname, created_at, heartbeat_at, token, term, beat, state,
    ttl_ms, renew_deadline_ms, heartbeat_ms
FROM scheduler_lock WHERE id = 1`
)

// newSQLiteLimit has a lock row. synchronous is NORMAL for what the store does
// not flush, else FULL.
func newSQLiteLimit(b *testing.B, synchronous string) *sqliteLimit {
	l := &sqliteLimit{prepare(b, withFullHistory(b, "limit.db")), 1000}
	_, err := l.conn.ExecContext(b.Context(), `PRAGMA synchronous = `+synchronous)
	require.NoError(b, err)
	require.NoError(b, l.acquire())
	return l
}

func (l *sqliteLimit) exec(query string, args ...any) error {
	_, err := l.prepared.exec(query, args...)
	return err
}

const limitStamp = "2026-01-01T00:00:02.000000Z"

func (l *sqliteLimit) acquire() error {
	return l.claim(func(last int64) error { return l.exec(limitNext, l.newest, last) })
}

func (l *sqliteLimit) takeOver() error {
	return l.claim(func(last int64) error {
		return errors.Join(l.exec(limitUnlock), l.exec(limitEndNext, limitStamp, l.newest, last))
	})
}

func (l *sqliteLimit) claim(end func(last int64) error) error {
	last := l.newest
	l.newest++
	return errors.Join(
		l.exec(`BEGIN IMMEDIATE`),
		end(last),
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

// An acquisition of a lock that was released.
func sqliteAcquire(b *testing.B) {
	s := newSQLite(b)
	l := newSQLiteLimit(b, "FULL")
	compareAfter(b, func() error {
		return errors.Join(s.release(), l.release(), s.look())
	}, s.acquire, l.acquire)
}

// An acquisition that ends a holder which was judged. Of what release writes
// nothing is left to do: it gives the byte of the lease file back.
func sqliteTakeOver(b *testing.B) {
	s := newSQLite(b)
	l := newSQLiteLimit(b, "FULL")
	var before *driver.Ref
	compareAfter(b, func() error {
		if before != nil {
			if _, err := s.store.Release(b.Context(), *before, driver.EndReleased); err != nil {
				return err
			}
		}
		last := s.ref
		before = &last
		return s.look()
	}, s.takeOver, l.takeOver)
}

func sqliteRelease(b *testing.B) {
	s := newSQLite(b)
	l := newSQLiteLimit(b, "FULL")
	require.NoError(b, errors.Join(s.release(), l.release()))
	compareAfter(b, func() error {
		return errors.Join(s.look(), s.acquire(), l.acquire())
	}, s.release, l.release)
}

// Neither is flushed.
func sqliteHeartbeat(b *testing.B) {
	s := newSQLite(b)
	l := newSQLiteLimit(b, "NORMAL")
	compare(b, s.heartbeat, func() error { return l.exec(limitHeartbeat, limitStamp) })
}

// The limit is a SELECT of the columns that LockInfo shows, of one row by its
// key. It neither asks whether the file is still the one that was opened, nor
// whether the holder lives.
func sqliteLockInfo(b *testing.B) {
	s := newSQLite(b)
	l := newSQLiteLimit(b, "FULL")
	compare(b, s.info, func() error {
		var (
			pid, term, beat, ttl, renew, interval      int64
			hostname, created, heartbeat, token, state string
		)
		stmt, err := l.stmt(limitSelect)
		if err != nil {
			return err
		}
		return stmt.QueryRowContext(b.Context()).Scan(
			&pid, &hostname, &created, &heartbeat, &token, &term, &beat, &state, &ttl, &renew,
			&interval)
	})
}
