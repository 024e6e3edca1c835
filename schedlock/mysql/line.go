package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/mydsn"
)

// The lock has one connection, of a pool of its own that opens another when the last has
// failed. One user at a time has it. In between, the session of a holder is watched.

// A connector opens the lock's connections, and tells of each.
type connector struct {
	sqldriver.Connector
	lines  *bounded.Opener[line]
	opened func(*session)
	dialed *atomic.Bool // the newest attempt has reached a port
}

// A line is a connection for the lock, and its session.
type line struct {
	conn    sqldriver.Conn
	session *session
}

// dialed is the key of what is told which connection package net has opened.
type dialed struct{}

func (c connector) open(ctx context.Context) (l line, err error) {
	l.session = &session{ended: make(chan struct{})}
	c.dialed.Store(false)
	l.conn, err = c.Connector.Connect(context.WithValue(ctx, dialed{}, func(conn net.Conn) {
		l.session.conn = conn
		c.dialed.Store(true)
	}))
	return l, err
}

// Connect implements the connector of database/sql.
func (c connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	l, err := c.lines.Get(ctx, statementTimeout)
	switch {
	case err == nil:
		c.opened(l.session)
	case errors.Is(err, context.DeadlineExceeded) && c.dialed.Load(): // the server speaks first
		err = fmt.Errorf("something takes connections there, but does not answer as MariaDB does: "+
			"it hangs, or it is another kind of server: %w", err)
	}
	return l.conn, err
}

// Close is called by the pool that uses the connector, as it is closed.
func (c connector) Close() error {
	c.lines.End()
	return nil
}

// dial is that of the driver, and tells of the connection.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if told, ok := ctx.Value(dialed{}).(func(net.Conn)); ok && err == nil {
		told(conn)
	}
	return conn, err
}

// lockConnector is a connector whose latest session is s.session.
func (s *Store) lockConnector(settings *mysql.Config) (sqldriver.Connector, error) {
	settings = settings.Clone()
	if !s.plain {
		// A node of Galera would repeat a block that another node's commit has undone, although
		// the answer was begun: then the driver panics on what it gets.
		settings.Params["wsrep_retry_autocommit"] = "0"
	}
	// Where somebody has locked or alters a table, the server's answer must come before this
	// process gives up: that would end the session, by which others judge.
	settings.Params["lock_wait_timeout"] = "1"
	if settings.Net == "tcp" && settings.DialFunc == nil {
		settings.DialFunc = dial
	}
	inner, err := mysql.NewConnector(settings)
	c := connector{inner, &bounded.Opener[line]{}, func(x *session) {
		if last := s.session.Swap(x); last != nil {
			last.end()
		}
	}, new(atomic.Bool)}
	c.lines.Open, c.lines.Close = c.open, func(l line) { _ = l.conn.Close() }
	return c, err
}

// use gives f the lock's connection and its session, for statementTimeout at most. A
// connection that has failed is left: the next user opens another.
func (s *Store) use(ctx context.Context,
	f func(ctx context.Context, conn *sql.Conn, x *session) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := s.turn.Take(ctx, s.life.Done()); err != nil {
		return err
	}
	defer s.turn.Give()
	conn, err := s.lock.db.Conn(ctx)
	if err != nil {
		return s.explain(mydsn.Safe(s.config, unsynced(err)))
	}
	x := s.session.Load()
	if err = s.meet(ctx, conn, x); err == nil {
		err = f(ctx, conn, x)
	}
	if conn.Raw(func(c any) error { // before the server knows
		if v, ok := c.(sqldriver.Validator); ok && !v.IsValid() {
			return sqldriver.ErrBadConn
		}
		return nil
	}) != nil {
		x.end()
	}
	_ = conn.Close() // gives it back
	return s.explain(err)
}

// row is that of a pool, on the lock's connection.
func row(ctx context.Context, conn *sql.Conn, query string, args []any, dest ...any) error {
	return conn.QueryRowContext(ctx, query, args...).Scan(dest...)
}

// leaveServer ends all connections that are idle, so that others are opened.
func (s *Store) leaveServer() {
	if x := s.session.Load(); x != nil {
		x.end()
	}
	for _, p := range []pool{s.lock, s.waiting, s.runs, s.shared} {
		p.reconnect()
	}
}

// past ends a read that waits.
var past = time.Unix(1, 0)
