//go:build linux

package faults

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/mytest"
)

// mysqlServer is a MariaDB server under test, or a cluster of Galera with a node for
// each slot. Every slot comes to it through a proxy of its own, and with a user of its
// own, who may do nothing outside the database.
type mysqlServer struct {
	t     testing.TB
	nodes []*mytest.Server // one, or one for each slot
	dbs   []*sql.DB        // the harness' own, of each node
	wire
	sign  bool          // the processes ask for mysql.WithSessionSign
	small string        // a small tmpfs with its data, made by us; "" if it is none
	clock *mytest.Clock // nil: it has that of the machine

	forgotten

	gone atomic.Int32 // the node, counted from 1, that does not answer; 0: none
}

var _ server = (*mysqlServer)(nil)

const (
	myDatabase = "app"

	// myConnections is enough for three processes and the harness.
	myConnections = 60

	// mySmallDisk is what a server needs, and little more.
	mySmallDisk = 128 << 20
)

var connectionsOption = fmt.Sprintf("--max-connections=%d", myConnections)

// myUser is the user of a slot, and myStranger that of nobody.
func myUser(slot int) string { return fmt.Sprintf("app%d", slot) }

const myStranger = "stranger"

var sqlMakeMySQL = []string{
	`CREATE DATABASE ` + myDatabase,
	`CREATE TABLE ` + myDatabase + `.faults_writes (
    -- on one server it grows in the order of the terms: drawn behind the fence
    id   bigint PRIMARY KEY AUTO_INCREMENT,
    term bigint NOT NULL,
    job  varchar(200) NOT NULL,
    tick bigint NOT NULL,
    saw  bigint NOT NULL, -- so many writes of earlier terms
    KEY (term)
)`,
	`CREATE TABLE ` + myDatabase + `.faults_locks (
    id   bigint PRIMARY KEY AUTO_INCREMENT, -- likewise
    name varchar(200) NOT NULL,
    term bigint NOT NULL,
    saw  bigint NOT NULL,
    KEY (name, term)
)`,
	`CREATE USER ` + myStranger,
}

// newMySQL starts a server. With small its data lie on a file system small enough to be
// filled, and it has a clock of its own; errCannotInject if this process may not mount one.
func newMySQL(t testing.TB, slots int, sign, small bool) (*mysqlServer, error) {
	s := &mysqlServer{t: t, sign: sign}
	if !small {
		s.nodes = []*mytest.Server{mytest.Primary(t, connectionsOption)}
		return s, s.prepare(slots)
	}
	server, clock := mytest.WithClock(t, connectionsOption)
	s.nodes, s.clock = []*mytest.Server{server}, clock
	server.Stop(t)
	if err := shrink(server.Data(), mySmallDisk); err != nil {
		return nil, err
	}
	s.small = server.Data()
	server.StartAgain(t)
	return s, s.prepare(slots)
}

// prepare makes the database, the users and the proxies.
func (s *mysqlServer) prepare(slots int) error {
	for _, node := range s.nodes {
		s.dbs = append(s.dbs, s.admin(node))
	}
	queries := sqlMakeMySQL
	for slot := range slots {
		queries = append(queries, `CREATE USER `+myUser(slot),
			`GRANT ALL ON `+myDatabase+`.* TO `+myUser(slot))
	}
	for _, query := range queries {
		if _, err := s.dbs[0].ExecContext(s.t.Context(), query); err != nil {
			return fmt.Errorf("%.60s: %w", query, err)
		}
	}
	for slot := range slots {
		p, err := newProxy("", s.node(slot).Address())
		if err != nil {
			return errors.Join(err, s.Close())
		}
		s.proxies = append(s.proxies, p)
	}
	return nil
}

// admin opens a node for the harness itself.
func (s *mysqlServer) admin(node *mytest.Server) *sql.DB {
	settings := []string{"interpolateParams=true", "time_zone='%2B00:00'", "timeout=5s"}
	if s.galera() { // what a process was told that it is committed
		settings = append(settings, "wsrep_sync_wait=7")
	}
	db := node.Open(s.t, node.URL(""), settings...)
	// With all of the server's connections taken, only one more is left for root.
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	return db
}

func (s *mysqlServer) galera() bool { return len(s.nodes) > 1 }

// node is that of a slot.
func (s *mysqlServer) node(slot int) *mytest.Server { return s.nodes[slot%len(s.nodes)] }

// Settings implements Database.
func (s *mysqlServer) Settings(p *Settings) {
	u := url.URL{Scheme: "mysql", User: url.User(myUser(p.Slot)),
		Host: s.proxies[p.Slot].addr(), Path: "/" + myDatabase}
	p.Kind, p.DSN, p.Sign = kindMySQL, u.String(), s.sign
}

// Close implements Database. The server itself ends with the test.
func (s *mysqlServer) Close() error {
	s.wire.close()
	for n, node := range s.nodes {
		if log := node.Crash(); log != "" {
			s.t.Errorf("server %d has crashed: %s", n, log)
		}
	}
	if s.small == "" {
		return nil
	}
	s.nodes[0].Kill(s.t)
	return unix.Unmount(s.small, unix.MNT_DETACH)
}

// halt implements server.
func (s *mysqlServer) halt(hard bool) {
	if hard {
		s.nodes[0].Kill(s.t)
	} else {
		s.nodes[0].Stop(s.t)
	}
}

// ended implements server.
func (s *mysqlServer) ended() bool { return s.nodes[0].Crash() != "" }

// start implements server.
func (s *mysqlServer) start() { s.nodes[0].StartAgain(s.t) }

func (s *mysqlServer) pooled() bool { return false }

// wakes implements server: by a lock of GET_LOCK, which a node has for itself.
func (s *mysqlServer) wakes() bool { return !s.galera() }

// use does one task, on a node that answers.
func (s *mysqlServer) use(ctx context.Context,
	do func(context.Context, *sql.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for n, db := range s.dbs {
		if int(s.gone.Load()) == n+1 {
			continue
		}
		if err = on(ctx, db, do); err == nil {
			return nil
		}
	}
	return err
}

func on(ctx context.Context, db *sql.DB, do func(context.Context, *sql.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, `USE `+myDatabase); err == nil {
		err = do(ctx, conn)
	}
	if err != nil { // it may have a transaction, or settings, that nobody else shall have
		discard(conn)
	}
	_ = conn.Close()
	return err
}

// discard lets a connection be closed instead of being used again.
func discard(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

func (s *mysqlServer) exec(ctx context.Context, queries ...string) error {
	return s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return execEach(ctx, conn, queries...)
	})
}

func myNumber(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// terminate implements server.
func (s *mysqlServer) terminate(ctx context.Context, p *process) error {
	for slot := range s.proxies {
		if p != nil && p.slot != slot {
			continue
		}
		_, err := s.dbs[slot%len(s.dbs)].ExecContext(ctx, `KILL HARD CONNECTION USER `+myUser(slot))
		if err != nil {
			return err
		}
	}
	return nil
}

// setClock implements server.
func (s *mysqlServer) setClock(ctx context.Context, ahead time.Duration) error {
	if s.clock == nil {
		return fmt.Errorf("%w: the server has the clock of the machine", errCannotInject)
	}
	if err := s.clock.Step(ahead); err != nil {
		return err
	}
	err := s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var off float64 // seconds
		err := conn.QueryRowContext(ctx, `SELECT unix_timestamp(sysdate(6)) - ?`,
			float64(time.Now().Add(ahead).UnixMilli())/1000).Scan(&off)
		if err == nil && math.Abs(off) > 600 {
			err = fmt.Errorf("the server's clock is %v s off", off)
		}
		return err
	})
	if err != nil { // the fault ends here: nobody would set it right
		err = errors.Join(err, s.clock.Step(0))
	}
	return err
}

// smallDisk implements server. MariaDB looks once a minute whether there is room, and until then
// no transaction goes on; or it cannot roll one back, and ends.
func (s *mysqlServer) smallDisk() (string, time.Duration) { return s.small, 70 * time.Second }

// write implements server.
func (s *mysqlServer) write(ctx context.Context) error {
	return s.exec(ctx, `FLUSH NO_WRITE_TO_BINLOG BINARY LOGS`,
		`PURGE BINARY LOGS BEFORE now()`) // else its logs alone would fill the disk
}

// foreign implements server.
func (s *mysqlServer) foreign(ctx context.Context) (end func(), err error) {
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr = myStranger, "tcp", s.nodes[0].Address()
	config.Timeout, config.Logger = time.Second, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return func() { _ = conn.Close() }, nil
}

// Row implements Database.
func (s *mysqlServer) Row(ctx context.Context) (row Row, ok bool, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := conn.QueryRowContext(ctx,
			`SELECT term, grace_ms IS NOT NULL FROM scheduler_lock`).Scan(&row.Term, &row.Session)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		ok = err == nil
		return err
	})
	return row, ok, err
}

// Proves implements Database: there is no kernel in common.
func (s *mysqlServer) Proves(Row) bool { return false }

var mysqlEdits = map[Edit]string{
	editDelete: `DELETE FROM scheduler_lock`,
	editToken:  `UPDATE scheduler_lock SET token = md5(rand())`,
	editTerm:   `UPDATE scheduler_lock SET term = term + 7`,
	editPID:    `UPDATE scheduler_lock SET pid = pid + 7`,
	editPast: `UPDATE scheduler_lock
		SET heartbeat_at = '2001-01-01 00:00:00', created_at = '2001-01-01 00:00:00'`,
	editFuture: `UPDATE scheduler_lock
		SET heartbeat_at = '2101-01-01 00:00:00', created_at = '2101-01-01 00:00:00'`,
	editTTL:    `UPDATE scheduler_lock SET ttl_ms = 1`,
	editRevoke: `UPDATE scheduler_lock SET state = 'revoked'`,
}

// Edit implements Database.
func (s *mysqlServer) Edit(ctx context.Context, e Edit) error {
	if e != editJobs {
		return s.again(ctx, func() error { return s.exec(ctx, mysqlEdits[e]) })
	}
	return s.again(ctx, func() error {
		return s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return s.forgetJobs(ctx, conn, `LOCK TABLES scheduler_jobs WRITE, scheduler_runs READ`,
				`UNLOCK TABLES`)
		})
	})
}

// again does it once more where another transaction was in the way.
func (s *mysqlServer) again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if n := myNumber(err); n != 1213 && n != 1205 || ctx.Err() != nil {
			return err
		}
	}
}

// Paused implements Database.
func (s *mysqlServer) Paused(ctx context.Context) (paused bool, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, sqlPaused).Scan(&paused)
	})
	return paused, err
}

// Block implements Database: a session of the harness has locked all tables that the
// lock writes.
func (s *mysqlServer) Block(ctx context.Context) (unblock func(), err error) {
	if s.galera() {
		return nil, fmt.Errorf("%w: no session blocks the other nodes", errCannotInject)
	}
	conn, err := s.dbs[0].Conn(ctx)
	if err != nil {
		return nil, err
	}
	unblock = func() {
		discard(conn)
		_ = conn.Close()
	}
	// The program locks its tables in another order: the server may end either of the two.
	err = s.again(ctx, func() error {
		return execEach(ctx, conn, `USE `+myDatabase, `SET SESSION lock_wait_timeout = 5`,
			`LOCK TABLES scheduler_lock READ, scheduler_terms READ, scheduler_fence READ,
				scheduler_fenced READ, scheduler_jobs READ, scheduler_runs READ,
				scheduler_requests READ, scheduler_pauses READ, scheduler_audit READ`)
	})
	if err != nil {
		unblock()
		return nil, err
	}
	return unblock, nil
}

// Blocked implements Database: somebody has the row or the fence locked.
func (s *mysqlServer) Blocked(ctx context.Context) bool {
	if s.galera() { // only on its own node
		return false
	}
	err := s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := execEach(ctx, conn, `START TRANSACTION`,
			`SELECT 1 FROM scheduler_lock FOR UPDATE NOWAIT`,
			`SELECT 1 FROM scheduler_fence FOR UPDATE NOWAIT`)
		_, end := conn.ExecContext(ctx, `ROLLBACK`)
		return errors.Join(err, end)
	})
	return myNumber(err) == 1205 // ER_LOCK_WAIT_TIMEOUT
}

const (
	sqlReadSaw     = `SELECT '', term, saw FROM faults_writes ORDER BY id`
	sqlReadLockSaw = `SELECT name, term, saw FROM faults_locks ORDER BY id`
)

// Read implements Database.
func (s *mysqlServer) Read(ctx context.Context, h *History) error {
	h.Anew = s.list()
	return s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if err := readHistory(ctx, conn, h); err != nil {
			return err
		}
		return readSaw(ctx, conn, h, sqlReadSaw)
	})
}

// ReadLocks implements Database.
func (s *mysqlServer) ReadLocks(ctx context.Context, h *History) error {
	return s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if err := readLocks(ctx, conn, h); err != nil {
			return err
		}
		return readSaw(ctx, conn, h, sqlReadLockSaw)
	})
}

func readSaw(ctx context.Context, conn *sql.Conn, h *History, query string) error {
	saw, err := readRows(ctx, conn, query, func(scan func(...any) error) (w Saw, err error) {
		err = scan(&w.Name, &w.Term, &w.Earlier)
		return w, err
	})
	h.Saw = append(h.Saw, saw...)
	return err
}
