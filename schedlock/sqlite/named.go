package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ncruces/go-sqlite3"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Named returns the named locks of the database file. It may be called several
// times. They are judged by the time since the machine was started, so a
// process whose wall clock is wrong neither steals a lock nor keeps its own too
// long; a row from before a restart has no holder, and of its time to rest the
// wall clock decides. Where the system has no such clock (other than Linux) the
// wall clock decides everything.
//
// They use the store's own connection, and no byte of the lease file: the death
// of a holder is known by its TTL.
func (s *Store) Named() namedlock.Store { return &namedStore{s: s, boot: bootNow} }

type namedStore struct {
	s    *Store
	boot func() (ms int64, bootID string)
}

var _ namedlock.Store = (*namedStore)(nil)

// A namedTime is one moment on both clocks, and the first three arguments of
// every statement.
type namedTime struct {
	ms     int64 // decides
	bootID string
	wall   time.Time // is shown
}

func (n *namedStore) now() namedTime {
	ms, bootID := n.boot()
	return namedTime{ms, bootID, n.s.now().UTC()}
}

func (t namedTime) args(more ...any) []any {
	return append([]any{t.ms, t.bootID, formatTime(t.wall)}, more...)
}

// sqlNamedTaken is true for a row that nobody can take. After a restart its
// holder is dead. The time to rest that is left then is that of the wall clock,
// unless that has been set back to before the row was written.
const sqlNamedTaken = `(CASE WHEN l.boot_id = ?2
    THEN l.token IS NOT NULL AND l.expires_ms > ?1 OR l.hold_ms IS NOT NULL AND l.hold_ms > ?1
    ELSE l.hold_until IS NOT NULL AND l.hold_until > ?3 AND l.acquired_at <= ?3 END)`

const (
	sqlNamedTake = `
INSERT INTO named_locks AS l (kind, name, token, term, pid, hostname, acquired_at, expires_at,
                              hold_until, boot_id, expires_ms, hold_ms, ttl_ms, ttl_of)
SELECT ?4, ?5, ?6, term, ?8, ?9, ?3, ?10, ?11, ?2, ?1 + ?12, ?1 + ?13, ?12, term
FROM (SELECT max(coalesce((SELECT term FROM named_locks_floor), 0) + 1, ?7) AS term) WHERE true
ON CONFLICT (kind, name) DO UPDATE
SET token = excluded.token, term = max(l.term + 1, excluded.term),
    pid = excluded.pid, hostname = excluded.hostname, acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at, hold_until = excluded.hold_until,
    boot_id = excluded.boot_id, expires_ms = excluded.expires_ms, hold_ms = excluded.hold_ms,
    ttl_ms = excluded.ttl_ms, ttl_of = max(l.term + 1, excluded.term)
WHERE NOT ` + sqlNamedTaken + `
RETURNING term`

	sqlNamedRows = `
SELECT l.token, l.term, l.pid, l.hostname, l.acquired_at, l.boot_id = ?2,
       l.expires_ms, l.hold_ms, l.hold_until,
       CASE WHEN l.ttl_of = l.term THEN l.ttl_ms END, l.kind, l.name
FROM named_locks l`

	sqlNamedLook = sqlNamedRows + `
WHERE l.kind = ?4 AND l.name = ?5 AND ` + sqlNamedTaken

	sqlNamedList = sqlNamedRows + `
WHERE ` + sqlNamedTaken + ` OR l.token LIKE 'revoked:%'
ORDER BY l.kind, l.name LIMIT ?4`

	// What has more left than its TTL was stamped by a clock that was set back
	// since: it ends a TTL from now, when its holder has ended it long ago.
	sqlNamedMend = `
UPDATE named_locks
SET expires_at = CASE WHEN expires_ms > ?1 + ?7 THEN ?8 ELSE expires_at END,
    expires_ms = min(expires_ms, ?1 + ?7),
    hold_until = CASE WHEN hold_ms > ?1 + ?7 THEN ?8 ELSE hold_until END,
    hold_ms = CASE WHEN hold_ms IS NOT NULL THEN min(hold_ms, ?1 + ?7) END
WHERE kind = ?4 AND name = ?5 AND term = ?6 AND ttl_of = ?6 AND ttl_ms = ?7 AND boot_id = ?2
  AND max(expires_ms, coalesce(hold_ms, 0)) > ?1 + ?7`
)

// Take implements namedlock.Store. A lock that is held is only read.
func (n *namedStore) Take(ctx context.Context,
	c namedlock.Claim) (term int64, holder *namedlock.Row, err error) {
	if holder, err = n.Look(ctx, c.Key); holder != nil || err != nil {
		return 0, n.mend(ctx, holder), err
	}
	err = n.patiently(ctx, func() error {
		return n.s.share(ctx, func(ctx context.Context, tx tx) error {
			term, holder = 0, nil
			now := n.now()
			var hold sql.NullInt64
			var until sql.NullString
			if c.Hold > 0 {
				hold, until = sql.NullInt64{Int64: c.Hold.Milliseconds(),
					Valid: true}, formatOptional(now.wall.Add(c.Hold))
			}
			err := tx.row(ctx, sqlNamedTake, now.args(string(c.Kind),
				c.Name, c.Token.String(), now.wall.UnixMilli(), c.PID, c.Hostname,
				formatTime(now.wall.Add(c.TTL)), until, c.TTL.Milliseconds(), hold), &term)
			if errors.Is(err, sql.ErrNoRows) { // somebody was faster
				holder, err = n.find(ctx, c.Key)
			}
			return err
		})
	})
	if err != nil {
		return 0, nil, err
	}
	return term, holder, nil
}

// mend lets a row of which more is left than its TTL end a TTL from now, and
// returns it as it is then. If it cannot, the next Take tries again.
func (n *namedStore) mend(ctx context.Context, row *namedlock.Row) *namedlock.Row {
	if row == nil || !row.Unsure {
		return row
	}
	_, err := n.update(ctx, func(tx tx) (int64, error) {
		now := n.now()
		return tx.exec(ctx, sqlNamedMend, now.args(string(row.Kind),
			row.Name, row.Term, row.TTL.Milliseconds(),
			formatTime(now.wall.Add(row.TTL)))...)
	})
	if err == nil {
		row.Left, row.Unsure = min(row.Left, row.TTL), false
	}
	return row
}

// Look implements namedlock.Store.
func (n *namedStore) Look(ctx context.Context, key namedlock.Key) (row *namedlock.Row, err error) {
	if err := n.s.files.check(); err != nil {
		return nil, err
	}
	err = n.patiently(ctx, func() error {
		return n.s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
			row, err = n.find(ctx, key)
			return err
		})
	})
	return row, err
}

// find reads the row of a key, nil if it is free; the turn is held.
func (n *namedStore) find(ctx context.Context, key namedlock.Key) (*namedlock.Row, error) {
	now := n.now()
	rows, err := n.rows(ctx, sqlNamedLook, now, now.args(string(key.Kind), key.Name))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// rows reads rows; the turn is held.
func (n *namedStore) rows(ctx context.Context, query string, now namedTime,
	args []any) (found []namedlock.Row, err error) {
	var (
		row             namedlock.Row
		tok             sql.NullString
		acquired, until columns.Time
		sameBoot        bool
		expires         int64
		hold, ttl       sql.NullInt64
	)
	err = n.s.each(ctx, query, args, []any{&tok, &row.Term, &row.PID, &row.Hostname, &acquired,
		&sameBoot, &expires, &hold, &until, &ttl, &row.Kind, &row.Name}, func() error {
		row.Token, _ = driver.ParseToken(tok.String) // an edited one is nobody's
		row.AcquiredAt = acquired.Time
		row.Age = now.wall.Sub(row.AcquiredAt)
		row.Resting = !tok.Valid || !sameBoot
		switch end := expires; {
		case !sameBoot:
			row.Left, row.TTL, row.Unsure = until.Sub(now.wall), 0, false
		default:
			if row.Resting || hold.Int64 > end {
				end = hold.Int64
			}
			row.Left = time.Duration(end-now.ms) * time.Millisecond
			row.TTL = time.Duration(ttl.Int64) * time.Millisecond
			row.Unsure = ttl.Valid && row.Left > row.TTL
		}
		if row.Revoked = namedlock.RevocationOf(tok.String); row.Revoked != nil {
			row.Left, row.Resting = max(row.Left, 0), false
		}
		found = append(found, row)
		return nil
	})
	return found, err
}

// List implements namedlock.Store.
func (n *namedStore) List(ctx context.Context, limit int) (rows []namedlock.Row, err error) {
	err = n.patiently(ctx, func() error {
		return n.s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
			now := n.now()
			rows, err = n.rows(ctx, sqlNamedList, now, now.args(limit))
			return err
		})
	})
	return rows, err
}

const sqlNamedRevoke = `
UPDATE named_locks AS l
SET token = ?7, hold_until = NULL, hold_ms = NULL,
    expires_at = CASE WHEN l.kind = 'timeout' OR l.token IS NULL THEN ?3 ELSE l.expires_at END,
    expires_ms = CASE WHEN l.kind = 'timeout' OR l.token IS NULL THEN ?1 ELSE l.expires_ms END
WHERE l.kind = ?4 AND l.name = ?5 AND l.term = ?6 AND ` + sqlNamedTaken + `
  AND (l.token IS NULL OR l.token NOT LIKE 'revoked:%')`

// Revoke implements namedlock.Store.
func (n *namedStore) Revoke(ctx context.Context, key namedlock.Key, term int64,
	mark string) (bool, error) {
	return n.update(ctx, func(tx tx) (int64, error) {
		return tx.exec(ctx, sqlNamedRevoke, n.now().args(string(key.Kind), key.Name, term, mark)...)
	})
}

// What has expired is never touched, though nobody may have taken it.
const (
	sqlNamedOurs = `
WHERE kind = ?4 AND name = ?5 AND token = ?6
  AND (term = ?7 OR ?7 = 0) AND boot_id = ?2 AND expires_ms > ?1`

	sqlNamedExtend = `
UPDATE named_locks
SET expires_at = ?8, expires_ms = ?1 + ?9, ttl_ms = ?9, ttl_of = term` + sqlNamedOurs

	sqlNamedRelease = `
UPDATE named_locks
SET token = NULL,
    expires_at = CASE WHEN ?8 AND hold_ms > ?1 THEN hold_until ELSE ?3 END,
    expires_ms = CASE WHEN ?8 AND hold_ms > ?1 THEN hold_ms ELSE ?1 END,
    hold_until = CASE WHEN ?8 AND hold_ms > ?1 THEN hold_until END,
    hold_ms = CASE WHEN ?8 AND hold_ms > ?1 THEN hold_ms END` + sqlNamedOurs

	// It writes nothing new, but takes the write lock, which a SELECT does not.
	sqlNamedFence = `
UPDATE named_locks SET token = token` + sqlNamedOurs
)

func ours(now namedTime, ref namedlock.Ref, more ...any) []any {
	return append(now.args(string(ref.Kind), ref.Name, ref.Token.String(), ref.Term), more...)
}

// Extend implements namedlock.Store. It is not flushed to disk: a power cut ends
// all locks.
func (n *namedStore) Extend(ctx context.Context, ref namedlock.Ref,
	ttl time.Duration) (bool, error) {
	return n.update(ctx, func(tx tx) (int64, error) {
		now := n.now()
		return tx.exec(ctx, sqlNamedExtend, ours(now, ref,
			formatTime(now.wall.Add(ttl)), ttl.Milliseconds())...)
	})
}

// Release implements namedlock.Store. It is not flushed to disk either.
func (n *namedStore) Release(ctx context.Context, ref namedlock.Ref, keepHold bool) (bool, error) {
	return n.update(ctx, func(tx tx) (int64, error) {
		return tx.exec(ctx, sqlNamedRelease, ours(n.now(), ref, keepHold)...)
	})
}

// update runs one statement that is a transaction of its own, and tells whether
// it has changed a row.
func (n *namedStore) update(ctx context.Context, do func(tx) (int64,
	error)) (changed bool, err error) {
	err = n.patiently(ctx, func() error {
		changed, err = within(ctx, n.s.lazily, func(_ context.Context, tx tx) (bool, error) {
			affected, err := do(tx)
			return affected > 0, err
		})
		return err
	})
	return changed, err
}

// Fence implements namedlock.Store; tx must be a *sql.Tx.
func (n *namedStore) Fence(ctx context.Context, tx any, ref namedlock.Ref,
	_ time.Duration) (bool, error) {
	if err := n.s.mayWrite(); err != nil {
		return false, n.s.explain(err)
	}
	found, err := n.s.fence(ctx, tx, sqlNamedFence, ours(n.now(), ref)...)
	return found > 0, err
}

const (
	sqlNamedClean = `
DELETE FROM named_locks WHERE (kind, name) IN (
    SELECT l.kind, l.name FROM named_locks l
    WHERE l.expires_at <= ?4 AND NOT ` + sqlNamedTaken + `
    ORDER BY l.expires_at LIMIT ?5
)
RETURNING term`

	sqlNamedFloor = `
INSERT INTO named_locks_floor (id, term) VALUES (1, ?1)
ON CONFLICT (id) DO UPDATE SET term = max(term, excluded.term)`
)

// Clean implements namedlock.Store.
func (n *namedStore) Clean(ctx context.Context, limit int) (int64, error) {
	return within(ctx, n.s.write, func(ctx context.Context, tx tx) (deleted int64, err error) {
		now := n.now()
		var term, highest int64
		args := now.args(formatTime(now.wall.Add(-24*time.Hour)), max(limit, 0))
		err = n.s.each(ctx, sqlNamedClean, args, []any{&term}, func() error {
			highest = max(highest, term)
			deleted++
			return nil
		})
		if err != nil || deleted == 0 {
			return deleted, err
		}
		_, err = tx.exec(ctx, sqlNamedFloor, highest)
		return deleted, err
	})
}

// patiently repeats what failed because another process writes, until ctx
// ends; it gives up after a minute if ctx does not end by itself.
func (n *namedStore) patiently(ctx context.Context, do func() error) error {
	err := do()
	if !is(err, sqlite3.BUSY, sqlite3.LOCKED) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return retryBusy(ctx, do)
}
