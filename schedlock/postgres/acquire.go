package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock/driver"
)

// sqlJump is by how much a term is above what it would be without a fail-over,
// for each timeline since the newest acquisition that is known. Others may be
// lost. Each had the last term + 1 (or what its claimant had seen), or the time
// of a clock in milliseconds: 2^36 of them are more than two years, so the new
// term is above all lost ones, although the clock of this server may lag.
//
// That is 2^36 for each fail-over before an acquisition: 100,000 of them fit
// into the 53 bits of a number in JavaScript. What a hand wrote into the column
// counts as not known.
func sqlJump(now, then string) string {
	return `CASE WHEN ` + then + ` ~ '^[0-9A-F]{8}$'
                   THEN least(greatest(('x' || ` + now + `)::bit(32)::bigint
                                       - ('x' || ` + then + `)::bit(32)::bigint, 0), 65536) << 36
                   ELSE 0 END`
}

// What both acquisitions share. Their first part, "ended", has at most one
// row: what was judged is over, and nobody else can write here until we
// commit. All that follows selects from it, so nothing happens without it.
//
// A transaction that deletes this row and one that inserts the next cannot be
// put in one order by snapshots alone, so each path locks a row that the other
// claimants must change: the lock row itself, or the newest term, whose
// next_term every acquisition sets.
//
// No acquisition reads all of the history: terms that are still open are among
// the newest (each acquisition ends them), and the old ones go in one of 64, on
// average, as finding the first of them means to count the newer ones.
var sqlSucceed = `
new AS (
    INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at, token, term, beat,
                                state, ttl_ms, renew_deadline_ms, heartbeat_ms, timeline,
                                backend_pid, backend_start, postmaster_start, grace_ms, ttl_only,
                                app, program)
    SELECT 1, $1::bigint, $2::text, e.now, e.now, $3::text,
           greatest(e.last + 1, $4::bigint, floor(extract(epoch FROM e.now) * 1000)::bigint)
                  + e.jump,
           0, 'leading', $5::bigint, $6::bigint, $7::bigint, e.timeline,
           ` + sqlHolderSession("$10", "$11", "$12") + `,
           nullif($13::text, ''), nullif($14::text, '')
    FROM ended e CROSS JOIN LATERAL (SELECT ` + sqlHeld("$10", "$5", "e.now") + `) h
    ON CONFLICT (id) DO NOTHING
    RETURNING term, created_at, timeline, grace_ms, ttl_only, app, program
), history AS (
    INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ttl_ms,
                                 timeline, app, program)
    SELECT n.term, $3, $1, $2, n.created_at, $5, n.timeline, n.app, n.program FROM new n
), earlier AS (
    UPDATE scheduler_terms t
    SET ended_at = coalesce(t.ended_at, n.created_at),
        end_reason = coalesce(t.end_reason, $8::text),
        next_term = CASE WHEN t.term = e.last THEN n.term ELSE t.next_term END
    FROM new n, ended e,
         (SELECT o.term, o.ended_at FROM scheduler_terms o ORDER BY o.term DESC LIMIT 5) AS late
    WHERE t.term = late.term AND (late.ended_at IS NULL OR late.term = e.last)
), trimmed AS (
    DELETE FROM scheduler_terms t USING new n, ended e
    WHERE t.term < e.last
      AND t.term <= (SELECT CASE WHEN random() * 64 < 1 THEN
                                (SELECT o.term FROM scheduler_terms o
                                 ORDER BY o.term DESC LIMIT 1 OFFSET $9::integer) END)
)
SELECT n.term, n.created_at, n.grace_ms IS NOT NULL, n.ttl_only FROM new n`

// sqlTakeOver ends the holder that was judged: this row and no other.
var sqlTakeOver = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), judged AS MATERIALIZED (
    SELECT s.now, s.timeline, l.term, l.timeline AS confirmed
    FROM settings s CROSS JOIN scheduler_lock l
    WHERE s.epoch = $15::text
      AND l.id = 1 AND l.token = $16::text AND l.term = $17::bigint AND l.beat = $18::bigint
      AND ` + sqlSameSession("$19") + `
    FOR UPDATE OF l SKIP LOCKED
), ended AS (
    DELETE FROM scheduler_lock l USING judged j
    WHERE l.id = 1
    RETURNING j.now, j.timeline,
              greatest(j.term, (SELECT max(t.term) FROM scheduler_terms t)) AS last,
              ` + sqlJump("j.timeline", `coalesce((SELECT t.timeline FROM scheduler_terms t
                                   ORDER BY t.term DESC LIMIT 1), j.confirmed)`) + ` AS jump
), ` + sqlSucceed

// sqlTakeFree puts a row where none was, if the newest term is still the one
// that was judged. It deletes nothing, whatever it finds. Unless the lock was
// watched for a TTL, its newest term must have an end, and the lock is free on the
// timeline of that term only: so it may be sent on hearsay, without a look.
var sqlTakeFree = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, t.term AS last, ` + sqlJump("s.timeline", "t.timeline") + ` AS jump
    FROM settings s CROSS JOIN scheduler_terms t
    WHERE s.epoch = $15::text AND t.term = $16::bigint
      AND t.term = (SELECT max(o.term) FROM scheduler_terms o)
      AND coalesce(t.next_term, 0) = $17::bigint
      AND ($18::boolean OR t.ended_at IS NOT NULL AND coalesce(t.timeline = s.timeline, true))
      AND NOT EXISTS (SELECT FROM scheduler_lock)
    FOR UPDATE OF t SKIP LOCKED
), ` + sqlSucceed

// sqlTakeFirst is the same for a history without a term, whose timeline is the
// one on which the tables were made. There is no row to lock, so it runs in a
// serializable transaction.
var sqlTakeFirst = `
WITH settings AS MATERIALIZED (` + sqlSettings + `
), ended AS MATERIALIZED (
    SELECT s.now, s.timeline, 0::bigint AS last, ` + sqlJump("s.timeline", sqlOrigin) + ` AS jump
    FROM settings s
    WHERE s.epoch = $15::text AND ($16::boolean OR s.timeline = ` + sqlOrigin + `)
      AND NOT EXISTS (SELECT FROM scheduler_terms) AND NOT EXISTS (SELECT FROM scheduler_lock)
), ` + sqlSucceed

// sqlStill tells a row that was locked from one that has moved.
var sqlStill = `
SELECT EXISTS (SELECT FROM scheduler_lock l
               WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint AND l.beat = $3::bigint
                 AND ` + sqlSameSession("$4") + `)
       AND ` + sqlEpoch + ` = $5::text AND NOT ` + sqlHidden

// Acquire implements driver.Store: one statement, which waits for another
// transaction for a second at most.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		args := []any{s.mode(), int64(c.PID), text(c.Hostname), c.Token.String(), c.MinTerm,
			c.Timing.TTL.Milliseconds(), c.Timing.RenewDeadline.Milliseconds(),
			c.Timing.HeartbeatInterval.Milliseconds(),
			string(c.Reason), int32(keepTerms - 1)}
		hold := s.hold(c.Grace)
		args = append(args, hold.grace, hold.start, hold.why, text(c.App.Name), text(c.App.Program),
			c.Expected.Incarnation)
		var (
			held bool
			why  pgtype.Text
			err  error
		)
		got := []any{&grant.Term, &grant.Now, &held, &why}
		switch row, newest := c.Expected.Row, c.Expected.Newest; {
		case row != nil:
			judged := []any{row.RawToken, row.Term, row.Beat, row.Session}
			err = s.on(conn).QueryRow(ctx, sqlTakeOver, append(args, judged...)...).Scan(got...)
			if errors.Is(err, pgx.ErrNoRows) {
				var still bool
				if err := s.on(conn).QueryRow(ctx, sqlStill,
					append([]any{s.mode()}, append(judged,
						c.Expected.Incarnation)...)...).Scan(&still); err == nil && still {
					return s.blocked(ctx, conn)
				}
			}
		case newest != nil:
			err = s.on(conn).QueryRow(ctx, sqlTakeFree,
				append(args, newest.Term, newest.NextTerm, c.Watched)...).Scan(got...)
		default:
			err = pgx.BeginTxFunc(ctx, conn, s.txOptions(pgx.Serializable), func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, sqlTakeFirst, append(args, c.Watched)...).Scan(got...)
			})
		}
		grant.Now = grant.Now.UTC()
		switch code(err) {
		case codeLockTimeout:
			return s.blocked(ctx, conn)
		case codeSerialization, codeUnique: // another claimant was faster
			return driver.ErrConflict
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return driver.ErrConflict
		}
		if err == nil {
			s.holder = holder{token: c.Token, grace: c.Grace, ttl: c.Timing.TTL}
			grant.Session = s.seen(conn, held, why.String)
			now := time.Now()
			s.granted.Store(&now)
		}
		return err
	})
	return grant, err
}

// blocked is what a claim returns whose row somebody keeps locked.
func (s *Store) blocked(ctx context.Context, conn *pgx.Conn) error {
	if who, err := s.blocker(ctx, conn, 0); err == nil && who != "" {
		return fmt.Errorf("%w: %s", driver.ErrBlocked, who)
	}
	return driver.ErrBlocked
}
