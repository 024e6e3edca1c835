package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Named returns the named locks of the database. It may be called several times. They
// are judged by the server's clock, whatever the clocks of its clients say; one that is
// set forward on the server ends locks early, and then only fences protect.
func (s *Store) Named() namedlock.Store { return namedStore{s} }

type namedStore struct{ s *Store }

const (
	// sqlNamedFree is true for a row l that anybody can take. SYSDATE asks the clock when
	// the row is looked at, which may be after a wait for it.
	sqlNamedFree = `((l.token IS NULL OR l.expires_at <= SYSDATE(6))
      AND (l.hold_until IS NULL OR l.hold_until <= SYSDATE(6)))`

	// sqlNamedColumns are those of columns.Named. The TTL is NULL where code that did not
	// know the column has taken the lock.
	sqlNamedColumns = `l.token, l.term, l.pid, l.hostname, l.acquired_at, l.expires_at,
       l.hold_until, CASE WHEN l.ttl_of = l.term THEN l.ttl_ms END, SYSDATE(6)`

	// sqlNamedNoted is true if the server is the one that was noticed in f. If it was
	// noticed in the future the clock was set back since, and it is noticed anew: nobody
	// waits for longer than a TTL.
	sqlNamedNoted = `coalesce(f.server = ` + sqlServer + `
           AND (f.since IS NULL OR f.since <= SYSDATE(6)), false)`

	// sqlNamedSince is how many ms ago that was: NULL if there was no fail-over.
	sqlNamedSince = `timestampdiff(MICROSECOND, f.since, SYSDATE(6)) DIV 1000`

	sqlNamedLook = `
SELECT ` + sqlNamedNoted + `, ` + sqlNamedSince + `, coalesce(` + sqlNamedFree + `, false),
       ` + sqlNamedColumns + `
FROM (SELECT 1) AS one
LEFT JOIN named_locks_floor f ON f.id = 1
LEFT JOIN named_locks l ON l.kind = ? AND l.name = ?`
)

// A namedLook is what sqlNamedLook reads.
type namedLook struct {
	columns.Named
	noted, free bool
	since       sql.NullInt64
}

func (n namedStore) look(ctx context.Context, key namedlock.Key) (v namedLook, err error) {
	err = n.s.shared.row(ctx, sqlNamedLook, []any{string(key.Kind), key.Name},
		append([]any{&v.noted, &v.since, &v.free}, v.Dest()...)...)
	return v, err
}

// Look implements namedlock.Store.
func (n namedStore) Look(ctx context.Context, key namedlock.Key) (*namedlock.Row, error) {
	v, err := n.look(ctx, key)
	if err != nil {
		return nil, n.s.explain(err)
	}
	return v.AfterFailOver(key, v.free, v.noted, v.since), nil
}

// wait is how long nobody takes the lock after a fail-over.
func (v *namedLook) wait(c namedlock.Claim) time.Duration {
	if !v.since.Valid {
		return 0
	}
	ttl := min(max(c.TTL, columns.Millis(v.TTL.Int64)), namedlock.MaxTTL)
	return ttl - columns.Millis(v.since.Int64)
}

// Take implements namedlock.Store. What is seen to be taken is not touched: to lock its
// row would get into the holder's way.
func (n namedStore) Take(ctx context.Context, c namedlock.Claim) (int64, *namedlock.Row, error) {
	for range 3 {
		v, err := n.look(ctx, c.Key)
		switch {
		case err != nil:
			return 0, nil, n.s.explain(err)
		case !v.noted:
			if err := n.note(ctx); err != nil {
				return 0, nil, n.s.explain(err)
			}
			continue
		case v.Term.Valid && !v.free:
			return 0, n.mend(ctx, v.Row(c.Key)), nil
		case v.wait(c) > 0:
			return 0, columns.FailedOver(c.Key, v.wait(c)), nil
		}
		term, err := n.take(ctx, c, v)
		switch {
		case number(err) == errLockTimeout: // a fenced transaction of its holder has not ended
			if v, err := n.look(ctx, c.Key); err == nil && v.Term.Valid {
				return 0, v.Row(c.Key), nil
			}
			return 0, nil, nil
		case errors.Is(err, errTaken):
			return 0, nil, nil
		}
		return term, nil, n.s.explain(err)
	}
	return 0, nil, nil
}

// errTaken: somebody was faster.
var errTaken = errors.New("the lock was taken meanwhile")

const (
	// It shares the floor, so that nobody cleans up, or notices a fail-over, meanwhile.
	sqlNamedFloor = `
SELECT f.term, ` + sqlNamedNoted + `, ` + sqlNamedSince + `, SYSDATE(6)
FROM named_locks_floor f WHERE f.id = 1 LOCK IN SHARE MODE`

	sqlNamedLock = `
SELECT l.term, ` + sqlNamedFree + ` FROM named_locks l
WHERE l.kind = ? AND l.name = ? FOR UPDATE`

	sqlNamedUnfence = `
DELETE FROM named_locks_fence WHERE kind = ? AND name = ?`

	sqlNamedFence = `
INSERT INTO named_locks_fence (kind, name, term) VALUES (?, ?, ? * ` + sqlOne + `)`

	sqlNamedInsert = `
INSERT INTO named_locks (token, term, pid, hostname, acquired_at, expires_at, hold_until, ttl_ms,
                         ttl_of, kind, name)
VALUES (?, ?, ?, ?, ?, SYSDATE(6) + INTERVAL ? MICROSECOND,
        CASE WHEN ? > 0 THEN SYSDATE(6) + INTERVAL ? MICROSECOND END, ?, ?, ?, ?)`

	sqlNamedReplace = `
UPDATE named_locks
SET token = ?, term = ?, pid = ?, hostname = ?, acquired_at = ?,
    expires_at = SYSDATE(6) + INTERVAL ? MICROSECOND,
    hold_until = CASE WHEN ? > 0 THEN SYSDATE(6) + INTERVAL ? MICROSECOND END,
    ttl_ms = ?, ttl_of = ?
WHERE kind = ? AND name = ?`
)

// take takes a lock that was seen to be free, as v says: its term then counts, too, as it
// may be cleaned up meanwhile.
func (n namedStore) take(ctx context.Context, c namedlock.Claim, v namedLook) (term int64,
	err error) {
	key := []any{string(c.Kind), c.Name}
	err = n.s.patient.write(ctx, func(ctx context.Context, tx tx) error {
		var (
			floor int64
			row   sql.NullInt64
			free  bool
			now   columns.Time
		)
		err := tx.row(ctx, sqlNamedFloor, nil, &floor, &v.noted, &v.since, &now)
		if err != nil {
			return err
		}
		err = tx.row(ctx, sqlNamedLock, key, &row, &free)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if row.Valid && !free || !v.noted || v.wait(c) > 0 {
			return errTaken
		}
		if _, err := tx.exec(ctx, sqlNamedUnfence, key...); err != nil {
			return err
		}
		term = max(v.Term.Int64+1, row.Int64+1, floor+1, now.UnixMilli())
		ttl, hold := c.TTL.Microseconds(), c.Hold.Microseconds()
		args := append([]any{c.Token.String(), term, c.PID, text(c.Hostname),
			formatTime(now.Time), ttl, hold, hold, c.TTL.Milliseconds(), term}, key...)
		if row.Valid {
			_, err = tx.exec(ctx, sqlNamedReplace, args...)
		} else {
			var isNew bool
			if _, isNew, err = tx.insert(ctx, sqlNamedInsert, args...); err == nil && !isNew {
				err = errTaken
			}
		}
		if err == nil {
			_, err = tx.exec(ctx, sqlNamedFence, append(key, term)...)
		}
		return err
	})
	return term, err
}

const sqlNamedList = `
SELECT l.kind, l.name, ` + sqlNamedColumns + ` FROM named_locks l
WHERE NOT ` + sqlNamedFree + ` OR l.token LIKE 'revoked:%'
ORDER BY l.kind, l.name LIMIT ?`

// List implements namedlock.Store.
func (n namedStore) List(ctx context.Context, limit int) ([]namedlock.Row, error) {
	var (
		kind, name string
		r          columns.Named
	)
	return all(ctx, n.s, n.s.shared, append([]any{&kind, &name}, r.Dest()...),
		func() namedlock.Row {
			return *r.Row(namedlock.Key{Kind: namedlock.Kind(kind), Name: name})
		}, sqlNamedList, max(limit, 0))
}

// What has expired is never touched, though nobody may have taken it. MariaDB sets the
// columns from left to right: what others depend on comes last.
const (
	sqlNamedOurs = `
l.kind = ? AND l.name = ? AND l.token = ? AND ? IN (l.term, 0) AND l.expires_at > SYSDATE(6)`

	sqlNamedExtend = `
UPDATE named_locks l
SET l.expires_at = SYSDATE(6) + INTERVAL ? * 1000 * ` + sqlOne + ` MICROSECOND, l.ttl_ms = ?,
    l.ttl_of = l.term
WHERE ` + sqlNamedOurs

	sqlNamedRelease = `
UPDATE named_locks l
SET l.expires_at = greatest(SYSDATE(6), coalesce(CASE WHEN ? THEN l.hold_until END, SYSDATE(6))),
    l.hold_until = CASE WHEN ? AND l.hold_until > SYSDATE(6) THEN l.hold_until END,
    l.token = NULL
WHERE ` + sqlNamedOurs

	// A fenced transaction of the holder is no obstacle, and may still commit, as nobody
	// takes the lock before it ends.
	sqlNamedRevoke = `
UPDATE named_locks l
SET l.expires_at = CASE WHEN l.kind = 'timeout' OR l.token IS NULL THEN SYSDATE(6)
                        ELSE l.expires_at END,
    l.hold_until = NULL, l.token = ?
WHERE l.kind = ? AND l.name = ? AND l.term = ? AND NOT ` + sqlNamedFree + `
  AND (l.token IS NULL OR l.token NOT LIKE 'revoked:%')`
)

// ours are the arguments of sqlNamedOurs, after those given.
func ours(ref namedlock.Ref, first ...any) []any {
	return append(first, string(ref.Kind), ref.Name, ref.Token.String(), ref.Term)
}

// Extend implements namedlock.Store.
func (n namedStore) Extend(ctx context.Context, ref namedlock.Ref,
	ttl time.Duration) (bool, error) {
	return n.changed(ctx, sqlNamedExtend, ours(ref, ttl.Milliseconds(), ttl.Milliseconds()))
}

// Release implements namedlock.Store.
func (n namedStore) Release(ctx context.Context, ref namedlock.Ref, keepHold bool) (bool, error) {
	return n.changed(ctx, sqlNamedRelease, ours(ref, keepHold, keepHold))
}

// Revoke implements namedlock.Store.
func (n namedStore) Revoke(ctx context.Context, key namedlock.Key, term int64,
	mark string) (bool, error) {
	return n.changed(ctx, sqlNamedRevoke, []any{mark, string(key.Kind), key.Name, term})
}

// changed runs a statement that changes a row, and tells whether it has.
func (n namedStore) changed(ctx context.Context, query string, args []any) (bool, error) {
	found, err := n.s.shared.exec(ctx, query, args...)
	return found > 0, n.s.explain(err)
}

const (
	sqlNamedRefer = `
SET STATEMENT innodb_lock_wait_timeout = 1, foreign_key_checks = 1 FOR
INSERT INTO %s.named_locks_fenced (kind, name, term) VALUES (?, ?, if(@@in_transaction, ?, NULL))`

	sqlNamedForget = `
DELETE FROM %s.named_locks_fenced WHERE id = ?`

	sqlNamedHeld = `
SELECT EXISTS (SELECT 1 FROM named_locks l WHERE ` + sqlNamedOurs + `)`
)

// Fence implements namedlock.Store, as [Store.Fence]. The server ends the transaction
// after the app's own idle_transaction_timeout, not after ttl.
func (n namedStore) Fence(ctx context.Context, t any, ref namedlock.Ref,
	_ time.Duration) (held bool, err error) {
	err = n.s.fenced(t, func(t tx) error {
		if beyondASCII(ref.Name) {
			if err := t.takes(ctx, ref.Name); err != nil {
				return err
			}
		}
		err := n.s.refer(ctx, t, sqlNamedRefer, sqlNamedForget, string(ref.Kind), ref.Name,
			ref.Term)
		if err != nil {
			return err
		}
		return n.s.shared.row(ctx, sqlNamedHeld, ours(ref), &held)
	})
	if errors.Is(err, driver.ErrLost) {
		return false, nil
	}
	return held && err == nil, err
}

const (
	sqlNamedShutFloor = `
SELECT f.term FROM named_locks_floor f WHERE f.id = 1 FOR UPDATE`

	// A row that somebody is just taking is left.
	sqlNamedOld = `
SELECT l.kind, l.name, l.term FROM named_locks l
WHERE l.expires_at <= SYSDATE(6) - INTERVAL 1 DAY AND ` + sqlNamedFree + `
ORDER BY l.expires_at LIMIT ? FOR UPDATE SKIP LOCKED`

	// A fence that a transaction of an app keeps is not among these.
	sqlNamedUnfenced = `
SELECT count(*) FROM named_locks_fence WHERE kind = ? AND name = ? FOR UPDATE SKIP LOCKED`

	sqlNamedFences = `
SELECT count(*) FROM named_locks_fence WHERE kind = ? AND name = ?`

	sqlNamedDelete = `
DELETE FROM named_locks WHERE kind = ? AND name = ?`

	sqlNamedRaise = `
UPDATE named_locks_floor SET term = greatest(term, ?) WHERE id = 1`
)

// fenced reports whether a transaction of an app keeps the fence of a named lock.
func (t tx) fenced(ctx context.Context, kind, name string) (bool, error) {
	var free, all int
	err := t.row(ctx, sqlNamedUnfenced, []any{kind, name}, &free)
	if err == nil && free == 0 {
		err = t.row(ctx, sqlNamedFences, []any{kind, name}, &all)
	}
	return free < all, err
}

// Clean implements namedlock.Store. It raises the floor in the same transaction, so that
// no term is granted twice. Nobody takes a lock meanwhile, so it waits for no app itself; it may
// wait for who takes one.
func (n namedStore) Clean(ctx context.Context, limit int) (deleted int64, err error) {
	type row struct {
		kind, name string
		term       int64
	}
	err = n.s.patient.write(ctx, func(ctx context.Context, tx tx) error {
		var (
			highest int64
			r       row
		)
		if err := tx.row(ctx, sqlNamedShutFloor, nil, &highest); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, sqlNamedOld, max(limit, 0))
		old, err := columns.All(rows, err, []any{&r.kind, &r.name, &r.term},
			func() row { return r })
		if err != nil {
			return err
		}
		deleted = 0
		for _, r := range old {
			if fenced, err := tx.fenced(ctx, r.kind, r.name); err != nil {
				return err
			} else if fenced {
				continue
			}
			for _, query := range []string{sqlNamedUnfence, sqlNamedDelete} {
				if _, err := tx.exec(ctx, query, r.kind, r.name); err != nil {
					return err
				}
			}
			highest = max(highest, r.term)
			deleted++
		}
		_, err = tx.exec(ctx, sqlNamedRaise, highest)
		return err
	})
	if err != nil {
		return 0, n.s.explain(err)
	}
	return deleted, nil
}

// sqlNamedNote notices a fail-over, once, whoever is the first. The terms that were lost
// are above those that are known, or above the clock, by less than two years (2^36 ms)
// and as many acquisitions: so those that follow are above both.
const sqlNamedNote = `
UPDATE named_locks_floor f
SET f.term = CASE WHEN f.server <=> ` + sqlServer + ` THEN f.term ELSE
        greatest(f.term, coalesce((SELECT max(l.term) FROM named_locks l), 0),
                 timestampdiff(MICROSECOND, '1970-01-01', SYSDATE(6)) DIV 1000) + (1 << 36) END,
    f.since = SYSDATE(6), f.server = ` + sqlServer + `
WHERE f.id = 1 AND (NOT f.server <=> ` + sqlServer + ` OR f.since > SYSDATE(6))`

const sqlNamedFloorExists = `SELECT EXISTS (SELECT 1 FROM named_locks_floor WHERE id = 1)`

func (n namedStore) note(ctx context.Context) error {
	found, err := n.s.shared.exec(ctx, sqlNamedNote)
	if number(err) == errLockTimeout || undone(err) || found > 0 { // another does it
		return nil
	}
	if err != nil {
		return err
	}
	var exists bool
	if err := n.s.shared.row(ctx, sqlNamedFloorExists, nil, &exists); err != nil || exists {
		return err
	}
	return fmt.Errorf("%w: %s: table named_locks_floor has lost its row: "+
		"if no named lock is held, INSERT INTO named_locks_floor (id, term) "+
		"SELECT 1, coalesce(max(term), 0) FROM named_locks", driver.ErrPermanent, n.s.name())
}

// sqlNamedMend lets a row end a TTL from now of which more is left than that: its holder
// has written it before now, so its own clock ends it before.
const sqlNamedMend = `
UPDATE named_locks l
SET l.expires_at = least(l.expires_at, SYSDATE(6) + INTERVAL ? * 1000 MICROSECOND),
    l.hold_until = least(l.hold_until, SYSDATE(6) + INTERVAL ? * 1000 MICROSECOND)
WHERE l.kind = ? AND l.name = ? AND l.term = ? AND l.ttl_of = l.term AND l.ttl_ms = ?
  AND greatest(l.expires_at, coalesce(l.hold_until, l.expires_at))
      > SYSDATE(6) + INTERVAL ? * 1000 MICROSECOND`

// mend does that, if the row needs it, and returns the row as it is then. If it cannot,
// the next Take tries again.
func (n namedStore) mend(ctx context.Context, row *namedlock.Row) *namedlock.Row {
	if !row.Unsure {
		return row
	}
	ttl := row.TTL.Milliseconds()
	_, err := n.s.shared.exec(ctx, sqlNamedMend, ttl, ttl, string(row.Kind), row.Name, row.Term,
		ttl, ttl)
	if err == nil {
		row.Left, row.Unsure = min(row.Left, row.TTL), false
	}
	return row
}
