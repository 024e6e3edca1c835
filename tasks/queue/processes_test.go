package queue_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/tasks/queue"
)

var manyTasks = flag.Int("queue.tasks", 300,
	"how many tasks the eight processes of TestEightProcesses share")

// The test binary is its own worker: with this variable set it is one instead
// of running the tests.
const workerEnv = "QUEUE_TEST_WORKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		var w worker
		err := json.Unmarshal([]byte(text), &w)
		if err == nil {
			err = w.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = flag.Set("rapid.checks", "30") // the flag on the command line comes later, and wins
	os.Exit(pgtest.Run(m))
}

const (
	workTimeout = 3 * time.Second
	workRetries = 20 // a worker on a busy machine may lose what it has, again and again
	workers     = 10 // handlers of a process
)

// A worker is one process.
type worker struct {
	URL   string
	Log   string // a line for each attempt
	Stall bool   // it holds what it has, and says so
}

// openStore opens SQLite or PostgreSQL, by the URL.
func openStore(ctx context.Context,
	url string) (store interface{ Close() error }, q taskqueue.Store, err error) {
	if strings.HasPrefix(url, "postgres:") {
		s, err := postgres.Open(ctx, url, postgres.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return nil, nil, err
		}
		return s, s.Queue(), nil
	}
	s, err := sqlite.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Queue(), nil
}

// machineLimit is how long what must succeed may take on a busy machine.
const machineLimit = 3 * time.Minute

func migrate(store any) error {
	ctx, cancel := context.WithTimeout(ctx, machineLimit)
	defer cancel()
	return store.(interface{ Migrate(context.Context) error }).Migrate(ctx)
}

// run works until it is killed. What it writes to its log it has written before it
// goes on, whatever becomes of it.
func (w worker) run() error {
	log, err := os.OpenFile(w.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	store, q, err := openStore(ctx, w.URL)
	for end := time.Now().Add(machineLimit); err != nil; store, q, err = openStore(ctx, w.URL) {
		if time.Now().After(end) {
			return err
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(100 * time.Millisecond)
	}
	defer store.Close()
	queues, err := queue.New(q, queue.WithTimeout(workTimeout))
	if err != nil {
		return err
	}
	return queues.Work(ctx, "q", func(_ context.Context, task *queue.Task) error {
		_, err := fmt.Fprintln(log, task.ID, task.Attempts)
		fmt.Println("works")
		if w.Stall {
			select {}
		}
		time.Sleep(10 * time.Millisecond)
		return err
	}, queue.WorkOptions{Workers: workers, MaxPause: 20 * time.Millisecond})
}

// A process is a worker that runs.
type process struct {
	worker
	cmd *exec.Cmd
	out *bufio.Scanner
}

func start(t *testing.T, w worker) *process {
	t.Helper()
	text, err := json.Marshal(w)
	require.NoError(t, err)
	p := &process{worker: w, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(child.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// works waits until n attempts of the worker have begun, and goes on reading then.
func (p *process) works(t *testing.T, n int) {
	t.Helper()
	for range n {
		require.True(t, p.out.Scan(), "the worker has ended")
	}
	go func() {
		for p.out.Scan() {
		}
	}()
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func TestEightProcesses(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		eightProcesses(t, "file:"+filepath.Join(pgtest.TempDir(t), "app.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		eightProcesses(t, pgtest.Shared(t).Database(t))
	})
}

// eightProcesses lets eight workers share a queue; two of them are killed, one
// while it holds ten tasks, one at whatever it is doing. Every task must be done,
// within its retries, and no attempt be given to two of them. Package faults asks
// also that a task never has two live workers.
func eightProcesses(t *testing.T, url string) {
	store, q, err := openStore(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	require.NoError(t, migrate(store))
	queues, err := queue.New(q)
	require.NoError(t, err)
	ids := make([]string, *manyTasks)
	for i := range ids {
		ids[i] = fmt.Sprintf("task-%05d", i)
	}
	added, err := queues.Add(ctx, "q", workRetries, ids...)
	require.NoError(t, err)
	require.Equal(t, ids, added)

	dir := pgtest.TempDir(t)
	var all []*process
	began := time.Now()
	for i, attempts := range []int{workers, 1, 0, 0, 0, 0, 0, 0} {
		all = append(all, start(t, worker{URL: url, Log: filepath.Join(dir, fmt.Sprint(i)),
			Stall: i == 0}))
		all[i].works(t, attempts) // before others can have done everything
	}
	all[0].kill()
	all[1].kill()
	require.Eventually(t, func() bool {
		counts, err := queues.Count(ctx)
		return err == nil && counts[0].Done == int64(len(ids))
	}, machineLimit+time.Duration(len(ids))*20*time.Millisecond, 20*time.Millisecond)
	took := time.Since(began)

	attempts, given := 0, map[string]bool{}
	for _, p := range all {
		text, err := os.ReadFile(p.Log)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			require.False(t, given[line], "%q was given to two workers", line)
			given[line] = true
		}
	}
	for _, id := range ids {
		info, found, err := queues.Get(ctx, "q", id)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, queue.Done, info.State, "task %q", id)
		require.Equal(t, workRetries-(info.Attempts-1), info.RetriesLeft, "task %q", id)
		require.True(t, given[fmt.Sprintln(id, info.Attempts)], "nobody has done task %q", id)
		attempts += info.Attempts
	}
	require.GreaterOrEqual(t, attempts, len(ids)+workers,
		"what the first victim had must be done by others")
	t.Logf("%d tasks, %d attempts, in %v (%.0f tasks/s, time-outs included)", len(ids), attempts,
		took, float64(len(ids))/took.Seconds())
}
