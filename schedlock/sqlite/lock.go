package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// keepTerms is how many terms of history stay.
const keepTerms = 1000

// Each reads the lock row and the newest term, in one statement.
const (
	lookColumns = columns.LockColumns + `, l.file_id,
       ` + columns.TermColumns + `, t.file_id`

	sqlLook = `
SELECT ` + lookColumns + `
FROM scheduler_terms t
LEFT JOIN scheduler_lock l ON l.id = 1
ORDER BY t.term DESC LIMIT 1`

	// For an empty history, of which sqlLook finds no row. It takes a quarter
	// longer.
	sqlLookWithoutHistory = `
SELECT ` + lookColumns + `
FROM (SELECT 1)
LEFT JOIN scheduler_lock l ON l.id = 1
LEFT JOIN scheduler_terms t ON t.term = (SELECT max(term) FROM scheduler_terms)`
)

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (view driver.Snapshot, err error) {
	if err := s.files.check(); err != nil {
		return view, err
	}
	var (
		l               columns.Lock
		t               columns.Term
		rowFile, ofTerm sql.NullString
	)
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		dest := slices.Concat(l.Dest(), []any{&rowFile}, t.Dest(), []any{&ofTerm})
		err := s.row(ctx, sqlLook, dest...)
		if errors.Is(err, sql.ErrNoRows) {
			err = s.row(ctx, sqlLookWithoutHistory, dest...)
		}
		if err != nil {
			return err
		}
		view.Now = s.now().UTC()
		view.Row, view.Newest = l.Row(), t.Newest()
		s.settleBytes(view.Row)
		return nil
	})
	if err != nil {
		return driver.Snapshot{}, err
	}
	s.probe(ctx, &view, rowFile.String, ofTerm.String)
	s.sayUnproven(view.Row, rowFile.String)
	return view, nil
}

// The statements of an acquisition, in their order.
const (
	sqlDeleteJudged = `
DELETE FROM scheduler_lock WHERE id = 1 AND token = ?1 AND term = ?2 AND beat = ?3`

	sqlNewest = `
SELECT (SELECT max(term) FROM scheduler_terms),
       (SELECT ended_at IS NULL FROM scheduler_terms ORDER BY term DESC LIMIT 1),
       (SELECT count(*) FROM scheduler_terms),
       EXISTS (SELECT 1 FROM scheduler_lock)`

	// The newest is the only term that can be open: each acquisition ends the one
	// before, also that of a holder whose row was deleted by hand.
	sqlEndNewest = `
UPDATE scheduler_terms
SET ended_at = coalesce(ended_at, ?1), end_reason = coalesce(end_reason, ?2),
    next_term = coalesce(next_term, ?3),
    ended_file_id = CASE WHEN ended_at IS NULL THEN ?5 ELSE ended_file_id END
WHERE term = ?4`

	sqlInsertLock = `
INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat, state,
                            ttl_ms, renew_deadline_ms, heartbeat_ms, file_id,
                            app, program)
VALUES (1, ?1, ?2, ?3, ?3, ?4, ?5, 0, 'leading', ?6, ?7, ?8, ?9, nullif(?10, ''), nullif(?11, ''))`

	sqlInsertTerm = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms, file_id, app, program)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, nullif(?8, ''), nullif(?9, ''))`

	// Reads no more than it deletes.
	sqlTrimTerms = `
DELETE FROM scheduler_terms
WHERE term < (SELECT term FROM scheduler_terms ORDER BY term LIMIT 1 OFFSET ?1)`
)

// Acquire implements driver.Store.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	complete := false // all but the commit
	err = s.write(ctx, func(ctx context.Context, tx tx) error {
		now := s.now().UTC()
		newest, terms, err := s.deleteJudged(ctx, tx, c.Expected)
		if err != nil {
			return err
		}
		fileID, endedFileID, err := s.holdByte(ctx, c)
		if err != nil {
			return err
		}
		last := newest
		if row := c.Expected.Row; row != nil {
			last = max(last, row.Term)
		}
		grant = driver.Grant{Term: max(last+1, c.MinTerm, now.UnixMilli()), Now: now}
		stamp, token := formatTime(now), c.Token.String()
		if _, err := tx.exec(ctx, sqlEndNewest, stamp, string(c.Reason), grant.Term, newest,
			endedFileID); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, sqlInsertLock, c.PID, c.Hostname, stamp, token, grant.Term,
			c.Timing.TTL.Milliseconds(), c.Timing.RenewDeadline.Milliseconds(),
			c.Timing.HeartbeatInterval.Milliseconds(), fileID,
			c.App.Name, c.App.Program); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, sqlInsertTerm, grant.Term, token, c.PID, c.Hostname, stamp,
			c.Timing.TTL.Milliseconds(), fileID,
			c.App.Name, c.App.Program); err != nil {
			return err
		}
		if terms++; terms > keepTerms {
			_, err = tx.exec(ctx, sqlTrimTerms, terms-keepTerms)
		}
		complete = err == nil
		return err
	})
	switch {
	case err == nil:
	case complete:
		s.doubt(c.Token)
		select {
		case <-s.closed: // meanwhile: Close may have settled before there was a doubt
			s.settleBytes(nil)
		default:
		}
	default:
		s.dropByte(c.Token) // rolled back
	}
	return grant, err
}

// deleteJudged deletes the row that was judged and no other, or makes sure that
// there is none still. It returns the newest term of the history, and how many
// there are.
func (s *Store) deleteJudged(ctx context.Context, tx tx,
	judged driver.Snapshot) (newest, terms int64, err error) {
	if row := judged.Row; row != nil {
		n, err := tx.exec(ctx, sqlDeleteJudged, row.RawToken, row.Term, row.Beat)
		if err != nil {
			return 0, 0, err
		}
		if n == 0 {
			return 0, 0, driver.ErrConflict
		}
	}
	var last, open, count, held sql.NullInt64
	if err := s.row(ctx, sqlNewest, &last, &open, &count, &held); err != nil {
		return 0, 0, err
	}
	var known int64
	reopened := false
	if judged.Newest != nil {
		known, reopened = judged.Newest.Term, !judged.Newest.Open() && open.Int64 != 0
	}
	if held.Int64 != 0 || judged.Row == nil && (last.Int64 != known || reopened) {
		return 0, 0, driver.ErrConflict
	}
	return last.Int64, count.Int64, nil
}

// Heartbeats are scoped to token and term: they never touch another's row.
const (
	// Almost every heartbeat is this one. To return a column would take SQLite
	// half as long again.
	sqlHeartbeatLeading = `
UPDATE scheduler_lock SET beat = beat + 1, heartbeat_at = ?1
WHERE id = 1 AND token = ?2 AND term = ?3 AND state = 'leading'`

	sqlHeartbeat = `
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = ?1, state = CASE state WHEN 'revoked' THEN state ELSE ?2 END
WHERE id = 1 AND token = ?3 AND term = ?4
RETURNING state`
)

// Heartbeat implements driver.Store. It is not flushed to disk: a beat that
// a power cut takes with it is one that the holder did not survive either.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (beat driver.Renewal, err error) {
	if err := s.mayLead(ref.Token); err != nil {
		return beat, err
	}
	err = s.use(ctx, func(ctx context.Context, _ *sql.Conn) error {
		if err := s.setDurable(ctx, false); err != nil {
			return err
		}
		tx, token := tx{s}, ref.Token.String() // each statement is a transaction of its own
		beat = driver.Renewal{State: driver.StateLeading, Now: s.now().UTC()}
		stamp := formatTime(beat.Now)
		if state == driver.StateLeading {
			if n, err := tx.exec(ctx, sqlHeartbeatLeading, stamp, token, ref.Term); err != nil ||
				n > 0 {
				return err
			}
			// Revoked, or not ours.
		}
		var found string
		err := tx.row(ctx, sqlHeartbeat, []any{stamp, string(state), token, ref.Term}, &found)
		if errors.Is(err, sql.ErrNoRows) {
			return heldBy(0, nil)
		}
		beat.State = driver.State(found)
		return err
	})
	if err == nil {
		err = s.mayLead(ref.Token) // a beat that others do not see is none
	}
	return beat, s.explain(err)
}

const (
	sqlRelease = `
DELETE FROM scheduler_lock WHERE id = 1 AND pid = ?1 AND hostname = ?2 AND token = ?3 AND term = ?4`

	sqlEndTerm = `
UPDATE scheduler_terms SET ended_at = ?1, end_reason = ?2, ended_file_id = ?5
WHERE term = ?3 AND token = ?4 AND ended_at IS NULL`
)

// Release implements driver.Store.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	// A power cut may bring the row back: then the TTL, or a proof of death, decides.
	err = s.writeDurably(ctx, false, func(ctx context.Context, tx tx) error {
		n, err := tx.exec(ctx, sqlRelease, ref.PID, ref.Hostname, ref.Token.String(), ref.Term)
		if err != nil {
			return err
		}
		deleted = n > 0
		_, err = tx.exec(ctx, sqlEndTerm, formatTime(s.now()), string(reason), ref.Term,
			ref.Token.String(), s.heldFile(ref.Token))
		return err
	})
	if changed := (*FileChangedError)(nil); err != nil && !errors.As(err, &changed) {
		s.endByte(ref.Token)
		return false, err
	}
	s.dropByte(ref.Token) // the row is gone, or was not ours, or went with its file
	return deleted, nil
}

const sqlTerms = `
SELECT ` + columns.TermColumns + `
FROM scheduler_terms t ORDER BY t.term DESC LIMIT ?1`

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	var t columns.Term
	rows, err := s.db.QueryContext(ctx, sqlTerms, max(limit, 0)) // SQLite takes -1 for no limit
	terms, err := columns.All(rows, err, t.Dest(), t.Value)
	return terms, s.explain(err)
}

// sqlFence writes nothing new, but it takes the write lock, which a SELECT
// does not: until the transaction ends nobody can take over.
const sqlFence = `
UPDATE scheduler_lock SET beat = beat WHERE id = 1 AND token = ?1 AND term = ?2`

// Fence implements driver.Store; tx must be a *sql.Tx.
func (s *Store) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	if err := s.mayLead(ref.Token); err != nil {
		return err
	}
	return heldBy(s.fence(ctx, tx, sqlFence, ref.Token.String(), ref.Term))
}

// fence runs a statement in a caller's transaction, and returns how many rows it has found.
func (s *Store) fence(ctx context.Context, tx any, query string,
	args ...any) (found int64, err error) {
	t, ok := tx.(*sql.Tx)
	if !ok || t == nil {
		return 0, fmt.Errorf("%w: it is a %T, not a *sql.Tx", driver.ErrNoFence, tx)
	}
	res, err := t.ExecContext(ctx, query, args...)
	if err == nil {
		found, err = res.RowsAffected()
	}
	if err != nil && strings.Contains(err.Error(), "no such table: ") {
		return 0, fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	}
	return found, s.explain(err)
}

func heldBy(n int64, err error) error {
	if err == nil && n == 0 {
		return fmt.Errorf("%w: the lock row does not bear this lease's token any more",
			driver.ErrLost)
	}
	return err
}
