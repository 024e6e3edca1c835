package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// What the named locks do after a fail-over, and after the server's clock was
// set back. The row of named_locks_floor says which timeline was noticed, and
// when; docs/architecture.md argues why that is enough for all names.

const (
	// sqlNamedNoted is true if the timeline that the server s is on has been
	// noticed in f. If it was noticed in the future the clock was set back since,
	// and it is noticed anew: nobody waits for longer than a TTL.
	sqlNamedNoted = `coalesce(s.timeline IS NULL
        OR s.timeline = f.timeline AND (f.since IS NULL OR f.since <= s.now), false)`

	// sqlNamedSince is how many ms ago that was: NULL if there was no fail-over.
	sqlNamedSince = `floor(extract(epoch FROM s.now - f.since) * 1000)::bigint`
)

// sqlNamedNote notices a fail-over. The terms that were lost are above those that
// are known, or above the clock, by less than two years (2³⁶ ms) and as many
// acquisitions: so those that follow are above both. Several fail-overs may be
// noticed at once.
const sqlNamedNote = `
WITH s AS MATERIALIZED (
    SELECT clock_timestamp() AS now, ` + sqlTimeline + ` AS timeline,
           set_config('lock_timeout', '250ms', true), ` + sqlDurable + `
)
UPDATE named_locks_floor f
SET timeline = s.timeline, since = clock_timestamp(),
    term = CASE WHEN f.timeline = s.timeline THEN f.term ELSE
        greatest(f.term, (SELECT max(l.term) FROM named_locks l),
                 floor(extract(epoch FROM s.now) * 1000)::bigint)
        + (1::bigint << 36) * CASE WHEN f.timeline ~ '^[0-9A-F]{8}$' THEN
              least(greatest(('x' || s.timeline)::bit(32)::bigint
                             - ('x' || f.timeline)::bit(32)::bigint, 1), 65536)
              ELSE 1 END
    END
FROM s
WHERE f.id = 1 AND s.timeline IS NOT NULL
  AND (f.timeline IS DISTINCT FROM s.timeline OR f.since > clock_timestamp())
RETURNING f.since`

const sqlNamedFloor = `SELECT EXISTS (SELECT FROM named_locks_floor WHERE id = 1)`

// note notices a fail-over for all names: once, whoever is the first.
func (n namedStore) note(ctx context.Context) error {
	var since time.Time
	err := n.s.pool.QueryRow(ctx, sqlNamedNote, n.s.mode()).Scan(&since)
	switch {
	case err == nil:
		n.s.log.Warn("the database server has failed over, "+
			"or its clock was set back soon after that: "+
			"nobody takes a named lock before its TTL has passed, as an acquisition may be lost",
			"noticed", since.UTC())
		return nil
	case code(err) == codeSerialization || code(err) == codeLockTimeout: // another does it
		return nil
	case !errors.Is(err, pgx.ErrNoRows):
		return n.s.explain(err)
	}
	var found bool
	if err := n.s.pool.QueryRow(ctx, sqlNamedFloor, n.s.mode()).Scan(&found); err != nil || found {
		return n.s.explain(err)
	}
	return fmt.Errorf("%w: %s: table named_locks_floor has lost its row: "+
		"if no named lock is held, INSERT INTO named_locks_floor (id, term) "+
		"SELECT 1, coalesce(max(term), 0) FROM named_locks",
		driver.ErrPermanent, n.s.name())
}

// sqlNamedMend lets a row end a TTL from now of which more is left than that: its
// holder has written it before now, so its own clock ends it before.
const sqlNamedMend = `
WITH s AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true), $3::bigint * interval '1 millisecond' AS ttl
)
UPDATE named_locks l
SET expires_at = least(l.expires_at, clock_timestamp() + s.ttl),
    hold_until = CASE WHEN l.hold_until IS NOT NULL
                      THEN least(l.hold_until, clock_timestamp() + s.ttl) END
FROM s
WHERE l.kind = $1::text AND l.name = $2::text
  AND l.term = $4::bigint AND l.ttl_of = $4 AND l.ttl_ms = $3
  AND greatest(l.expires_at, l.hold_until) > clock_timestamp() + s.ttl`

// mend does that, if the row needs it, and returns the row as it is then. If it
// cannot, the next Take tries again.
func (n namedStore) mend(ctx context.Context, row *namedlock.Row) *namedlock.Row {
	if !row.Unsure {
		return row
	}
	_, err := n.s.pool.Exec(ctx, sqlNamedMend, n.s.mode(),
		string(row.Kind), row.Name, row.TTL.Milliseconds(), row.Term)
	if err == nil {
		row.Left, row.Unsure = min(row.Left, row.TTL), false
	}
	return row
}
