// Package pgtest runs temporary PostgreSQL servers, standbys and PgBouncers for tests.
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
//
//	url := pgtest.Shared(t).Database(t)
//
// The servers listen on a free port of 127.0.0.1, with trust authentication and the superuser
// postgres. They run with fsync off: they survive any death of their processes, not that of the
// machine. Their files are in memory if there is room and TMPDIR is not set, but on a disk if the
// settings say fsync. Root runs them as the user postgres, or else nobody, as PostgreSQL refuses to
// be root.
//
// Nothing stays behind, however the test binary ends: see package tempserver.
//
// Under -short the tests that need a server are skipped. On a machine without the binaries the
// tests are skipped, and fail if the environment has CI=true.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// defaults come first in postgresql.conf: the settings of a caller win. What a standby has yet to
// fetch must outlast the checkpoints of all tests. Shared memory is a file of the cluster (mmap),
// and ends with it: what is in /dev/shm (posix) outlives a server that is killed.
const defaults = `
fsync = off
max_connections = 200
shared_buffers = 16MB
dynamic_shared_memory_type = mmap
wal_level = replica
max_wal_senders = 10
wal_keep_size = 64MB
hot_standby = on
`

// inMemory are settings for files in memory, where no page is torn and each one counts.
const inMemory = `
full_page_writes = off
wal_init_zero = off
max_wal_size = 256MB
`

// Server is a PostgreSQL server. URL, Port, Dir and Database may be called concurrently; what stops
// or starts it may not.
type Server struct {
	process *tempserver.Process
	bin     string // directory of the binaries
	disk    bool   // its files are on a disk
	port    int

	original sync.Once // makes the database of Filled
	filled   bool

	copied sync.RWMutex // as long as it is, no database is dropped: the copy would fail

	mu      sync.Mutex
	session *pgx.Conn // of the superuser, in the database postgres; may be nil
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Run runs the tests, then stops and deletes the shared server if there is one. It returns the exit
// code.
func Run(m interface{ Run() int }) int {
	child.SideBySide(12)
	child.InMemory()
	code := m.Run()
	if shared.server != nil {
		shared.server.process.Remove()
	}
	return code
}

// RunSeated is [Run] for a package that keeps many processes busy: see [child.Seat].
func RunSeated(m interface{ Run() int }) int {
	child.SideBySide(20)
	defer child.Seat()()
	return Run(m)
}

// Shared returns the one server of this test binary, started at first use. No test may stop it.
// TestMain must call [Run].
func Shared(t testing.TB) *Server {
	t.Helper()
	long(t)
	shared.once.Do(func() { shared.server, shared.err = create(nil) })
	tempserver.Need(t, shared.err)
	return shared.server
}

// Start returns a server of the test's own, stopped and deleted at its end. Settings are lines of
// postgresql.conf: "name=value".
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	long(t)
	s, err := create(settings)
	tempserver.Need(t, err)
	t.Cleanup(s.process.Remove)
	return s
}

// Standby returns a running streaming replica of s, stopped and deleted at the end of the test.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	p, err := tempserver.New(s.disk, "postgres", "nobody")
	tempserver.Need(t, err)
	t.Cleanup(p.Remove)
	standby := &Server{process: p, bin: s.bin, disk: s.disk}
	s.copied.Lock()
	err = p.Run(filepath.Join(s.bin, "pg_basebackup"), "-D", standby.data(), "-R",
		"-X", "fetch", "-c", "fast", "--no-sync", "--no-manifest",
		"-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "postgres")
	s.copied.Unlock()
	tempserver.Need(t, err)
	tempserver.Need(t, standby.startOnFreePort())
	return standby
}

// Promote makes a standby a primary, and waits until it is one. The statement itself does not
// wait: what is still to be replayed could wait for its snapshot, until the server cancels it.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	tempserver.Need(t, s.admin("SELECT pg_promote(false)"))
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := s.admin("DO $$ BEGIN IF pg_is_in_recovery() THEN " +
			"RAISE 'still a standby'; END IF; END $$")
		if err == nil {
			return
		}
		if time.Since(began) > tempserver.Patience {
			tempserver.Need(t, err)
		}
	}
}

var databases atomic.Int64

// Database creates an empty database, dropped with all its sessions at the end of the test, and
// returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.Copy(t, "template0")
}

// Copy is [Server.Database] with what another database has, which nobody may be connected to.
func (s *Server) Copy(t testing.TB, of string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	tempserver.Need(t, s.admin("CREATE DATABASE "+name+" TEMPLATE "+of+s.byFile()))
	t.Cleanup(func() {
		if s.PID() == 0 {
			return // the test has stopped its server
		}
		s.copied.RLock()
		defer s.copied.RUnlock()
		if err := s.admin("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return s.URL(name)
}

// Filled is [Server.Database] with what fill puts into the first one: the others are copies of it,
// which is faster. All calls must give the same fill.
func (s *Server) Filled(t testing.TB, fill func(url string)) string {
	t.Helper()
	const original = "original"
	s.original.Do(func() {
		tempserver.Need(t, s.admin("CREATE DATABASE "+original+" TEMPLATE template0"))
		fill(s.URL(original))
		s.filled = true
	})
	if !s.filled {
		t.Fatal("the original was not filled: see the first test that has failed")
	}
	return s.Copy(t, original)
}

// byFile lets CREATE DATABASE copy files, as before version 15: that takes a third of the time that
// the copy by the log takes, and a standby reads no log of it.
func (s *Server) byFile() string {
	version, err := os.ReadFile(filepath.Join(s.data(), "PG_VERSION"))
	if major, _ := strconv.Atoi(strings.TrimSpace(string(version))); err != nil || major < 15 {
		return ""
	}
	return " STRATEGY file_copy"
}

// URL returns the URL of a database, as the superuser and without TLS.
func (s *Server) URL(database string) string { return databaseURL(s.port, database) }

// Port returns the TCP port on 127.0.0.1. It never changes.
func (s *Server) Port() int { return s.port }

// Dir returns the directory of the server: it has the Unix socket, the file log, and the data
// directory data.
func (s *Server) Dir() string { return s.process.Dir }

// PID returns the process id of the postmaster, 0 if it is stopped.
func (s *Server) PID() int { return s.process.PID() }

// Stop stops the server, in mode "fast", which ends all sessions in order, or "immediate", which is
// a crash.
func (s *Server) Stop(t testing.TB, mode string) {
	t.Helper()
	switch mode {
	case "fast":
		tempserver.Need(t, s.process.Stop(syscall.SIGINT))
	case "immediate":
		tempserver.Need(t, s.process.Stop(syscall.SIGQUIT))
	default:
		t.Fatalf("pgtest: unknown mode %q: use fast or immediate", mode)
	}
}

// StartAgain starts a stopped server: the same port, the same data. It waits until the server
// answers, and before that until orphans of a killed postmaster are gone.
func (s *Server) StartAgain(t testing.TB) {
	t.Helper()
	if s.PID() != 0 {
		t.Fatalf("pgtest: the server runs already, as process %d", s.PID())
	}
	tempserver.Need(t, s.start("address already in use"))
}

// Restart is Stop and StartAgain.
func (s *Server) Restart(t testing.TB, mode string) {
	t.Helper()
	s.Stop(t, mode)
	s.StartAgain(t)
}

// KillPostmaster kills the postmaster with SIGKILL. Its backends notice, each in its time.
func (s *Server) KillPostmaster(t testing.TB) {
	t.Helper()
	tempserver.Need(t, s.process.Stop(syscall.SIGKILL))
}

func (s *Server) data() string { return filepath.Join(s.process.Dir, "data") }

// create makes a new cluster and starts it.
func create(settings []string) (_ *Server, err error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	disk := slices.ContainsFunc(settings, func(s string) bool {
		return strings.HasPrefix(s, "fsync")
	})
	p, err := tempserver.New(disk, "postgres", "nobody")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Remove()
		}
	}()
	s := &Server{process: p, bin: bin, disk: disk}
	if err := p.Data(template(bin)); err != nil {
		return nil, err
	}
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if !disk {
		settings = append([]string{inMemory}, settings...)
	}
	_, err = conf.WriteString(defaults + strings.Join(settings, "\n") + "\n")
	if err := errors.Join(err, conf.Close()); err != nil {
		return nil, err
	}
	return s, s.startOnFreePort()
}

// template is what initdb makes. Its segments have 1 MB: each server and each copy of one begins
// with a new segment.
func template(bin string) tempserver.Template {
	options := []string{"-U", "postgres", "-A", "trust", "--no-sync", "--locale=C",
		"--encoding=UTF8", "--wal-segsize=1"}
	version := fmt.Sprint(bin, options)
	if program, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
		version += fmt.Sprint(program.Size(), program.ModTime().UnixNano())
	}
	return tempserver.Template{Name: "schedlock-pgtest", Version: version,
		Make: func(p *tempserver.Process) error {
			return p.Run(filepath.Join(bin, "initdb"),
				append([]string{"-D", filepath.Join(p.Dir, "data")}, options...)...)
		}}
}

func (s *Server) startOnFreePort() error {
	return tempserver.OnFreePort(func(port int) error {
		s.port = port
		return s.start() // on another port if this one is taken
	})
}

// start starts the server and waits until it accepts connections. While what is left of a killed
// postmaster still holds its shared memory, or something else that the log names, it tries again.
func (s *Server) start(held ...string) error {
	held = append(held, "pre-existing shared memory block", `"postmaster.pid" already exists`)
	for deadline := time.Now().Add(tempserver.Patience); ; {
		err := s.process.Start(s.ready, filepath.Join(s.bin, "postgres"), "-D", s.data(),
			"-c", "port="+strconv.Itoa(s.port),
			"-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories="+s.process.Dir)
		var died *tempserver.DiedError
		if !errors.As(err, &died) || time.Now().After(deadline) {
			return err
		}
		log := strings.ToLower(died.Log)
		if !slices.ContainsFunc(held, func(what string) bool {
			return strings.Contains(log, what)
		}) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ready reads the file that pg_ctl waits for too.
func (s *Server) ready() bool {
	content, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := bytes.Split(content, []byte("\n"))
	return err == nil && len(lines) > 7 &&
		string(lines[0]) == strconv.Itoa(s.PID()) && string(bytes.TrimSpace(lines[7])) == "ready"
}

// admin runs one statement in the database postgres. Its session stays for the next one, until the
// server ends it.
func (s *Server) admin(query string) error {
	ctx, cancel := context.WithTimeout(context.Background(), tempserver.Patience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || s.session.Ping(ctx) != nil {
		var err error
		if s.session, err = pgx.Connect(ctx, s.URL("postgres")); err != nil {
			return err
		}
	}
	if _, err := s.session.Exec(ctx, query); err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	return nil
}

// databaseURL gives connecting more time than the store would: on a busy machine a
// new session may take long.
func databaseURL(port int, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: fmt.Sprintf("127.0.0.1:%d", port),
		Path: "/" + database, RawQuery: "sslmode=disable&connect_timeout=30",
	}
	return u.String()
}

// binaries returns the directory with the programs of the newest PostgreSQL.
func binaries() (string, error) {
	const pattern = "/usr/lib/postgresql/*/bin"
	newest, found := 0, ""
	dirs, _ := filepath.Glob(pattern)
	for _, dir := range dirs {
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil || major <= newest {
			continue
		}
		if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err == nil {
			newest, found = major, dir
		}
	}
	if found != "" {
		return found, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	return "", &tempserver.MissingError{
		Message: "the programs of PostgreSQL (looked in " + pattern + " and PATH)"}
}

// long skips a test that needs a server if the run shall be short.
func long(t testing.TB) {
	t.Helper()
	missing.Long(t, "starts PostgreSQL")
}
