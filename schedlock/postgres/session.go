package postgres

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/internal/peek"
	"example.com/schedlock/schedlock/driver"
)

// The end of the holder's session is a sign to others that it is gone: see
// schedlock.WithSessionGrace, and docs/architecture.md for why that is safe.
// What stands in the row is which server process had the session, when that
// started, and which postmaster it belonged to; a pid alone is soon another's.

// sqlSessionState is what a standby sees of the holder's session: NULL where it
// cannot be told, as after a restart of the server. 'hidden' is the process of
// another role, of which nobody without pg_read_all_stats sees more than the pid.
const sqlSessionState = `CASE
           WHEN l.grace_ms IS NULL OR l.backend_pid IS NULL OR l.backend_start IS NULL
                OR l.postmaster_start IS DISTINCT FROM pg_postmaster_start_time()
                OR pg_is_in_recovery() THEN NULL
           ELSE (SELECT CASE WHEN bool_or(a.backend_start IS NULL) THEN 'hidden'
                             WHEN bool_or(a.backend_start = l.backend_start) THEN 'there'
                             ELSE 'ended' END
                 FROM pg_stat_get_activity(l.backend_pid) a)
       END`

// sqlBackend names the session that the row tells of, ” for none. A claim
// compares it: a session that has ended never comes back, another may have begun.
const sqlBackend = `coalesce(l.backend_pid || ' ' || extract(epoch FROM l.backend_start), '')`

// sqlSameSession is whether the row still tells of the session that was judged;
// a look that did not ask judged none.
func sqlSameSession(judged string) string {
	return `(` + judged + `::text = '' OR ` + sqlBackend + ` = ` + judged + `)`
}

// sqlHold lets the server keep the session of a client that has gone silent for
// the TTL (a parameter, in milliseconds): in a partition the end of the session
// must not come before the renew deadline. An ordinary role may set these, for
// its own session, and they stay whatever an administrator sets later. Linux
// takes no keep-alive time above 32,767 s (MAX_TCP_KEEPIDLE); tcp_user_timeout
// holds all the same. The last two end a transaction with its session: one of
// which the server has received only a part. local is whether they hold for this
// transaction only.
func sqlHold(ttl, local string) string {
	return `set_config('tcp_user_timeout', ` + ttl + `::bigint::text, ` + local + `)
               || set_config('tcp_keepalives_idle',
                             least(ceil(` + ttl + `::bigint / 1000.0), 32767)::bigint::text,
                             ` + local + `)
               || set_config('tcp_keepalives_interval', '10', ` + local + `)
               || set_config('idle_in_transaction_session_timeout',
                             ` + ttl + `::bigint::text, ` + local + `)
               || CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN
                      set_config('transaction_timeout',
                                 ` + ttl + `::bigint::text, ` + local + `) END`
}

// sqlKeep is the rest of it, at the beginning of a session: from PostgreSQL 14
// on a server can end one for being idle. It also tries whether the server
// allows what sqlHold will set.
var sqlKeep = `
SELECT CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL THEN
           set_config('idle_session_timeout', '0', false) END,
       ` + sqlHold("60000", "true")

// sqlHeld are the columns short, the time-outs that the server has and that are
// too short, whatever sqlHold and sqlKeep have asked for, and held, whether the
// end of this session shall be a sign: it was asked for, and nothing is too
// short. (The server shows 0 where it cannot do what sqlHold asks: on a unix
// socket, or a system without such a time-out.) It shows the first two without a
// unit, the others with one. after is a column that is not null, of what has set
// them: they are read after that.
func sqlHeld(grace, ttl, after string) string {
	plain := func(name, least string) string {
		return `CASE WHEN current_setting('` + name + `') !~ '^[0-9]{1,10}$'
                       OR current_setting('` + name + `')::bigint < ` + least + `
                     THEN ', ` + name + ` is ' || current_setting('` + name + `') END`
	}
	united := func(name, least string) string {
		return `CASE WHEN extract(epoch FROM current_setting('` + name + `', true)::interval) * 1000
                          BETWEEN 1 AND ` + least + ` - 1
                     THEN ', ` + name + ` is ' || current_setting('` + name + `') END`
	}
	return `x.short, ` + grace + `::bigint IS NOT NULL AND x.short IS NULL AS held
    FROM (SELECT nullif(substr(concat(
              ` + plain("tcp_user_timeout", ttl+`::bigint`) + `,
              ` + plain("tcp_keepalives_idle", `least(ceil(`+ttl+`::bigint / 1000.0), 32767)`) + `,
              ` + united("idle_session_timeout", `'infinity'::float8`) + `,
              ` + united("idle_in_transaction_session_timeout", ttl+`::bigint`) + `,
              ` + united("transaction_timeout", ttl+`::bigint`) + `), 3), '') AS short
          WHERE ` + after + ` IS NOT NULL OFFSET 0) AS x`
}

// sqlHolderSession are the columns backend_pid, backend_start,
// postmaster_start, grace_ms and ttl_only of the row.
func sqlHolderSession(grace, start, why string) string {
	return `CASE WHEN h.held THEN pg_backend_pid() END,
           CASE WHEN h.held THEN ` + start + `::timestamptz END,
           CASE WHEN h.held THEN pg_postmaster_start_time() END,
           CASE WHEN h.held THEN ` + grace + `::bigint END,
           CASE WHEN NOT h.held THEN coalesce(` + why + `::text,
               'the server does not keep the session of a silent client for the TTL: '
               || h.short) END`
}

// WithDirectConnection tells that nothing between this process and the server
// ends a connection by itself, although the two do not agree on its ends, each
// with address and port: address translation, such as the service of a
// Kubernetes cluster, does not; a proxy or a tunnel may, and then
// schedlock.WithSessionGrace could elect a second leader during a partition.
// Default: where an end differs the TTL decides. (A proxy that pretends to be
// both ends cannot be recognised: use no session grace there.)
func WithDirectConnection() Option {
	return func(s *Store) error {
		s.direct = true
		return nil
	}
}

// session is a connection to the server, as driver.Session.
type session struct {
	started time.Time // of the server process
	why     string    // why its end is no sign, "" if it can be one
	socket  syscall.RawConn
	heard   chan driver.Release // has one element if a notification has come
	ended   chan struct{}
	once    sync.Once
}

// Ended implements driver.Session.
func (x *session) Ended() <-chan struct{} { return x.ended }

// Alive implements driver.Session.
func (x *session) Alive() bool {
	select {
	case <-x.ended:
		return false
	default:
		return peek.Silent(x.socket)
	}
}

func (x *session) end() { x.once.Do(func() { close(x.ended) }) }

// ends are the two ends of a connection, as the server sees them; NULL on a unix
// socket.
type ends struct {
	server, client         pgtype.Text
	serverPort, clientPort pgtype.Int4
}

// differ says which end the server sees elsewhere than this process does, ""
// for none: then nothing that has ends of its own is between them.
func (e ends) differ(local, remote net.Addr) string {
	same := func(ours net.Addr, ip pgtype.Text, port pgtype.Int4) bool {
		a, ok := ours.(*net.TCPAddr)
		return ok && ip.Valid && port.Valid && a.IP.Equal(net.ParseIP(ip.String)) &&
			a.Port == int(port.Int32)
	}
	switch {
	case !same(remote, e.server, e.serverPort):
		return "the server has another address than the one that the holder is connected to"
	case !same(local, e.client, e.clientPort):
		return "the server is connected to another end than the holder's"
	}
	return ""
}

// inspect finds out whether the end of a session on conn can be a sign.
func (s *Store) inspect(conn *pgx.Conn, e ends, started pgtype.Timestamptz) *session {
	x := &session{ended: make(chan struct{}), started: started.Time}
	inner := conn.PgConn().Conn()
	if wrapped, ok := inner.(interface{ NetConn() net.Conn }); ok { // TLS
		inner = wrapped.NetConn()
	}
	tcp, ok := inner.(*net.TCPConn)
	switch {
	case s.pooled.Load():
		x.why = "a pooler is between the holder and the server"
	case !e.server.Valid:
		x.why = "the holder is connected through a unix socket"
	case !ok:
		x.why = "the holder's connection is none of package net, so it cannot be looked at"
	case !started.Valid:
		x.why = "the server does not say when its process started"
	case !peek.Possible:
		x.why = "the holder's system has no way to look at a connection"
	default:
		if why := e.differ(tcp.LocalAddr(), tcp.RemoteAddr()); why != "" && !s.direct {
			x.why = why +
				": a proxy, a tunnel, or address translation (see postgres.WithDirectConnection)"
			break
		}
		socket, err := tcp.SyscallConn()
		if err != nil {
			x.why = "the holder cannot look at its connection: " + err.Error()
			break
		}
		x.socket = socket
	}
	return x
}

// holder is the lease that this store has acquired last; the turn is held.
type holder struct {
	token driver.Token
	grace time.Duration // that was asked for; 0: none
	ttl   time.Duration
	conn  *pgx.Conn // the connection that the row tells of
	held  *session  // that session, if its end is a sign; else nil
	stop  context.CancelFunc

	starts []pgtype.Timestamptz // what backend_start may be in the row now

	timeline pgtype.Text // on which the last heartbeat was answered; NULL: none was
}

// confirmed is the timeline that a heartbeat may vouch for: the one on which the
// heartbeat before was answered. As this one is sent by a holder that still
// trusts its lease, it has led there, and so nobody else has before.
func (h *holder) confirmed(ref driver.Ref) pgtype.Text {
	if h.token != ref.Token {
		return pgtype.Text{}
	}
	return h.timeline
}

// started is a backend_start as sqlHeartbeatAnew compares it: NULL is the
// beginning of time.
func started(t pgtype.Timestamptz) pgtype.Timestamptz {
	if !t.Valid {
		t = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return t
}

// anew reports whether the row tells of another session than conn's.
func (h *holder) anew(ref driver.Ref, conn *pgx.Conn) bool {
	return h.grace > 0 && h.token == ref.Token && h.conn != conn
}

func (h *holder) sessionOf(ref driver.Ref) driver.Session {
	if h.held == nil || h.token != ref.Token {
		return nil
	}
	return h.held
}

// hold is what a claim says of its session.
type hold struct {
	grace pgtype.Int8
	start pgtype.Timestamptz
	why   pgtype.Text
}

// hold works out what the row shall tell of the session in use, which is
// connected; the turn is held.
func (s *Store) hold(grace time.Duration) (h hold) {
	switch why := s.session.why; {
	case grace == 0:
		h.why = pgtype.Text{String: "the holder was started without a session grace", Valid: true}
	case why != "":
		h.why = pgtype.Text{String: why, Valid: true}
	default:
		h.grace = pgtype.Int8{Int64: grace.Milliseconds(), Valid: true}
		h.start = pgtype.Timestamptz{Time: s.session.started, Valid: true}
	}
	return h
}

// seen takes note of what the row tells of the session in use, and watches that
// session if its end is a sign; the turn is held.
func (s *Store) seen(conn *pgx.Conn, held bool, why string) driver.Session {
	s.holder.unwatch()
	s.holder.conn = conn
	s.holder.starts = []pgtype.Timestamptz{started(pgtype.Timestamptz{})}
	if held {
		s.holder.starts[0] = pgtype.Timestamptz{Time: s.session.started, Valid: true}
	}
	if !held {
		if s.holder.grace > 0 {
			s.say("if this leader dies, others wait for the TTL: "+
				"the end of its database session is no sign", "why", why)
		}
		return nil
	}
	s.say("if this leader dies, others take over soon: the end of its database session is a sign",
		"grace", s.holder.grace)
	s.holder.held = s.session
	ctx, cancel := context.WithCancel(context.Background())
	s.holder.stop = cancel
	s.watching.Go(func() { s.watch(ctx, s.session) })
	return s.session
}

// unwatch ends the watch: the lease is over, or on another session.
func (h *holder) unwatch() {
	if h.stop != nil {
		h.stop()
	}
	h.held, h.stop = nil, nil
}

// watch reads what the server sends while nobody asks it anything, so that the
// end of the session is known when it arrives.
func (s *Store) watch(ctx context.Context, x *session) {
	for {
		select {
		case <-x.ended:
			return
		case <-ctx.Done():
			return
		case <-s.closed:
			return
		default:
		}
		if how, _ := s.listen(ctx, nil); how == deaf { // one of the three, or about to be
			select {
			case <-x.ended:
			case <-ctx.Done():
			case <-s.closed:
			}
			return
		}
	}
}

// sign is what the holder's session says of it.
func (s *Store) sign(row *driver.Row, state string) driver.Sign {
	if row == nil || s.pooled.Load() {
		return driver.SignNone
	}
	switch state {
	case "hidden":
		s.hidden.Store(&row.RawToken)
		s.say("cannot see the database session of the holder, so its end is no sign here: "+
			"this replica has another role (one that is a member of pg_read_all_stats sees it)",
			"holder_pid", row.PID, "holder_host", row.Hostname)
	case "ended":
		// What it was not allowed to see it does not judge by, not even later.
		if seen := s.hidden.Load(); seen == nil || *seen != row.RawToken {
			return driver.SignEnded
		}
	}
	return driver.SignNone
}

// say logs something of a store that needs to be said once.
func (s *Store) say(message string, attrs ...any) {
	if _, said := s.said.LoadOrStore(message, true); !said {
		s.log.Info(message, append(attrs, "database", s.config.Database,
			"host", s.config.Host, "port", s.config.Port)...)
	}
}
