package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/schedlock/internal/tempserver"
)

// Bouncer is a PgBouncer in transaction mode.
type Bouncer struct {
	process *tempserver.Process
	path    string // of the program
	port    int

	mu     sync.Mutex // guards the start and the stop of the process
	wanted bool       // it should run
}

// PgBouncer starts a PgBouncer in front of s, stopped at the end of the test. Everybody that s
// knows may log in, without a password. Settings are lines of the section pgbouncer: "name=value".
func PgBouncer(t testing.TB, s *Server, settings ...string) *Bouncer {
	t.Helper()
	path, err := tempserver.Find("pgbouncer")
	tempserver.Need(t, err)
	p := logged(t)
	b := &Bouncer{process: p, path: path}
	var supervising sync.WaitGroup
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended); supervising.Wait() })
	users := filepath.Join(p.Dir, "users")
	tempserver.Need(t, os.WriteFile(users, []byte(`"postgres" ""`+"\n"), 0o644))
	tempserver.Need(t, tempserver.OnFreePort(func(port int) error {
		b.port = port
		// After a failed login it waits that long, in seconds, before it tries again:
		// by default 15.
		conf := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr=127.0.0.1
listen_port=%d
unix_socket_dir=
pool_mode=transaction
auth_type=trust
auth_file=%s/users
auth_user=postgres
admin_users=postgres
max_client_conn=500
server_login_retry=1
%s
`, s.port, port, p.Dir, strings.Join(settings, "\n"))
		if err := os.WriteFile(b.conf(), []byte(conf), 0o644); err != nil {
			return err
		}
		return b.start()
	}))
	b.wanted = true
	supervising.Go(func() { b.supervise(t, ended) })
	return b
}

// supervise starts a PgBouncer again that has died by itself, as an init system would: version 1.18
// was seen to go down with a server that was restarted under load.
func (b *Bouncer) supervise(t testing.TB, ended <-chan struct{}) {
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ended:
			tick.Stop()
			return
		case <-tick.C:
		}
		b.mu.Lock()
		if b.wanted && b.process.Ended() {
			t.Logf("PgBouncer has died, and is started again: %v", b.start())
		}
		b.mu.Unlock()
	}
}

// URL returns the URL of a database behind it, as the superuser and without TLS. A pgx pool also
// needs a parameter such as default_query_exec_mode=exec: it does not add it.
func (b *Bouncer) URL(database string) string { return databaseURL(b.port, database) }

// Stop ends it at once, and with it all connections.
func (b *Bouncer) Stop(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = false
	// SIGTERM waits for the clients from 1.23 on.
	tempserver.Need(t, b.process.Stop(syscall.SIGQUIT))
}

// StartAgain starts a stopped one, on the same port, and waits until it accepts connections.
func (b *Bouncer) StartAgain(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.process.Ended() {
		t.Fatal("pgtest: PgBouncer runs already")
	}
	tempserver.Need(t, b.start())
	b.wanted = true
}

// Restart is Stop and StartAgain.
func (b *Bouncer) Restart(t testing.TB) {
	t.Helper()
	b.Stop(t)
	b.StartAgain(t)
}

func (b *Bouncer) conf() string { return filepath.Join(b.process.Dir, "pgbouncer.ini") }

func (b *Bouncer) start() error {
	return b.process.Start(func() bool { return tempserver.Answers(b.port) }, b.path, b.conf())
}

// logged is a new process, the end of whose log is shown if the test fails.
func logged(t testing.TB) *tempserver.Process {
	t.Helper()
	p, err := tempserver.New(false, "postgres", "nobody")
	tempserver.Need(t, err)
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(p.Dir, "log")); err == nil && t.Failed() {
			t.Logf("the end of a log:\n%s", text[max(0, len(text)-4000):])
		}
		p.Remove()
	})
	return p
}
