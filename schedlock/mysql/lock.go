package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

// sqlHeartbeat carries its answer in the id of the last INSERT, as MariaDB has no
// UPDATE … RETURNING: the stamp in microseconds, four times, and which state it is.
// MariaDB sets the columns from left to right, so the last one sees what the others
// have become. A heartbeat that the server executes late is of no harm: it only makes
// others wait.
//
// A holder that is confirmed on a new server has outlived the fail-over, and no acquisition
// can have been lost in it: another could only follow the end of this lease. But the
// heartbeat itself does not know whether its holder still leads: the server may execute it
// late. So it writes on which server the one before was answered, see holder.server.
const sqlHeartbeat = `
UPDATE scheduler_lock
SET beat = beat + ` + sqlOne + `, heartbeat_at = UTC_TIMESTAMP(6),
    server = coalesce(nullif(?, ''), server),
    state = CASE state WHEN 'revoked' THEN state ELSE ? END,
    term = term + 0 * last_insert_id(
        4 * timestampdiff(MICROSECOND, '1970-01-01', heartbeat_at)
        + field(state, 'leading', 'draining', 'revoked'))
WHERE id = 1 AND token = ? AND term = ?`

var states = []driver.State{"", driver.StateLeading, driver.StateDraining, driver.StateRevoked}

// errNotOurs is what a holder finds that is none.
var errNotOurs = fmt.Errorf("%w: the lock row does not bear this lease's token any more",
	driver.ErrLost)

// sqlHeartbeatAnew is the first heartbeat on another session than the one before, which it
// puts into the row: in the place of one of those that the row may tell of by what this
// holder knows. One that the server executes late, after a later session was put in, must
// not bring an ended session back, by which others judge.
const sqlHeartbeatAnew = `
BEGIN NOT ATOMIC
    DECLARE found INTEGER DEFAULT 0;
    ` + sqlHoldDeclare + `
    ` + sqlHold + `
    UPDATE scheduler_lock l
    SET l.beat = l.beat + ` + sqlOne + `, l.heartbeat_at = UTC_TIMESTAMP(6),
        l.server = coalesce(nullif(?, ''), l.server),
        l.state = CASE l.state WHEN 'revoked' THEN l.state ELSE ? END,
        l.connection_id = CASE WHEN name IS NOT NULL THEN connection_id() END,
        l.session_lock = name,
        l.session_server = CASE WHEN name IS NOT NULL THEN ` + sqlProcess + ` END,
        l.grace_ms = CASE WHEN why IS NULL THEN grace END, l.ttl_only = why
    WHERE l.id = 1 AND l.token = ? AND l.term = ?
      AND find_in_set(coalesce(l.session_lock, '` + noLock + `'), ?);
    SET found = row_count();
    SELECT l.state, l.heartbeat_at, name, why FROM scheduler_lock l
    WHERE l.id = 1 AND l.token = ? AND l.term = ? AND found;
END`

// Heartbeat implements driver.Store: one round trip.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (beat driver.Renewal, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn, x *session) error {
		var err error
		if s.holder.anew(ref, x) {
			beat, err = s.heartbeatAnew(ctx, conn, x, ref, state)
		} else {
			beat, err = s.heartbeat(ctx, conn, x, ref, state)
		}
		if err != nil {
			return err
		}
		if s.holder.token == ref.Token {
			s.holder.server = x.server
		}
		beat.Session = s.holder.sessionOf(ref)
		return nil
	})
	return beat, err
}

func (s *Store) heartbeat(ctx context.Context, conn *sql.Conn, x *session, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	result, err := x.beat(ctx, conn, s.holder.confirmed(ref), string(state), ref.Token.String(),
		ref.Term)
	if err != nil {
		return driver.Renewal{}, err
	}
	if found, err := result.RowsAffected(); err != nil || found == 0 {
		return driver.Renewal{}, cmp.Or(err, errNotOurs)
	}
	answer, err := result.LastInsertId()
	if err != nil {
		return driver.Renewal{}, err
	}
	return driver.Renewal{State: states[answer%4], Now: time.UnixMicro(answer / 4).UTC()}, nil
}

// beat sends sqlHeartbeat, which comes again and again: so the server parses it once for a session,
// or each time if it has no room for prepared statements.
func (x *session) beat(ctx context.Context, conn *sql.Conn,
	args ...any) (result sql.Result, err error) {
	err = conn.Raw(func(c any) (err error) {
		if x.heartbeat == nil {
			x.heartbeat, err = c.(sqldriver.ConnPrepareContext).PrepareContext(ctx, sqlHeartbeat)
			if strings.HasPrefix(x.server, galera) {
				err = unsynced(err)
			}
		}
		if err == nil {
			result, err = x.heartbeat.(sqldriver.StmtExecContext).ExecContext(ctx, named(args))
		}
		return err
	})
	if number(err) == errStatements {
		x.heartbeat = nil
		return conn.ExecContext(ctx, sqlHeartbeat, args...)
	}
	return result, err
}

func named(args []any) (values []sqldriver.NamedValue) {
	for i, arg := range args {
		values = append(values, sqldriver.NamedValue{Ordinal: i + 1, Value: arg})
	}
	return values
}

func (s *Store) heartbeatAnew(ctx context.Context, conn *sql.Conn, x *session, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	token := ref.Token.String()
	args := append(s.hold(x, ref.Token, s.holder.grace, s.holder.ttl), s.holder.confirmed(ref),
		string(state), token, ref.Term, oneOf(s.holder.names), token, ref.Term)
	s.holder.names = append(s.holder.names, x.name(ref.Token), noLock)
	var (
		found     string
		now       columns.Time
		lock, why sql.NullString
	)
	err := row(ctx, conn, sqlHeartbeatAnew, args, &found, &now, &lock, &why)
	if errors.Is(err, sql.ErrNoRows) {
		err = errNotOurs
	}
	if err != nil {
		return driver.Renewal{}, err
	}
	s.seen(x, lock, why)
	return driver.Renewal{State: driver.State(found), Now: now.Time}, nil
}

// sqlRelease takes the fence first, as an acquisition does.
const sqlRelease = `
BEGIN NOT ATOMIC
    DECLARE fences, deleted INTEGER DEFAULT 0;
    DECLARE confirmed VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    SELECT count(*) INTO fences FROM scheduler_fence FOR UPDATE;
    SELECT max(l.server), count(*) INTO confirmed, deleted FROM scheduler_lock l
    WHERE l.id = 1 AND l.pid = ? AND l.hostname = ? AND l.token = ? AND l.term = ? FOR UPDATE;
    IF deleted THEN
        DELETE FROM scheduler_lock WHERE id = 1;
        DELETE FROM scheduler_fence;
        INSERT INTO scheduler_fence (term, token) VALUES (0 * ` + sqlOne + `, '');
    END IF;
    UPDATE scheduler_terms t
    SET t.ended_at = UTC_TIMESTAMP(6), t.end_reason = ?, t.server = coalesce(confirmed, t.server)
    WHERE t.term = ? AND t.token = ? AND t.ended_at IS NULL;
    COMMIT;
    DO release_lock(?);
    SELECT deleted;
END`

// Release implements driver.Store: one round trip. A standby that waits is woken, once it
// has been committed.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn, x *session) error {
		last := s.lastLock(x)
		if ref.Token == s.holder.token {
			s.holder.unwatch()
			s.holder = holder{on: s.holder.on, lock: s.holder.lock}
		} else {
			last = noLock
		}
		token := ref.Token.String()
		return row(ctx, conn, sqlRelease, []any{ref.PID, text(ref.Hostname), token, ref.Term,
			string(reason), ref.Term, token, last}, &deleted)
	})
	return deleted && err == nil, err
}

const sqlTerms = `
SELECT ` + columns.TermColumns + ` FROM scheduler_terms t ORDER BY t.term DESC LIMIT ?`

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	var t columns.Term
	return all(ctx, s, s.shared, t.Dest(), t.Value, sqlTerms, min(max(limit, 0), keepTerms))
}
