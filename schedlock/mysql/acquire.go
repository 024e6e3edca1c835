package mysql

import (
	"context"
	"database/sql"
	"strings"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// keepTerms is how many terms the history keeps.
const keepTerms = 1000

// How an acquisition ended.
const (
	won   = "won"
	moved = "moved" // the database is not as it was judged
	busy  = "busy"  // somebody holds the fence
)

// An acquisition is one block, so that it is one round trip, and goes on to its end if
// its client dies in the middle. Claimants and releases take turns by the one row of
// the fence, which each of them deletes and makes anew: a lock row that was deleted
// could not be locked. Fenced transactions refer to that row, and so keep it.
//
// Each term is above all before. If the server is another one than that of the newest
// term, later ones may be lost: each had the last term + 1 (or what its claimant had
// seen), or the time of a clock in milliseconds. 2^36 of them are more than two years,
// so the new term is above all lost ones, although the clock of this server may lag.
//
// No acquisition reads all of the history: terms that are still open are among the
// newest, as each acquisition ends them, and the old ones go in one of 64, on average.
const sqlAcquire = `
BEGIN NOT ATOMIC
    DECLARE how VARCHAR(10) DEFAULT 'moved';
    DECLARE free, fences, there INTEGER DEFAULT 0;
    DECLARE at DATETIME(6);
    DECLARE last, new_term, since, old BIGINT;
    ` + sqlHoldDeclare + `
    DECLARE here, acquired_on VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    SELECT count(*) INTO free FROM scheduler_fence FOR UPDATE SKIP LOCKED;
    IF NOT free THEN
        SELECT count(*) INTO fences FROM scheduler_fence;
    END IF;
    SET here = ` + sqlServer + `;
    IF free < fences THEN
        SET how = 'busy';
    ELSEIF ? = ` + sqlIncarnation + ` THEN
        -- judged
        IF last IS NOT NULL THEN
            SELECT t.server INTO acquired_on FROM scheduler_terms t ORDER BY t.term DESC LIMIT 1;
            IF acquired_on IS NULL THEN
                SET acquired_on = coalesce(` + sqlOrigin + `, here);
            END IF;
            SET at = UTC_TIMESTAMP(6),
                new_term = greatest(last + 1, ?,
                        timestampdiff(MICROSECOND, '1970-01-01', at) DIV 1000)
                    + CASE WHEN acquired_on <> here THEN 1 << 36 ELSE 0 END;
            ` + sqlHold + `
            DELETE FROM scheduler_fence;
            INSERT INTO scheduler_fence (term, token) VALUES (new_term, ?);
            INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term,
                beat, state, ttl_ms, renew_deadline_ms, heartbeat_ms, server, app, program,
                connection_id, session_lock, session_server, grace_ms, ttl_only)
            VALUES (` + sqlOne + `, ?, ?, at, at, ?, new_term, 0, 'leading', ?, ?, ?, here,
                nullif(?, ''), nullif(?, ''), ` + sqlHolderSession + `);
            SELECT t.term INTO since FROM scheduler_terms t ORDER BY t.term DESC LIMIT 1 OFFSET 4;
            UPDATE scheduler_terms t
            SET t.ended_at = coalesce(t.ended_at, at), t.end_reason = coalesce(t.end_reason, ?),
                t.next_term = CASE WHEN t.term = last THEN new_term ELSE t.next_term END
            WHERE t.term >= coalesce(since, 0) AND (t.ended_at IS NULL OR t.term = last);
            INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms, server,
                app, program)
            SELECT l.term, l.token, l.pid, l.hostname, l.created_at, l.ttl_ms, l.server, l.app,
                l.program
            FROM scheduler_lock l WHERE l.id = 1;
            IF rand() * 64 < 1 THEN
                SELECT t.term INTO old FROM scheduler_terms t
                ORDER BY t.term DESC LIMIT 1 OFFSET ?;
                DELETE FROM scheduler_terms WHERE term <= old;
            END IF;
            SET how = 'won';
        END IF;
    END IF;
    IF how = 'won' THEN COMMIT; ELSE ROLLBACK; END IF;
    SELECT how, new_term, at, name, why;
END`

// What is judged sets last if it is still so.
const (
	// sqlSameSession is whether the row still tells of the session that was judged; a look
	// that did not ask judged none.
	sqlSameSession = `coalesce(l.session_lock, '') = coalesce(nullif(?, ''), l.session_lock, '')`

	// A holder: this row and no other.
	sqlTakeOver = `SELECT l.term INTO last FROM scheduler_lock l
        WHERE l.id = 1 AND l.token = ? AND l.term = ? AND l.beat = ?
          AND ` + sqlSameSession + ` FOR UPDATE;
        IF last IS NOT NULL THEN
            DELETE FROM scheduler_lock WHERE id = 1;
            SELECT greatest(last, coalesce(max(t.term), 0)) INTO last FROM scheduler_terms t;
        END IF;`

	// No row, and the same newest term. Unless the lock was watched for a TTL, that term
	// must have an end, and the lock is free on its server only. It deletes nothing,
	// whatever it finds.
	sqlTakeFree = `SELECT count(*) INTO there FROM scheduler_lock;
        SELECT t.term INTO last FROM scheduler_terms t
        WHERE there = 0 AND t.term = ? AND coalesce(t.next_term, 0) = ?
          AND t.term = (SELECT max(o.term) FROM scheduler_terms o)
          AND (? OR t.ended_at IS NOT NULL AND coalesce(t.server = here, true));`

	// The same for a history without a term. Its server is that of the migrations.
	sqlTakeFirst = `SELECT count(*) INTO there FROM scheduler_lock;
        SELECT 0 INTO last FROM DUAL
        WHERE there = 0 AND NOT EXISTS (SELECT 1 FROM scheduler_terms)
          AND (? OR coalesce(` + sqlOrigin + ` = here, true));`
)

var sqlAcquires = func() (queries [3]string) {
	for i, judged := range []string{sqlTakeOver, sqlTakeFree, sqlTakeFirst} {
		queries[i] = strings.Replace(sqlAcquire, "-- judged", judged, 1)
	}
	return queries
}()

// sqlStill tells a row that was locked from one that has moved.
const sqlStill = `
SELECT EXISTS (SELECT 1 FROM scheduler_lock l
               WHERE l.id = 1 AND l.token = ? AND l.term = ? AND l.beat = ?
                 AND ` + sqlSameSession + `)
       AND ` + sqlIncarnation + ` = ?`

// Acquire implements driver.Store: one round trip, which waits for another transaction
// for a second at most.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn, x *session) error {
		grant, err = s.acquire(ctx, conn, x, c)
		return err
	})
	return grant, err
}

func (s *Store) acquire(ctx context.Context, conn *sql.Conn, x *session,
	c driver.Claim) (grant driver.Grant, err error) {
	var (
		query  string
		judged []any
		held   = c.Expected.Row
	)
	switch newest := c.Expected.Newest; {
	case held != nil:
		query, judged = sqlAcquires[0], []any{held.RawToken, held.Term, held.Beat, held.Session}
	case newest != nil:
		query, judged = sqlAcquires[1], []any{newest.Term, newest.NextTerm, c.Watched}
	default:
		query, judged = sqlAcquires[2], []any{c.Watched}
	}
	args := append([]any{c.Expected.Incarnation}, judged...)
	args = append(args, c.MinTerm)
	args = append(args, s.hold(x, c.Token, c.Grace, c.Timing.TTL)...)
	args = append(args, c.Token.String(), c.PID, text(c.Hostname), c.Token.String(),
		c.Timing.TTL.Milliseconds(), c.Timing.RenewDeadline.Milliseconds(),
		c.Timing.HeartbeatInterval.Milliseconds(), text(c.App.Name), text(c.App.Program),
		string(c.Reason), keepTerms)
	var (
		how       string
		term      *int64
		now       columns.Time
		lock, why sql.NullString
	)
	err = row(ctx, conn, x.on(query), args, &how, &term, &now, &lock, &why)
	switch n := number(err); {
	case n == errDuplicate || undone(err): // another claimant was faster
		return grant, driver.ErrConflict
	case n == errLockTimeout:
		return grant, driver.ErrBlocked
	case err != nil:
		return grant, err
	case how == won && term != nil:
		s.holder.unwatch()
		s.holder = holder{token: c.Token, grace: c.Grace, ttl: c.Timing.TTL, on: s.holder.on}
		return driver.Grant{Term: *term, Now: now.Time, Session: s.seen(x, lock, why)}, nil
	case how == busy && held != nil:
		var still bool
		if err := row(ctx, conn, x.on(sqlStill), append(judged, c.Expected.Incarnation),
			&still); err == nil && still {
			return grant, driver.ErrBlocked
		}
	}
	return grant, driver.ErrConflict
}

// text makes a string one that the tables can keep.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
