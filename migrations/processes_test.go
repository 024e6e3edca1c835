package migrations_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
)

// The test binary is its own replica: with this variable set it runs one instead of the tests.
const replicaRole, replicaDSN = "MIGRATIONS_TEST_ROLE", "MIGRATIONS_TEST_DSN"

// roles are others that a test file adds.
var roles = map[string]func(dsn string) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv(replicaRole); role != "" {
		if err := replica(role, os.Getenv(replicaDSN)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(withServers{m})
}

// withServers stops the servers of the tests before goleak looks.
type withServers struct{ m *testing.M }

func (w withServers) Run() int {
	defer mytest.Close()
	return pgtest.Run(w.m)
}

// replica says "ready", waits until its standard input ends, opens the database, migrates, and says
// how long that took and at which version it found the schema then.
func replica(role, dsn string) error {
	if do := roles[role]; do != nil {
		return do(dsn)
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	start := time.Now()
	var onConnect func(*sqlite3.Conn) error
	if role == "stall" {
		onConnect = func(c *sqlite3.Conn) error {
			return hookInTheMiddle(c, func() { fmt.Println("stalled"); select {} })
		}
	}
	db, err := driver.Open(dsn, onConnect)
	if err != nil {
		return err
	}
	defer db.Close()
	return migrateOnce(db, migrations.SQLite, start)
}

// migrateOnce is what each of many processes does. It prints the version and how long that took.
func migrateOnce(db *sql.DB, dialect migrations.Dialect, start time.Time) error {
	ctx := context.Background() // so that the default of 30 s is what bounds it
	if err := migrations.Up(ctx, db, dialect); err != nil {
		return err
	}
	took := time.Since(start)
	version, err := migrations.Version(ctx, db, dialect)
	fmt.Println(version, took)
	return err
}

type process struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
	start  io.Closer
}

// newReplica starts a replica that is ready, and ends it with the test.
func newReplica(t *testing.T, role, dsn string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(child.Environ(), replicaRole+"="+role, replicaDSN+"="+dsn)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.start, p.out = stdin, bufio.NewReader(stdout)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		_ = p.cmd.Wait()
		require.NoError(t, err, "the replica said: %s%s", line, p.stderr.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// finish waits until the replica has migrated, and returns how long that took.
func (p *process) finish(t *testing.T) time.Duration {
	t.Helper()
	var (
		version int64
		text    string
	)
	line := p.line(t)
	_, err := fmt.Sscan(line, &version, &text)
	require.NoError(t, err, "not a result: %q", line)
	took, err := time.ParseDuration(text)
	require.NoError(t, err)
	assert.Equal(t, migrations.Latest, version)
	rest, err := io.ReadAll(p.out)
	require.NoError(t, err)
	assert.Empty(t, string(rest), "nothing else may be written to stdout")
	require.NoError(t, p.cmd.Wait())
	assert.Empty(t, p.stderr.String())
	return took
}

// startAll lets a replica on each DSN migrate, all at once when ready has returned, and
// returns how long the slowest of them needed.
func startAll(t *testing.T, role string, dsns []string, ready func()) (slowest time.Duration) {
	t.Helper()
	all := make([]*process, len(dsns))
	for i, dsn := range dsns {
		all[i] = newReplica(t, role, dsn)
	}
	for _, p := range all {
		require.Equal(t, "ready", p.line(t))
	}
	ready()
	for _, p := range all {
		require.NoError(t, p.start.Close())
	}
	for _, p := range all {
		slowest = max(slowest, p.finish(t))
	}
	return slowest
}

func TestTwentyProcessesStartAtOnce(t *testing.T) {
	missing.Long(t, "takes seconds")
	const replicas = 20
	noBusyTimeout := func(path string) string { return plain(path) + "?_pragma=busy_timeout(0)" }
	dsns := []struct {
		name string
		dsn  func(path string) string
		file func(t *testing.T) string // newPath: it does not exist
	}{
		{"ours", ours, newPath},
		{"plain", plain, newPath},
		{"WAL without a busy timeout", func(path string) string {
			return plain(path) + "?_pragma=journal_mode(wal)"
		}, newPath},
		{"no busy timeout", noBusyTimeout, newPath},
		{"WAL, immediate, no busy timeout", func(path string) string {
			return plain(path) +
				"?_pragma=busy_timeout(0)&_pragma=journal_mode(wal)&_txlock=immediate"
		}, newPath},
		{"from version 1, ours", ours, atVersion1},
		{"from version 1, no busy timeout", noBusyTimeout, atVersion1},
	}
	var slowestOfAll time.Duration
	for _, d := range missing.Some(dsns...) {
		t.Run(d.name, func(t *testing.T) {
			path := d.file(t)
			_, existed := os.Stat(path)
			slowest := startAll(t, "up", slices.Repeat([]string{d.dsn(path)}, replicas), func() {
				_, exists := os.Stat(path)
				require.Equal(t, existed, exists, "none has begun")
			})
			t.Logf("%d processes, the slowest needed %v", replicas, slowest)
			slowestOfAll = max(slowestOfAll, slowest)
			assertSchema(t, open(t, plain(path)))
		})
	}
	t.Logf("slowest of %d starts: %v", replicas*len(dsns), slowestOfAll)
}

func TestAProcessKilledInTheMiddleLetsTheOthersGoOn(t *testing.T) {
	missing.Long(t, "kills processes")
	t.Run("on an empty file", func(t *testing.T) { assertOthersGoOn(t, newPath(t)) })
	t.Run("from version 1", func(t *testing.T) { assertOthersGoOn(t, atVersion1(t)) })
}

func assertOthersGoOn(t *testing.T, path string) {
	t.Helper()
	stalled := newReplica(t, "stall", ours(path))
	require.NoError(t, stalled.start.Close())
	require.Equal(t, "ready", stalled.line(t))
	require.Equal(t, "stalled", stalled.line(t))
	held, err := flock.New(path + "-migrate.lock").TryLock()
	require.NoError(t, err)
	require.False(t, held, "the stalled process should hold the migration lock")

	others := make([]*process, 5)
	for i := range others {
		others[i] = newReplica(t, "up", ours(path))
		require.Equal(t, "ready", others[i].line(t))
		require.NoError(t, others[i].start.Close())
	}
	finished := make(chan string, 1)
	go func() { line, _ := others[0].out.Peek(1); finished <- string(line) }()
	select {
	case <-finished:
		t.Fatal("a replica did not wait for the one that migrates")
	case <-time.After(200 * time.Millisecond):
	}

	require.NoError(t, stalled.cmd.Process.Kill())
	<-finished
	for _, p := range others {
		p.finish(t)
	}
	db, err := sql.Open("sqlite3", ours(path))
	require.NoError(t, err)
	defer db.Close()
	assertSchema(t, db)
	assert.FileExists(t, path+"-migrate.lock", "a left-over lock file blocks nobody")
	assertUnlocked(t, path)
}
