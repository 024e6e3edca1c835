//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ncruces/go-sqlite3/driver"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

// These tests run real replicas: with this variable set, the test binary is
// demoapp.
const replicaVariable = "SCHEDLOCK_TEST_REPLICA"

// everyRun is for newFleet: the logs have a line for every start of a run.
const everyRun = "TEST_EVERY_RUN=1"

var soak = flag.Bool("soak", false, "repeat what is scaled down by default: 20 rounds of 20 replicas, 200 starts and stops, two minutes of faults")

// patience bounds every wait for something that must happen soon. A test that
// is about a time checks that time by the stamps of the database.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(replicaMain())
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen { // the tests wait more than they compute
		_ = flag.Set("test.parallel", "5")
	}
	os.Exit(pgtest.Run(m))
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
		logLevel.Set(slog.LevelDebug)
	}
	return run(os.Args[1:], os.Stderr)
}

// A fleet is the replicas of one test: they share a folder and, unless told
// otherwise, a database file in it.
type fleet struct {
	t        *testing.T
	dir      string
	db       string // the file
	url      string // of the replicas' database
	server   string // URL of a PostgreSQL database as the test comes to it; "": there is the file
	env      []string
	mu       sync.Mutex
	replicas []*replica
}

// newFleet makes a fleet without replicas. env is NAME=value, without the
// prefix DEMOAPP_.
func newFleet(t *testing.T, env ...string) *fleet {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
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

// onEachDatabase runs a test on SQLite and on PostgreSQL.
func onEachDatabase(t *testing.T, test func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, newFleet)
	})
	t.Run("postgres", func(t *testing.T) {
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
	r := &replica{t: f.t, exited: make(chan struct{})}
	exe, err := os.Executable()
	require.NoError(f.t, err)
	r.cmd = exec.Command(exe, args...)
	r.cmd.Dir = f.dir
	r.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envPrefix) })
	r.cmd.Env = append(r.cmd.Env, replicaVariable+"=1", "GORACE=atexit_sleep_ms=0")
	for _, v := range slices.Concat([]string{"ADDR=127.0.0.1:0", "DATABASE_URL=" + f.url}, f.env, env) {
		r.cmd.Env = append(r.cmd.Env, envPrefix+v)
	}
	r.cmd.Stderr, r.cmd.Stdout = &r.log, &r.log
	r.gate, err = r.cmd.StdinPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, r.cmd.Start())
	go func() {
		_ = r.cmd.Wait()
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

// start starts a replica and waits until it serves.
func (f *fleet) start(env ...string) *replica {
	f.t.Helper()
	r := f.launch(env...)
	r.awaitServing()
	return r
}

var servingLine = regexp.MustCompile(`"?msg"?[=:]"?serving"?.*"?addr"?[=:]"?(127\.0\.0\.1:\d+)`)

func (r *replica) awaitServing() {
	r.t.Helper()
	eventually(r.t, "the replica serves", func() error {
		if found := servingLine.FindStringSubmatch(r.log.String()); found != nil {
			r.url = "http://" + found[1]
			return nil
		}
		if r.hasExited() {
			require.FailNow(r.t, "the replica ended instead of serving", r.log.String())
		}
		return errors.New("no line says so")
	})
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

// eventually waits until do returns nil.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.FailNowf(t, "waited in vain until "+what, "%v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// logBuffer is what a replica has written so far.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// with returns the lines that contain all of the words.
func (b *logBuffer) with(words ...string) (lines []string) {
	for line := range strings.Lines(b.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// awaitLine waits for a line with all of the words: a change can be seen a
// moment before it is logged.
func (r *replica) awaitLine(words ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the log has a line with %q", words), func() error {
		if len(r.log.with(words...)) == 0 {
			return errors.New("it has not")
		}
		return nil
	})
}

// errorLines are the lines of level ERROR.
func (r *replica) errorLines() []string {
	return append(r.log.with("level=ERROR"), r.log.with(`"level":"ERROR"`)...)
}

// An answer is what a replica said to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

var client = &http.Client{
	Timeout:       20 * time.Second,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// try makes a request; header is names and values.
func (r *replica) try(method, path string, header ...string) (a answer, err error) {
	req, err := http.NewRequest(method, r.url+path, nil)
	if err != nil {
		return a, err
	}
	for h := range slices.Chunk(header, 2) {
		req.Header.Set(h[0], h[1])
	}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, body}, err
}

func (r *replica) get(path string) answer {
	r.t.Helper()
	a, err := r.try(http.MethodGet, path)
	require.NoError(r.t, err)
	return a
}

// order is what a person asks with curl.
func (r *replica) order(path string, header ...string) answer {
	r.t.Helper()
	a, err := r.try(http.MethodPost, path, header...)
	require.NoError(r.t, err)
	return a
}

// lockAnswer is GET /lock.
type lockAnswer struct {
	Held bool      `json:"held"`
	Lock *lockRow  `json:"lock"`
	Self selfState `json:"self"`
}

type lockRow struct {
	PID              int       `json:"pid"`
	Hostname         string    `json:"hostname"`
	CreatedAt        time.Time `json:"created_at"`
	HeartbeatAt      time.Time `json:"heartbeat_at"`
	TTLSeconds       float64   `json:"ttl_seconds"`
	HeartbeatSeconds float64   `json:"heartbeat_seconds"`
	Term             int64     `json:"term"`
	State            string    `json:"state"`
}

type selfState struct {
	Leader bool   `json:"leader"`
	State  string `json:"state"`
	Term   int64  `json:"term"`
	Reason string `json:"reason"`
}

// termRow is an element of GET /terms.
type termRow struct {
	Term       int64     `json:"term"`
	PID        int       `json:"pid"`
	AcquiredAt time.Time `json:"acquired_at"`
	EndedAt    time.Time `json:"ended_at"`
	EndReason  string    `json:"end_reason"`
}

// runRow is an element of GET /runs.
type runRow struct {
	Job         string    `json:"job"`
	ScheduledAt time.Time `json:"scheduled_at"`
	StartedAt   time.Time `json:"started_at"`
	FinishedAt  time.Time `json:"finished_at"`
	Status      string    `json:"status"`
	Term        int64     `json:"term"`
	PID         int       `json:"pid"`
	Attempt     int       `json:"attempt"`
	Error       string    `json:"error"`
	Until       time.Time `json:"until"`
	Count       int64     `json:"count"`
	RetryAt     time.Time `json:"retry_at"`

	RequestedBy   string `json:"requested_by"`
	RequestReason string `json:"request_reason"`
}

// jobRow is an element of GET /jobs.
type jobRow struct {
	Name        string    `json:"name"`
	Spec        string    `json:"spec"`
	Next        time.Time `json:"next"`
	Paused      *pauseRow `json:"paused"`
	LastSuccess time.Time `json:"last_success"`
	LastFailure time.Time `json:"last_failure"`
	LastError   string    `json:"last_error"`
	Streak      int64     `json:"streak"`
	Done        int64     `json:"done"`
	Failed      int64     `json:"failed"`
}

type pauseRow struct {
	By         string    `json:"by"`
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`
	Everything bool      `json:"everything"`
}

// fetch decodes an answer whose status must be 200.
func fetch[T any](r *replica, path string) (v T) {
	r.t.Helper()
	a := r.get(path)
	require.Equal(r.t, http.StatusOK, a.status, "GET %s: %s", path, a.body)
	require.NoError(r.t, json.Unmarshal(a.body, &v), "GET %s: %s", path, a.body)
	return v
}

func (r *replica) lock() lockAnswer { r.t.Helper(); return fetch[lockAnswer](r, "/lock") }
func (r *replica) terms() []termRow { r.t.Helper(); return fetch[[]termRow](r, "/terms?limit=1000") }

// runs are those of a job, newest first.
func (r *replica) runs(job string) []runRow {
	r.t.Helper()
	return fetch[[]runRow](r, "/runs?limit=100000&job="+job)
}

// job is that of GET /jobs; empty if it is not there.
func (r *replica) job(name string) jobRow {
	r.t.Helper()
	for _, j := range fetch[[]jobRow](r, "/jobs") {
		if j.Name == name {
			return j
		}
	}
	return jobRow{}
}

// awaitRun waits for the newest run of the job tick to be as wanted.
func (r *replica) awaitRun(what string, wanted func(runRow) bool) (run runRow) {
	r.t.Helper()
	eventually(r.t, what, func() error {
		runs := r.runs("tick")
		for _, run = range runs {
			if wanted(run) {
				return nil
			}
		}
		return fmt.Errorf("runs: %+v", runs[:min(len(runs), 3)])
	})
	return run
}

// awaitLeading waits until the replica leads, and returns its term.
func (r *replica) awaitLeading() int64 {
	r.t.Helper()
	var l lockAnswer
	eventually(r.t, fmt.Sprintf("replica %d leads", r.pid()), func() error {
		if l = r.lock(); l.Self.Leader {
			return nil
		}
		return fmt.Errorf("it says: %+v", l.Self)
	})
	return l.Self.Term
}

// startLeader starts a replica and waits until it leads.
func (f *fleet) startLeader(env ...string) (leader *replica, term int64) {
	f.t.Helper()
	leader = f.start(env...)
	return leader, leader.awaitLeading()
}

// awaitOneLeader waits until one of the replicas leads, in a term above after,
// and the others stand by.
func awaitOneLeader(t *testing.T, replicas []*replica, after int64) (leader *replica, term int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("one of %d replicas leads and the others stand by", len(replicas)), func() error {
		leader = nil
		for _, r := range replicas {
			self := r.lock().Self
			switch {
			case self.Leader && leader != nil:
				return fmt.Errorf("%d and %d", leader.pid(), r.pid()) // asked one after the other: need not be at once
			case self.Leader && self.Term > after:
				leader, term = r, self.Term
			case self.State != "standby":
				return fmt.Errorf("replica %d: %+v", r.pid(), self)
			}
		}
		if leader == nil {
			return errors.New("nobody leads")
		}
		return nil
	})
	return leader, term
}

// metrics are all that GET /metrics tells.
func (r *replica) metrics() map[string]*dto.MetricFamily {
	r.t.Helper()
	a := r.get("/metrics")
	require.Equal(r.t, http.StatusOK, a.status)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(a.body))
	require.NoError(r.t, err)
	return families
}

// metric returns the value of a metric with these labels, or with none; 0 if it
// is not there.
func (r *replica) metric(name string, label ...string) float64 {
	r.t.Helper()
	for _, m := range r.metrics()[name].GetMetric() {
		var has []string
		for _, l := range m.GetLabel() {
			has = append(has, l.GetName(), l.GetValue())
		}
		if slices.Equal(has, label) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}

// heartbeats is the number of heartbeats that have succeeded.
func (r *replica) heartbeats() int {
	r.t.Helper()
	all := r.metrics()
	sent, failed := all["schedlock_heartbeat_duration_seconds"].GetMetric(), all["schedlock_heartbeat_failures_total"].GetMetric()
	require.Len(r.t, sent, 1)
	require.Len(r.t, failed, 1)
	return int(sent[0].GetHistogram().GetSampleCount()) - int(failed[0].GetCounter().GetValue())
}

// failedHeartbeats is the number of those that have not.
func (r *replica) failedHeartbeats() int {
	r.t.Helper()
	return int(r.metric("schedlock_heartbeat_failures_total"))
}

// awaitHeartbeats waits until n more heartbeats have succeeded.
func (r *replica) awaitHeartbeats(n int) {
	r.t.Helper()
	before := r.heartbeats()
	eventually(r.t, fmt.Sprintf("%d more heartbeats have succeeded", n), func() error {
		if now := r.heartbeats(); now < before+n {
			return fmt.Errorf("%d have", now-before)
		}
		return nil
	})
}

// shell is the plain SQL shell, "" if there is none that knows strict tables.
var shell = sync.OnceValue(func() string {
	path, err := exec.LookPath("sqlite3")
	if err != nil || exec.Command(path, ":memory:", "CREATE TABLE t (x TEXT) STRICT").Run() != nil {
		return ""
	}
	return path
})

// sql does to the database what an operator would, with the plain shell if
// there is one: rows are lines, columns are separated by |.
func (f *fleet) sql(statement string) string {
	f.t.Helper()
	out, err := f.trySQL(10*time.Second, statement)
	require.NoError(f.t, err, "%s: %s", statement, out)
	return out
}

func (f *fleet) trySQL(busy time.Duration, statement string) (string, error) {
	if f.server != "" {
		return queryServer(f.server, statement)
	}
	if shell() != "" {
		out, err := exec.Command(shell(), "-bail", "-cmd", ".timeout "+strconv.FormatInt(busy.Milliseconds(), 10), f.db, statement).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	db := f.open(busy)
	defer db.Close()
	if !strings.HasPrefix(statement, "SELECT") {
		_, err := db.Exec(statement)
		return "", err
	}
	return query(db, statement)
}

// queryServer runs statements and returns the rows of the last.
func queryServer(url, statement string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		lines = append(lines, string(bytes.Join(row, []byte("|"))))
	}
	return strings.Join(lines, "\n"), nil
}

// open opens the database with the driver, on one connection.
func (f *fleet) open(busy time.Duration) *sql.DB {
	f.t.Helper()
	db, err := driver.Open(fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)", f.db, busy.Milliseconds()))
	require.NoError(f.t, err)
	db.SetMaxOpenConns(1)
	return db
}

func query(db *sql.DB, statement string) (string, error) {
	rows, err := db.Query(statement)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for rows.Next() {
		values, dest := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return "", err
		}
		for i, v := range values {
			if i > 0 {
				out.WriteByte('|')
			}
			out.WriteString(v.String)
		}
		out.WriteByte('\n')
	}
	return strings.TrimSpace(out.String()), rows.Err()
}

// holdWriteLock is another writer, which is at work until done is called.
func (f *fleet) holdWriteLock() (done func()) {
	f.t.Helper()
	db := f.open(10 * time.Second)
	f.t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(context.Background())
	require.NoError(f.t, err)
	_, err = conn.ExecContext(context.Background(), `BEGIN IMMEDIATE`)
	require.NoError(f.t, err)
	return func() {
		f.t.Helper()
		_, err := conn.ExecContext(context.Background(), `ROLLBACK`)
		require.NoError(f.t, errors.Join(err, conn.Close()))
	}
}

// requireNoRow checks that nobody holds the lock and that every term has an
// end.
func (f *fleet) requireNoRow() {
	f.t.Helper()
	require.Equal(f.t, "0", f.sql(`SELECT count(*) FROM scheduler_lock`), "lock rows")
	require.Equal(f.t, "0", f.sql(`SELECT count(*) FROM scheduler_terms WHERE ended_at IS NULL`), "terms without an end")
}

// jsonLines decodes a log in JSON, of which every line must be an object.
func (r *replica) jsonLines() (lines []map[string]any) {
	r.t.Helper()
	for text := range strings.Lines(r.log.String()) {
		if !strings.HasSuffix(text, "\n") {
			break // being written
		}
		var line map[string]any
		require.NoError(r.t, json.Unmarshal([]byte(text), &line), "%s", text)
		lines = append(lines, line)
	}
	return lines
}

// line returns the first line of a JSON log with that message, nil if there is
// none yet.
func (r *replica) line(msg string) map[string]any {
	r.t.Helper()
	for _, line := range r.jsonLines() {
		if line["msg"] == msg {
			return line
		}
	}
	return nil
}
