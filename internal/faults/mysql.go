//go:build linux

package faults

import (
	"context"
	"database/sql"
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
	"example.com/schedlock/internal/servertest"
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

	tables

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
    name varchar(200) NOT NULL, -- of a named lock; '': of a run
    term bigint NOT NULL,
    job  varchar(200) NOT NULL,
    tick bigint NOT NULL,
    saw  bigint NOT NULL, -- so many writes of the name of earlier terms
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
	s.dialect, s.task = mysqlDialect, s.use
	for _, node := range s.nodes {
		s.dbs = append(s.dbs, s.admin(node))
	}
	queries := sqlMakeMySQL
	for slot := range slots {
		queries = append(queries, `CREATE USER `+myUser(slot),
			`GRANT ALL ON `+myDatabase+`.* TO `+myUser(slot),
			`GRANT READ_ONLY ADMIN ON *.* TO `+myUser(slot)) // see SwitchOver
	}
	if err := execOn(s.t.Context(), s.dbs[0], queries...); err != nil {
		return err
	}
	for slot := range slots {
		p, err := servertest.ListenWire("", s.node(slot).Address())
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

func (s *mysqlServer) Settings(p *Settings) {
	u := url.URL{Scheme: "mysql", User: url.User(myUser(p.Slot)),
		Host: s.proxies[p.Slot].Address, Path: "/" + myDatabase}
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

func (s *mysqlServer) halt(hard bool) {
	if hard {
		s.nodes[0].Kill(s.t)
	} else {
		s.nodes[0].Stop(s.t)
	}
}

func (s *mysqlServer) ended() bool { return s.nodes[0].Crash() != "" }

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
		if err = withConn(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
			if err := execEach(ctx, conn, `USE `+myDatabase); err != nil {
				return err
			}
			return do(ctx, conn)
		}); err == nil {
			return nil
		}
	}
	return err
}

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

func (s *mysqlServer) write(ctx context.Context) error {
	return s.exec(ctx, `FLUSH NO_WRITE_TO_BINLOG BINARY LOGS`,
		`PURGE BINARY LOGS BEFORE now()`) // else its logs alone would fill the disk
}

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

func (s *mysqlServer) Edit(ctx context.Context, e Edit) error {
	return onceMore(ctx, func() error { return s.tables.Edit(ctx, e) })
}

// Block implements Database: a session of the harness has locked all tables that the
// lock writes.
func (s *mysqlServer) Block(ctx context.Context) (unblock func(), err error) {
	if s.galera() {
		return nil, fmt.Errorf("%w: no session blocks the other nodes", errCannotInject)
	}
	return block(ctx, s.dbs[0], `USE `+myDatabase, `SET SESSION lock_wait_timeout = 5`,
		`LOCK TABLES scheduler_lock READ, scheduler_terms READ, scheduler_fence READ,
			scheduler_fenced READ, scheduler_jobs READ, scheduler_runs READ,
			scheduler_requests READ, scheduler_pauses READ, scheduler_audit READ`)
}

// Blocked implements Database: somebody has the row or the fence locked.
func (s *mysqlServer) Blocked(ctx context.Context) bool {
	if s.galera() { // only on its own node
		return false
	}
	return myNumber(s.exec(ctx, `START TRANSACTION`,
		`SELECT 1 FROM scheduler_lock FOR UPDATE NOWAIT`,
		`SELECT 1 FROM scheduler_fence FOR UPDATE NOWAIT`,
		`ROLLBACK`)) == 1205 // ER_LOCK_WAIT_TIMEOUT
}
