// Package mytest runs temporary MariaDB servers for tests, as package pgtest does with PostgreSQL:
//
//	func TestMain(m *testing.M) { os.Exit(mytest.Run(m)) }
//
//	url := mytest.Shared(t).Database(t)
//
// The servers listen on a free port of 127.0.0.1, and root has no password. But for [Durable] they
// write to no disk before they answer: they survive any death of their process, not that of the
// machine. Root runs them as the user mysql, or else nobody. Nothing stays behind, however the test
// binary ends: see package tempserver.
//
// Under -short the tests that need a server are skipped. On a machine without the programs the
// tests are skipped, and fail if the environment has CI=true.
package mytest

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// options are of each server. The first one reads no file of the machine's.
var options = []string{
	"--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=400",
	"--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--innodb-doublewrite=OFF",
	"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-fast-shutdown=2",
	"--aria-pagecache-buffer-size=8M", "--performance-schema=OFF", "--sync-binlog=0",
}

// Server is a MariaDB server. URL, DSN, Port and Database may be called concurrently; what stops or
// starts it may not.
type Server struct {
	process  *tempserver.Process
	program  string
	settings []string
	options  []string // of Galera's provider
	port     int
	admin    *sql.DB
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Run runs the tests, then stops and deletes the shared server if there is one. It returns the exit
// code.
func Run(m interface{ Run() int }) int {
	child.InMemory()
	defer Close()
	return m.Run()
}

// RunSeated is [Run] for a package that keeps many processes busy: see [child.Seat].
func RunSeated(m interface{ Run() int }) int {
	child.SideBySide(16)
	defer child.Seat()()
	return Run(m)
}

// Close stops and deletes the shared server, if there is one, where TestMain does not call [Run].
func Close() {
	if shared.server != nil {
		shared.server.remove()
	}
}

// Shared returns the one server of this test binary, started at first use. No test may stop it.
func Shared(t testing.TB) *Server {
	t.Helper()
	missing.Long(t, "starts MariaDB")
	shared.once.Do(func() { shared.server, shared.err = create(nil, false, unprepared) })
	tempserver.Need(t, shared.err)
	return shared.server
}

// Start returns a server of the test's own, stopped and deleted at its end. Settings are options of
// mariadbd: "--name=value". They win against those of this package.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return start(t, settings, false, unprepared)
}

// durable are the settings of a server in use.
var durable = []string{"--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=fsync",
	"--innodb-doublewrite=ON", "--innodb-buffer-pool-size=128M"}

// Durable is [Start] on a disk, with a flush for each commit as by default: to measure.
func Durable(t testing.TB, settings ...string) *Server {
	t.Helper()
	return start(t, append(slices.Clone(durable), settings...), true, unprepared)
}

func start(t testing.TB, settings []string, disk bool, prepare func(*Server) error) *Server {
	t.Helper()
	missing.Long(t, "starts MariaDB")
	s, err := create(settings, disk, prepare)
	tempserver.Need(t, err)
	t.Cleanup(s.remove)
	return s
}

func unprepared(*Server) error { return nil }

// create calls prepare when the data and the port are there, before each attempt to start.
func create(settings []string, disk bool, prepare func(*Server) error) (_ *Server, err error) {
	program, err := tempserver.Find("mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := tempserver.Find("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	p, err := tempserver.New(disk, "mysql", "nobody")
	if err != nil {
		return nil, err
	}
	s := &Server{process: p, program: program, settings: settings}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	if err := p.Data(template(program, install)); err != nil {
		return nil, err
	}
	if err := tempserver.OnFreePort(func(port int) error {
		s.port = port
		s.disconnect() // from the port before
		if err := prepare(s); err != nil {
			return err
		}
		return s.start()
	}); err != nil {
		return nil, err
	}
	return s, nil
}

// template is what mariadb-install-db makes, without the tables of help and time zones.
func template(program, install string) tempserver.Template {
	version := program
	if info, err := os.Stat(program); err == nil {
		version += fmt.Sprint(info.Size(), info.ModTime().UnixNano())
	}
	return tempserver.Template{Name: "schedlock-mytest", Version: version,
		Make: func(p *tempserver.Process) error {
			return p.Run(install, "--no-defaults", "--datadir="+filepath.Join(p.Dir, "data"),
				"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
				"--innodb-log-file-size=16M", "--innodb-flush-method=nosync")
		}}
}

func (s *Server) start() error {
	return s.process.Start(s.ready, s.program, s.args()...)
}

func (s *Server) args(more ...string) []string {
	args := append(append([]string{}, options...), "--port="+strconv.Itoa(s.port),
		"--datadir="+filepath.Join(s.process.Dir, "data"),
		// At its start a server deletes what is in the folder, of other servers too.
		"--tmpdir="+s.process.Dir,
		"--socket="+filepath.Join(s.process.Dir, "socket"),
		"--pid-file="+filepath.Join(s.process.Dir, "pid"))
	return append(append(args, s.settings...), more...)
}

// ready asks the server something, so that it does not only listen. Another server may have
// taken its port meanwhile.
func (s *Server) ready() bool {
	if s.admin == nil {
		db, err := connect(s.DSN(""))
		if err != nil {
			return false
		}
		s.admin = db
	}
	var data string
	err := s.admin.QueryRow("SELECT @@datadir").Scan(&data)
	return err == nil && filepath.Clean(data) == s.Data()
}

func (s *Server) disconnect() {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	s.admin = nil
}

func (s *Server) remove() {
	s.disconnect()
	_ = s.process.Stop(syscall.SIGKILL) // nobody reads its data any more
	s.process.Remove()
}

var databases atomic.Int64

// Database creates an empty database, dropped at the end of the test, and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	s.Exec(t, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if !s.process.Ended() { // else the test has stopped its server
			// a transaction that the test has left open must not stop it for a day
			s.Exec(t, "SET STATEMENT lock_wait_timeout = 20 FOR DROP DATABASE "+name)
		}
	})
	return s.URL(name)
}

// Exec runs a statement as root, outside any database.
func (s *Server) Exec(t testing.TB, query string) {
	t.Helper()
	if _, err := s.admin.Exec(query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// URL returns the URL of a database, as root.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("mysql://root@127.0.0.1:%d/%s?timeout=30s", s.port, database)
}

// DSN returns what the driver calls the URL.
func (s *Server) DSN(database string) string {
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr = "root", "tcp", fmt.Sprintf("127.0.0.1:%d", s.port)
	c.DBName = database
	return c.FormatDSN()
}

// connect opens a DSN. The driver would print what becomes of a connection.
func connect(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Name is that of the database of a URL.
func Name(url string) string {
	name, _, _ := strings.Cut(url[strings.LastIndex(url, "/")+1:], "?")
	return name
}

// Open opens the database of a URL for the test itself, with settings of the driver: "name=value".
func (s *Server) Open(t testing.TB, url string, settings ...string) *sql.DB {
	t.Helper()
	db, err := connect(s.DSN(Name(url)) + "?" + strings.Join(settings, "&"))
	tempserver.Need(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Data is the folder of its data.
func (s *Server) Data() string { return filepath.Join(s.process.Dir, "data") }

// Port returns the TCP port on 127.0.0.1. It never changes.
func (s *Server) Port() int { return s.port }

// Kill ends the server at once.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	tempserver.Need(t, s.process.Stop(syscall.SIGKILL))
}

// Stop ends the server in good order.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	tempserver.Need(t, s.process.Stop(syscall.SIGTERM))
}

// Crash is the end of the server's log if the server has ended although nobody has stopped
// it, else "".
func (s *Server) Crash() string {
	if s.process.PID() == 0 || !s.process.Ended() {
		return ""
	}
	return s.Log()
}

// Log is the end of the server's log.
func (s *Server) Log() string {
	text, err := os.ReadFile(filepath.Join(s.process.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6000):])
}

// StartAgain starts a stopped server: the same port, the same data.
func (s *Server) StartAgain(t testing.TB) {
	t.Helper()
	tempserver.Need(t, s.start())
}

// Address is where the server listens.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// OnSocket is the DSN of the database of a URL through the server's unix socket.
func (s *Server) OnSocket(url string) string {
	return "root@unix(" + filepath.Join(s.process.Dir, "socket") + ")/" + Name(url)
}

// Primary returns a server of the test's own that may have replicas.
func Primary(t testing.TB, settings ...string) *Server {
	t.Helper()
	return Start(t, append(primary(), settings...)...)
}

func primary() []string {
	return []string{"--server-id=1", "--log-bin=binlog", "--binlog-format=ROW"}
}

const readOnly = "--read-only"

// Replica returns an asynchronous replica of a Primary, or of a replica that was promoted. It
// has what the primary has, soon, and takes writes from root only.
func (s *Server) Replica(t testing.TB, settings ...string) *Server {
	t.Helper()
	id := strconv.Itoa(s.port) // no two servers of a chain have the same one before them
	r := Start(t, append([]string{"--server-id=" + id, "--log-bin=binlog", "--binlog-format=ROW",
		"--log-slave-updates", readOnly}, settings...)...)
	r.Exec(t, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %d, "+
		"MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1", s.port))
	r.Exec(t, "START SLAVE")
	return r
}

// Promote makes a replica a server that takes writes, with what it has so far.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.Exec(t, "STOP SLAVE")
	s.Exec(t, "RESET SLAVE ALL")
	s.Exec(t, "SET GLOBAL read_only = 0")
	s.settings = slices.DeleteFunc(s.settings, func(option string) bool {
		return option == readOnly // it stays so when it is restarted
	})
}
