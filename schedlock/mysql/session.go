package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/schedlock/internal/peek"
	"example.com/schedlock/schedlock/driver"
)

// The end of the holder's session is a sign to others that it is gone: see
// schedlock.WithSessionGrace, and docs/architecture.md for why that is safe. The session
// holds a named lock (GET_LOCK) from the acquisition on. The row tells its name, the id
// of the session, and the process of the server: names and ids are gone when that ends.

const (
	// sqlSessionName is new for each session of each lease: nobody ever holds it again.
	sqlSessionName = `concat('schedlock-', ?, '-', connection_id())`

	// sqlSessionState is what a standby sees of the holder's session: NULL where it cannot
	// be told, else whether it has ended. A waiting standby may hold the lock for a moment
	// after that.
	sqlSessionState = `CASE WHEN l.grace_ms IS NOT NULL AND l.connection_id IS NOT NULL
                 AND l.session_lock IS NOT NULL AND l.session_server = ` + sqlProcess + `
           THEN NOT coalesce(is_used_lock(l.session_lock) = l.connection_id, false)
       END`

	// sqlHold also compares the TTL with 900 s: MariaDB can't set TCP_USER_TIMEOUT, so Linux
	// ends a connection on which an answer is not acknowledged after 924.6 s, by the default
	// of tcp_retries2 (15, see tcp(7)), although its client may trust the lease for longer.

	// sqlKeep lets the server keep the session of a client that has gone silent for the TTL:
	// in a partition the end of the session must not come before the renew deadline. The
	// last two end it while a statement or an answer is under way. No other time-out ends a
	// session that is in no transaction between two statements.
	sqlKeep = `SET SESSION wait_timeout = keep, net_read_timeout = keep, net_write_timeout = keep;`
)

// sqlHold declares what the row shall tell of this session, and works it out: session_lock
// is not NULL if the session holds its lock, and ttl_only is NULL if its end is a sign. Its
// arguments are those of hold.args.
const (
	sqlHoldDeclare = `DECLARE keep, got, grace BIGINT;
    DECLARE name, why, too_short VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;`

	sqlHold = `SET keep = greatest(?, 60), grace = ?, why = nullif(?, '');
    IF ? THEN
        DO release_lock(?);
        ` + sqlKeep + `
        -- A session that has the lock already would hold it twice, and a release ends one.
        SET name = ` + sqlSessionName + `,
            got = is_used_lock(name) <=> connection_id() OR get_lock(name, 0), too_short = concat(
            CASE WHEN @@wait_timeout < keep THEN concat(', wait_timeout is ', @@wait_timeout)
                 ELSE '' END,
            CASE WHEN @@net_read_timeout < keep
                 THEN concat(', net_read_timeout is ', @@net_read_timeout) ELSE '' END,
            CASE WHEN @@net_write_timeout < keep
                 THEN concat(', net_write_timeout is ', @@net_write_timeout) ELSE '' END,
            CASE WHEN @@global.tcp_keepalive_time BETWEEN 1 AND keep - 1
                 THEN concat(', tcp_keepalive_time is ', @@global.tcp_keepalive_time)
                 ELSE '' END,
            CASE WHEN keep > 900
                 THEN ', its system gives up an answer that nobody receives after 15 minutes'
                 ELSE '' END);
        IF NOT coalesce(got, 0) THEN
            SET name = NULL, why = coalesce(why,
                'the server does not give the holder a lock of its session');
        ELSEIF too_short <> '' THEN
            SET why = coalesce(why, concat(
                'the server does not keep the session of a silent client for the TTL: ',
                substr(too_short, 3)));
        END IF;
    END IF;`

	// sqlHolderSession are the columns connection_id, session_lock, session_server, grace_ms and
	// ttl_only of the row.
	sqlHolderSession = `CASE WHEN name IS NOT NULL THEN connection_id() END, name,
        CASE WHEN name IS NOT NULL THEN ` + sqlProcess + ` END,
        CASE WHEN why IS NULL THEN grace END, why`
)

// WithSessionSign lets the end of the holder's session be a sign of its death, with the
// grace of schedlock.WithSessionGrace and the conditions of docs/architecture.md. Default:
// off, and the TTL decides: see docs/reliability.md for what the fault harness has seen. A
// release wakes a standby either way.
func WithSessionSign() Option {
	return func(s *Store) error {
		s.sign = true
		return nil
	}
}

// WithDirectConnection tells that nothing between this process and the server ends a
// connection by itself, although the two do not agree on the client's end of it or on the
// server's port: address translation, such as the service of a Kubernetes cluster, does
// not; a proxy or a tunnel may, and then schedlock.WithSessionGrace could elect a second
// leader during a partition. Default: where they differ the TTL decides, and standbys
// notice a release when they look. (A proxy that pretends to be both ends cannot be
// recognised: use no session grace there.)
func WithDirectConnection() Option {
	return func(s *Store) error {
		s.direct = true
		return nil
	}
}

// session is a connection to the server, as driver.Session.
type session struct {
	conn   net.Conn // nil: the driver has not said
	met    bool     // what follows is known
	id     int64
	server string // see sqlServer
	own    bool   // as far as is known, nothing is between this process and the server
	why    string // why its end is no sign, "" if it can be one
	socket syscall.RawConn
	ended  chan struct{}
	once   sync.Once

	heartbeat sqldriver.Stmt // see beat; nil: it is not prepared. The turn is held.
}

// Ended implements driver.Session.
func (x *session) Ended() <-chan struct{} { return x.ended }

// Alive implements driver.Session.
func (x *session) Alive() bool {
	select {
	case <-x.ended:
		return false
	default:
		return x.socket != nil && peek.Silent(x.socket)
	}
}

func (x *session) end() { x.once.Do(func() { close(x.ended) }) }

// name is that of the lock of a lease on this session, as sqlSessionName.
func (x *session) name(token driver.Token) string {
	return "schedlock-" + token.String() + "-" + strconv.FormatInt(x.id, 10)
}

const sqlOwnSession = `
SELECT connection_id(), ` + sqlServer + `, @@port, @@extra_port,
       (SELECT p.host FROM information_schema.processlist p WHERE p.id = connection_id())`

// meet finds out whether the end of a new session can be a sign; the turn is held.
func (s *Store) meet(ctx context.Context, conn *sql.Conn, x *session) error {
	if x.met {
		return nil
	}
	var (
		client      sql.NullString
		port, extra int
	)
	if err := row(ctx, conn, sqlOwnSession, nil, &x.id, &x.server, &port, &extra,
		&client); err != nil {
		return unsynced(err)
	}
	if x.server == galera+" " {
		return errNode
	}
	x.met, x.own = true, true
	tcp, ok := x.conn.(*net.TCPConn)
	switch {
	case !ok && s.config.Net == "unix":
		x.why = "the holder is connected through a unix socket"
	case !ok:
		x.own = s.direct
		x.why = "the holder's connection is none of package net, so it cannot be looked at"
	case !peek.Possible:
		x.why = "the holder's system has no way to look at a connection"
	default:
		if why := differ(tcp, client.String, port, extra); why != "" && !s.direct {
			x.own = false
			x.why = why +
				": a proxy, a tunnel, or address translation (see mysql.WithDirectConnection)"
			break
		}
		socket, err := tcp.SyscallConn()
		if err != nil {
			x.why = "the holder cannot look at its connection: " + err.Error()
			break
		}
		x.socket = socket
	}
	if !x.own {
		s.say("a proxy may be between the scheduler lock and the server: "+
			"a standby notices a release by polling", "why", x.why)
	}
	return nil
}

// differ says which end of the connection the server sees elsewhere than this process
// does, "" for none: then nothing that has ends of its own is between them. The server
// does not tell its own address, and of the client it may tell a name.
func differ(conn *net.TCPConn, client string, ports ...int) string {
	host, port, err := net.SplitHostPort(client)
	ours, ok := conn.LocalAddr().(*net.TCPAddr)
	if ip := net.ParseIP(host); err != nil || !ok || port != strconv.Itoa(ours.Port) ||
		ip != nil && !ip.Equal(ours.IP) {
		return "the server is connected to another end than the holder's"
	}
	if theirs, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		for _, port := range ports {
			if port == theirs.Port {
				return ""
			}
		}
	}
	return "the server listens to another port than the one that the holder is connected to"
}

// holder is the lease that this store has acquired last; the turn is held.
type holder struct {
	token driver.Token
	grace time.Duration // that was asked for; 0: none
	ttl   time.Duration
	on    *session // that the row tells of
	lock  string   // its lock; "": it has none
	held  *session // on, if its end is a sign; else nil
	stop  context.CancelFunc

	names  []string // what session_lock may be in the row now
	server string   // on which the last heartbeat was answered; "": none was
}

// noLock is what a session_lock of NULL is called in a list.
const noLock = "none"

// confirmed is the server that a heartbeat may vouch for: the one on which the heartbeat
// before was answered. As this one is sent by a holder that still trusts its lease, it has
// led there, and so nobody else has before.
func (h *holder) confirmed(ref driver.Ref) string {
	if h.token != ref.Token {
		return ""
	}
	return h.server
}

// anew reports whether the row tells of another session than x.
func (h *holder) anew(ref driver.Ref, x *session) bool {
	return h.token == ref.Token && h.on != x
}

func (h *holder) sessionOf(ref driver.Ref) driver.Session {
	if h.held == nil || h.token != ref.Token {
		return nil
	}
	return h.held
}

// hold are the arguments of sqlHold; the turn is held.
func (s *Store) hold(x *session, token driver.Token, grace, ttl time.Duration) []any {
	why := x.why
	if grace == 0 {
		why = "the holder was started without a session grace"
	} else if !s.sign {
		why = "the holder was opened without mysql.WithSessionSign"
	}
	return []any{int64((ttl + time.Second - 1) / time.Second), grace.Milliseconds(), why, x.own,
		s.lastLock(x), token.String()}
}

// lastLock is the lock that session x may still hold of an earlier lease.
func (s *Store) lastLock(x *session) string {
	if s.holder.on != x || s.holder.lock == "" {
		return noLock
	}
	return s.holder.lock
}

// seen takes note of what the row tells of session x, and watches that session if its end
// is a sign; the turn is held.
func (s *Store) seen(x *session, lock, ttlOnly sql.NullString) driver.Session {
	s.holder.unwatch()
	s.holder.on, s.holder.lock = x, lock.String
	s.holder.names = []string{noLock}
	if lock.Valid {
		s.holder.names[0] = lock.String
	}
	if ttlOnly.Valid {
		if s.holder.grace > 0 {
			s.say("if this leader dies, others wait for the TTL: "+
				"the end of its database session is no sign", "why", ttlOnly.String)
		}
		return nil
	}
	s.say("if this leader dies, others take over soon: the end of its database session is a sign",
		"grace", s.holder.grace)
	s.holder.held = x
	ctx, cancel := context.WithCancel(s.life)
	s.holder.stop = cancel
	s.inBackground(func() { s.watch(ctx, x) })
	return x
}

// unwatch ends the watch: the lease is over, or on another session.
func (h *holder) unwatch() {
	if h.stop != nil {
		h.stop()
	}
	h.held, h.stop = nil, nil
}

// watch waits for what the server sends while nobody asks it anything, which is the end of
// the session.
func (s *Store) watch(ctx context.Context, x *session) {
	defer context.AfterFunc(ctx, s.turn.Interrupt)()
	for ctx.Err() == nil {
		select {
		case s.turn.Turn <- struct{}{}:
		case <-x.ended:
			return
		case <-ctx.Done():
			return
		}
		select {
		case <-x.ended:
		default:
			s.watchInTurn(ctx, x)
		}
		s.turn.Give()
	}
}

func (s *Store) watchInTurn(ctx context.Context, x *session) {
	end := s.turn.Watch(func() { _ = x.conn.SetReadDeadline(past) },
		func() bool { return ctx.Err() != nil })
	err := peek.Wait(x.socket)
	end()
	_ = x.conn.SetReadDeadline(time.Time{})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		x.end()
	}
}

// say logs something of a store that needs to be said once.
func (s *Store) say(message string, attrs ...any) {
	if _, said := s.said.LoadOrStore(message, true); !said {
		s.log.Info(message, append(attrs, "database", s.config.DBName, "server", s.config.Addr)...)
	}
}

// oneOf is a list as find_in_set takes it.
func oneOf(names []string) string { return strings.Join(names, ",") }
