//go:build unix

package e2e

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/cmd/demoapp/app"
	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
)

// These tests run real replicas: with this variable set, the test binary is
// demoapp.
const replicaVariable = "SCHEDLOCK_TEST_REPLICA"

// What the demo app promises to who runs it.
const (
	envPrefix = "DEMOAPP_" // of its variables

	exitFailed    = 1
	exitBadConfig = 2
	exitHeld      = 3

	orderTimeout = 5 * time.Second        // of the database's part in an order
	readyTimeout = 2 * time.Second        // of an answer of /readyz
	together     = 500 * time.Millisecond // how long signals count as the first one
)

// everyRun is for newFleet: the logs have a line for every start of a run.
const everyRun = "TEST_EVERY_RUN=1"

// seldom is for newFleet: no tick of that job falls into a test, but for one
// in a thousand hours.
const seldom = "TICK=1000h"

var soak = flag.Bool("soak", false, "repeat what is scaled down by default: "+
	"20 rounds of 20 replicas, 200 starts and stops, 30 faults of a leader, a list of 100,001 runs")

// patience bounds every wait for something that must happen soon, also on a
// machine that does many other things. A test that is about a time checks that
// time by the stamps of the database, see soon.
const patience = 90 * time.Second

// soon is a time that must not be exceeded: the promise itself with -soak, which
// wants a machine of its own. Other runs only tell soon from never.
func soon(promise time.Duration) time.Duration {
	if *soak {
		return promise
	}
	return max(promise, 30*time.Second)
}

// onlyFull skips a test that neither -soak nor a full run asks for.
func onlyFull(t *testing.T, why string) {
	t.Helper()
	if !*soak {
		missing.OnlyFull(t, why)
	}
}

// sized returns how often something is done: by default, in a full run, with -soak.
func sized(usual, full, soaked int) int {
	switch {
	case *soak:
		return soaked
	case missing.Full():
		return full
	}
	return usual
}

// requireWithin repeats what is measured until it took less than the promise, or for as long as
// patience. Other work on the machine makes it slower, never faster. A machine of CI's may be
// starved all the time, and the race detector is slow: there it only tells soon from never.
func requireWithin(t *testing.T, promise time.Duration, measure func() time.Duration) {
	t.Helper()
	limit := promise
	if os.Getenv("CI") == "true" || child.Raced() {
		limit = soon(promise)
	}
	var took []time.Duration
	for begun := time.Now(); time.Since(begun) < patience; {
		took = append(took, measure())
		if took[len(took)-1] < limit {
			return
		}
	}
	require.Failf(t, "none was below the limit", "%v: %v", limit, took)
}

func TestMain(m *testing.M) {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(replicaMain())
	}
	os.Exit(pgtest.RunSeated(browsertest.EndAfter(m)))
}

// replicaMain waits until it is told to go, so that many can start in the same
// instant, and ends with the test that started it, whatever happens to that.
func replicaMain() int {
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return exitFailed
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitFailed)
	}()
	if os.Getenv(envPrefix+"TEST_EVERY_RUN") != "" {
		app.LogLevel.Set(slog.LevelDebug)
	}
	return app.Main(os.Args[1:], os.Stderr)
}

// A fleet is the replicas of one test: they share a folder and, unless told
// otherwise, a database file in it.
type fleet struct {
	t        *testing.T
	dir      string
	db       string   // the file
	url      string   // of the replicas' database
	server   string   // URL of a PostgreSQL database as the test comes to it; "": there is the file
	env      []string // without the prefix
	environ  []string // of the whole process
	stderr   *os.File // of the replicas; nil: the log of each
	program  string   // that the next replicas run; "": the app of this test binary
	mu       sync.Mutex
	replicas []*replica
}

// A maker is newFleet, or newPostgresFleet.
type maker = func(t *testing.T, env ...string) *fleet

// newFleet makes a fleet without replicas. env is NAME=value, without the
// prefix DEMOAPP_.
func newFleet(t *testing.T, env ...string) *fleet {
	t.Helper()
	missing.Long(t, "starts replicas")
	return newShortFleet(t, env...)
}

// newShortFleet is newFleet for a test whose replicas come to serve nothing.
func newShortFleet(t *testing.T, env ...string) *fleet {
	t.Helper()
	dir, err := filepath.EvalSymlinks(pgtest.TempDir(t))
	require.NoError(t, err)
	db := filepath.Join(dir, "bans.db")
	return &fleet{t: t, dir: dir, db: db, url: "file:" + db, env: env}
}

// newPostgresFleet is newFleet on a database of the shared server.
func newPostgresFleet(t *testing.T, env ...string) *fleet {
	t.Helper()
	return newFleetOn(t, pgtest.Shared(t).Database(t), env...)
}

// newFleetOn is newFleet on the PostgreSQL database of that URL.
func newFleetOn(t *testing.T, url string, env ...string) *fleet {
	t.Helper()
	f := newFleet(t, env...)
	f.url, f.server = url, url
	return f
}

// onEachDatabase runs a test on SQLite and, in a full run, on PostgreSQL: the default run leaves
// it to the conformance suite that the two are alike.
func onEachDatabase(t *testing.T, test func(t *testing.T, newFleet maker)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, newFleet)
	})
	t.Run("postgres", func(t *testing.T) {
		onlyFull(t, "does the same on another database")
		t.Parallel()
		test(t, newPostgresFleet)
	})
}

// files lists what lies in the fleet's folder.
func (f *fleet) files() (names []string) {
	f.t.Helper()
	entries, err := os.ReadDir(f.dir)
	require.NoError(f.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A replica is one process of demoapp.
type replica struct {
	t      *testing.T
	fleet  *fleet
	cmd    *exec.Cmd
	gate   io.WriteCloser
	log    logBuffer
	url    string
	begun  time.Time
	exited chan struct{} // closed when the process has ended
}

// prepare starts a process that waits for begin.
func (f *fleet) prepare(env ...string) *replica {
	f.t.Helper()
	return f.prepareWith(nil, env...)
}

func (f *fleet) prepareWith(args []string, env ...string) *replica {
	f.t.Helper()
	program := f.program
	if program == "" {
		var err error
		program, err = os.Executable()
		require.NoError(f.t, err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = f.dir
	environ := child.Environ()
	if *soak {
		environ = os.Environ()
	}
	cmd.Env = slices.DeleteFunc(environ, func(v string) bool {
		return strings.HasPrefix(v, envPrefix)
	})
	cmd.Env = append(cmd.Env, f.environ...)
	for _, v := range slices.Concat([]string{"ADDR=127.0.0.1:0", "DATABASE_URL=" + f.url},
		f.env, env) {
		cmd.Env = append(cmd.Env, envPrefix+v)
	}
	return f.hold(cmd)
}

// hold starts a process that waits for begin.
func (f *fleet) hold(cmd *exec.Cmd) *replica {
	f.t.Helper()
	r := &replica{t: f.t, fleet: f, cmd: cmd, exited: make(chan struct{})}
	cmd.Env = append(cmd.Env, replicaVariable+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr, cmd.Stdout = &r.log, &r.log
	if f.stderr != nil {
		cmd.Stderr = f.stderr
	}
	var err error
	r.gate, err = cmd.StdinPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(r.exited)
	}()
	f.t.Cleanup(func() {
		r.kill()
		log := r.log.String()
		for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
			if strings.Contains(log, bad) {
				f.t.Errorf("replica %d: %s", r.pid(), bad)
			}
		}
		if f.t.Failed() {
			f.t.Logf("replica %d, %v:\n%s", r.pid(), r.cmd.ProcessState, log)
		}
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = append(f.replicas, r)
	return r
}

// begin lets a prepared process run.
func (r *replica) begin() {
	r.t.Helper()
	r.begun = time.Now()
	_, err := r.gate.Write([]byte{'\n'})
	require.NoError(r.t, err)
}

// launch starts a replica, which need not come to serve.
func (f *fleet) launch(env ...string) *replica {
	f.t.Helper()
	r := f.prepare(env...)
	r.begin()
	return r
}

// start starts a replica and waits until it serves. One that a busy machine has kept from that
// for too long is started again, as a supervisor does.
func (f *fleet) start(env ...string) *replica {
	f.t.Helper()
	for range 2 {
		r := f.launch(env...)
		if r.serves() {
			return r
		}
		require.Contains(f.t, r.log.String(), "SIGQUIT: quit", "it ended instead of serving")
		f.t.Logf("replica %d has not come to serve", r.pid())
		f.mu.Lock()
		f.replicas = slices.DeleteFunc(f.replicas, func(o *replica) bool { return o == r })
		f.mu.Unlock()
	}
	r := f.launch(env...)
	r.awaitServing()
	return r
}

var servingLine = regexp.MustCompile(`"?msg"?[=:]"?serving"?.*"?addr"?[=:]"?(127\.0\.0\.1:\d+)`)

func (r *replica) awaitServing() {
	r.t.Helper()
	require.True(r.t, r.serves(), "the replica ended instead of serving: %s", &r.log)
}

// serves waits until the replica serves, or has ended instead.
func (r *replica) serves() bool {
	r.t.Helper()
	hangs := time.AfterFunc(25*time.Second, r.fleet.showStacks) // before a stage is given up
	defer hangs.Stop()
	eventually(r.t, "the replica serves", func() error {
		exited := r.hasExited()
		if found := servingLine.FindStringSubmatch(r.log.String()); found != nil {
			r.url = "http://" + found[1]
		} else if !exited {
			return errors.New("no line says so")
		}
		return nil
	})
	return r.url != ""
}

// showStacks ends the replicas that do not serve yet; their logs then tell where
// they hang.
func (f *fleet) showStacks() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.replicas {
		if !servingLine.MatchString(r.log.String()) {
			_ = r.cmd.Process.Signal(syscall.SIGQUIT)
		}
	}
}

func (r *replica) pid() int { return r.cmd.Process.Pid }

func (r *replica) hasExited() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

func (r *replica) signal(s os.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
}

// wait returns the exit code; -1: ended by a signal.
func (r *replica) wait() int {
	r.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(patience):
		require.FailNowf(r.t, "the replica does not end", "pid %d", r.pid())
	}
	return r.cmd.ProcessState.ExitCode()
}

// stop ends the replica as an operator does.
func (r *replica) stop() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	require.Equal(r.t, 0, r.wait(), "exit code after SIGTERM")
}

// kill ends it with SIGKILL, also while it is stopped. It may be called again.
func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	<-r.exited
	_ = r.gate.Close()
}

// freeze stops the process (SIGSTOP) at a moment when it holds no write lock
// of the database or of the row, which would stop everybody else too.
func (f *fleet) freeze(r *replica) {
	f.t.Helper()
	eventually(f.t, "the replica is stopped outside a transaction", func() error {
		r.signal(syscall.SIGSTOP)
		// Its threads run on until one of them has come to see the signal.
		_, err := syscall.Wait4(r.pid(), nil, syscall.WUNTRACED, nil)
		require.NoError(f.t, err)
		probe := `BEGIN IMMEDIATE; ROLLBACK`
		if f.server != "" {
			probe = `SELECT id FROM scheduler_lock FOR UPDATE NOWAIT`
		}
		if _, err := f.trySQL(200*time.Millisecond, probe); err != nil {
			r.signal(syscall.SIGCONT)
			return err
		}
		return nil
	})
}

// eventually waits until do returns nil. It looks less often the longer it takes:
// most looks cost a replica more than it does in the same time.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := 10 * time.Millisecond; ; pause = min(pause*3/2, 100*time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.FailNowf(t, "waited in vain until "+what, "%v", err)
		}
		time.Sleep(pause)
	}
}
