package mysql

import (
	"context"
	"fmt"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// sqlHeartbeat carries its answer in the id of the last INSERT, as MariaDB has no
// UPDATE … RETURNING: the stamp in microseconds, four times, and which state it is.
// MariaDB sets the columns from left to right, so the last one sees what the others
// have become. A heartbeat that the server executes late is of no harm: it only makes
// others wait.
const sqlHeartbeat = `
UPDATE scheduler_lock
SET beat = beat + 1, heartbeat_at = UTC_TIMESTAMP(6),
    state = CASE state WHEN 'revoked' THEN state ELSE ? END,
    term = term + 0 * last_insert_id(
        4 * timestampdiff(MICROSECOND, '1970-01-01', heartbeat_at)
        + field(state, 'leading', 'draining', 'revoked'))
WHERE id = 1 AND token = ? AND term = ?`

var states = []driver.State{"", driver.StateLeading, driver.StateDraining, driver.StateRevoked}

// errNotOurs is what a holder finds that is none.
var errNotOurs = fmt.Errorf("%w: the lock row does not bear this lease's token any more",
	driver.ErrLost)

// Heartbeat implements driver.Store: one round trip.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	result, err := s.lock.result(ctx, sqlHeartbeat, string(state), ref.Token.String(), ref.Term)
	if err != nil {
		return driver.Renewal{}, s.explain(err)
	}
	if found, err := result.RowsAffected(); err != nil || found == 0 {
		if err == nil {
			err = errNotOurs
		}
		return driver.Renewal{}, err
	}
	answer, err := result.LastInsertId()
	if err != nil {
		return driver.Renewal{}, err
	}
	return driver.Renewal{State: states[answer%4], Now: time.UnixMicro(answer / 4).UTC()}, nil
}

// sqlRelease takes the fence first, as an acquisition does.
const sqlRelease = `
BEGIN NOT ATOMIC
    DECLARE fences, deleted INTEGER DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    SELECT count(*) INTO fences FROM scheduler_fence FOR UPDATE;
    DELETE FROM scheduler_lock
    WHERE id = 1 AND pid = ? AND hostname = ? AND token = ? AND term = ?;
    SET deleted = row_count();
    IF deleted THEN
        DELETE FROM scheduler_fence;
        INSERT INTO scheduler_fence (term, token) VALUES (0, '');
    END IF;
    UPDATE scheduler_terms SET ended_at = UTC_TIMESTAMP(6), end_reason = ?
    WHERE term = ? AND token = ? AND ended_at IS NULL;
    COMMIT;
    SELECT deleted;
END`

// Release implements driver.Store: one round trip.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	token := ref.Token.String()
	err = s.lock.row(ctx, sqlRelease, []any{ref.PID, text(ref.Hostname), token, ref.Term,
		string(reason), ref.Term, token}, &deleted)
	return deleted && err == nil, s.explain(err)
}

const sqlTerms = `
SELECT ` + columns.TermColumns + ` FROM scheduler_terms t ORDER BY t.term DESC LIMIT ?`

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	var t columns.Term
	terms, err := all(ctx, s.shared, t.Dest(), t.Value, sqlTerms, min(max(limit, 0), keepTerms))
	return terms, s.explain(err)
}
