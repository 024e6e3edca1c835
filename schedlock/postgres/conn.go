package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/driver"
)

// use gives f the lock's connection, for statementTimeout if the caller has set no
// limit. A connection that has failed is dropped: the next user opens another.
func (s *Store) use(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := bounded.Context(ctx, s.bound)
	defer cancel()
	if err := s.turn.Take(ctx, s.closed); err != nil {
		return err
	}
	defer s.turn.Give()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err = f(ctx, conn); err == nil {
		if conn.IsClosed() { // by something that f could do without
			s.drop()
		}
		return nil
	}
	switch c := code(err); {
	case conn.IsClosed():
	case c == codeNoPrivilege:
		if why := hidden(ctx, s.on(conn)); why != nil {
			err = why
		}
	case c == codeLockTimeout:
		if who, _ := s.blocker(ctx, conn, 0); who != "" {
			err = fmt.Errorf("%s: %w", who, err)
		}
	}
	if conn.IsClosed() || readOnly(err) {
		s.drop()
	}
	return s.explain(err)
}

// dropTimeout bounds the farewell to a server that may not listen any more.
const dropTimeout = time.Second

// drop ends the connection. The turn is held.
func (s *Store) drop() {
	if s.conn == nil {
		return
	}
	s.session.end() // before the server knows
	hangUp(s.conn)
	s.conn = nil
}

// hangUp ends a connection that is given up, whatever the server says.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// How long a server that refuses us for good is left alone.
const (
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// connect returns the connection, opened anew if there is none. The turn is
// held.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	if s.conn != nil && !s.conn.IsClosed() {
		return s.conn, nil
	}
	s.drop()
	if s.refused != nil && time.Now().Before(s.again) {
		return nil, s.refused
	}
	l, err := s.lines.Get(ctx, s.bound)
	if err != nil {
		err = s.explain(err)
		s.refused = nil
		if errors.Is(err, driver.ErrPermanent) {
			s.backoff = min(max(2*s.backoff, minBackoff), maxBackoff)
			s.refused, s.again = err, time.Now().Add(s.backoff)
		}
		return nil, err
	}
	s.conn, s.session, s.refused, s.backoff = l.conn, l.session, nil, 0
	return l.conn, nil
}

// A line is a connection for the lock, and its session.
type line struct {
	conn    *pgx.Conn
	session *session
}

func (s *Store) openLine(ctx context.Context) (l line, err error) {
	l.conn, l.session, err = s.dial(ctx)
	return l, err
}

const sqlOwnSession = `
SELECT pg_backend_pid(), host(inet_server_addr()), inet_server_port(),
       host(inet_client_addr()), inet_client_port(),
       (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))`

func (s *Store) dial(ctx context.Context) (conn *pgx.Conn, x *session, err error) {
	config := s.config.Copy()
	if s.prepare != nil {
		if err := s.prepare(ctx, config); err != nil {
			return nil, nil, err
		}
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // see committed; statements say their own
	heard := make(chan driver.Release, 1)
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.Channel != s.channel() { // of a LISTEN in the app's AfterConnect
			return
		}
		select {
		case <-heard: // the newest counts
		default:
		}
		heard <- released(n.Payload)
	}
	if conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, nil, err
	}
	opened := conn // a return of nil overwrites conn
	defer func() {
		if err != nil {
			hangUp(opened)
		}
	}()
	if version := conn.PgConn().ParameterStatus("server_version"); tooOld(version) {
		return nil, nil, fmt.Errorf("%w: %s: PostgreSQL %s is too old: this needs 13 or later",
			driver.ErrPermanent, s.name(), version)
	}
	if err := s.welcome(ctx, conn, planOnce); err != nil {
		return nil, nil, err
	}
	var (
		pid     uint32
		e       ends
		started pgtype.Timestamptz
	)
	if err := s.on(conn).QueryRow(ctx, sqlOwnSession, pgx.QueryExecModeExec).Scan(&pid, &e.server,
		&e.serverPort,
		&e.client, &e.clientPort, &started); err != nil {
		return nil, nil, err
	}
	s.pooled.Store(pid != conn.PgConn().PID())
	x = s.inspect(conn, e, started)
	x.heard = heard
	if s.pooled.Load() {
		s.say("a pooler is between the scheduler lock and the server: " +
			"no LISTEN, so a standby notices a release by polling")
		return conn, x, nil
	}
	if s.reader {
		return conn, x, nil
	}
	_, err = conn.PgConn().Exec(ctx, "LISTEN "+s.channel()+";"+sqlKeep).ReadAll()
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && !conn.IsClosed() {
		x.why = cmp.Or(x.why, "the server does not let the holder change its time-outs: "+e.Message)
		_, err = conn.PgConn().Exec(ctx, "LISTEN "+s.channel()).ReadAll()
	}
	return conn, x, err
}

// planOnce is for the lock and the runs: none of their plans depends on a parameter. To plan an
// acquisition or the start of a run takes longer than to execute it, and by its own estimates the
// server would plan the start of a run every time.
const planOnce = true

// tooOld reports whether a server lacks what a fence asks: pg_current_xact_id is new in
// PostgreSQL 13. What names no version, as a pooler may, is let in.
func tooOld(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 13
}

// welcome makes a new session as the app wants it, and as our statements do.
func (s *Store) welcome(ctx context.Context, conn *pgx.Conn, planOnce bool) error {
	if s.greet != nil {
		if err := s.greet(ctx, conn); err != nil {
			return err
		}
	}
	return s.isolate(ctx, conn, planOnce)
}
