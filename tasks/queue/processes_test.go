package queue_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
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
	workBatch   = 10
)

// A worker is one process.
type worker struct {
	URL   string
	Log   string // what it did, one event a line
	Stall int    // after so many captures it holds what it has and says so; 0: never
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

// run works until nothing is left. What it writes to its log it has written
// before it goes on, whatever becomes of it.
func (w worker) run() error {
	log, err := os.OpenFile(w.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
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
	for captures := 0; ; {
		tasks, err := queues.Capture(ctx, "q", workBatch)
		now := time.Now()
		switch {
		case errors.Is(err, queue.ErrAllHeld):
			time.Sleep(20 * time.Millisecond)
			continue
		case errors.Is(err, queue.ErrNone):
			return nil
		case err != nil: // the file is busy
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		for _, t := range tasks {
			fmt.Fprintln(log, "captured", t.ID, t.Attempts, now.UnixNano(),
				now.Add(t.Left()).UnixNano())
		}
		if captures++; captures == w.Stall {
			fmt.Println("stalls")
			select {}
		}
		fmt.Println("works")
		for _, t := range tasks {
			if t.Left() == 0 {
				continue // lost, on a very busy machine
			}
			fmt.Fprintln(log, "ended", t.ID, t.Attempts, time.Now().UnixNano())
			for {
				err := queues.Done(ctx, t)
				if err == nil {
					fmt.Fprintln(log, "done", t.ID, t.Attempts)
				} else if !errors.Is(err, schedlock.ErrLost) {
					fmt.Fprintln(os.Stderr, err)
					continue
				}
				break
			}
		}
	}
}

// A process is a worker that runs.
type process struct {
	worker
	cmd  *exec.Cmd
	out  *bufio.Scanner
	dead time.Time // when it was killed
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
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

// says waits until the worker has said a word n times, or has ended.
func (p *process) says(word string, n int) (said bool) {
	for n > 0 {
		if !p.out.Scan() {
			return false
		}
		if p.out.Text() == word {
			n--
		}
	}
	return true
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	for p.out.Scan() {
	}
	_ = p.cmd.Wait()
	p.dead = time.Now()
}

// finish waits until nothing is left for the worker.
func (p *process) finish(t *testing.T) {
	t.Helper()
	for p.out.Scan() {
	}
	require.NoError(t, p.cmd.Wait())
}

// A span is for how long a live worker had a task.
type span struct {
	attempt  int
	from, to int64
	killed   bool
}

// A record is what became of one task, as the workers tell it.
type record struct {
	spans []span
	done  int
}

// read adds what one worker has logged.
func (p *process) read(t *testing.T, records map[string]*record) {
	t.Helper()
	text, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var (
			what, id      string
			attempt       int
			first, second int64
		)
		n, _ := fmt.Sscan(line, &what, &id, &attempt, &first, &second)
		if !strings.HasSuffix(line, "\n") {
			continue // cut off by the kill
		}
		r := records[id]
		require.NotNil(t, r, "%q", line)
		switch what {
		case "captured":
			require.Equal(t, 5, n, "%q", line)
			s := span{attempt: attempt, from: first, to: second}
			if !p.dead.IsZero() {
				s.to, s.killed = min(s.to, p.dead.UnixNano()), true
			}
			r.spans = append(r.spans, s)
		case "ended":
			last := &r.spans[len(r.spans)-1]
			last.to = min(last.to, first)
		case "done":
			r.done++
		}
	}
}

func TestEightProcesses(t *testing.T) {
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
// while it holds ten tasks, one at whatever it is doing. Every task must be done
// once, in as many attempts as were captured, and never have two live workers.
func eightProcesses(t *testing.T, url string) {
	store, q, err := openStore(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	require.NoError(t, migrate(store))
	queues, err := queue.New(q)
	require.NoError(t, err)
	ids := make([]string, *manyTasks)
	records := map[string]*record{}
	for i := range ids {
		ids[i] = fmt.Sprintf("task-%05d", i)
		records[ids[i]] = &record{}
	}
	added, err := queues.Add(ctx, "q", workRetries, ids...)
	require.NoError(t, err)
	require.Equal(t, ids, added)

	dir := pgtest.TempDir(t)
	var all []*process
	began := time.Now()
	for i := range 8 {
		w := worker{URL: url, Log: filepath.Join(dir, fmt.Sprint(i))}
		if i == 0 {
			w.Stall = 3
		}
		all = append(all, start(t, w))
		if i == 0 { // before others can have done everything
			require.True(t, all[0].says("stalls", 1), "it ended before it had tasks to stall with")
		}
	}
	all[0].kill(t)
	if all[1].says("works", 2) {
		all[1].kill(t)
	} else { // on a busy machine the others may have been faster
		all[1].finish(t)
	}
	for _, p := range all[2:] {
		p.finish(t)
	}
	took := time.Since(began)
	for _, p := range all {
		p.read(t, records)
	}

	attempts, retried, unheard := 0, 0, 0
	for _, id := range ids {
		info, found, err := queues.Get(ctx, "q", id)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, queue.Done, info.State, "task %q", id)
		require.LessOrEqual(t, info.Attempts, 1+workRetries, "task %q", id)
		require.Equal(t, workRetries-(info.Attempts-1), info.RetriesLeft, "task %q", id)
		attempts += info.Attempts
		r := records[id]
		require.LessOrEqual(t, r.done, 1, "task %q was done twice", id)
		if r.done == 0 { // killed between Done and its line
			require.True(t, slices.ContainsFunc(r.spans, func(s span) bool {
				return s.killed
			}), "nobody has done task %q", id)
			unheard++
		}
		slices.SortFunc(r.spans, func(a, b span) int { return a.attempt - b.attempt })
		for i, s := range r.spans {
			if s.killed && s.attempt < info.Attempts {
				retried++
			}
			if i > 0 {
				require.NotEqual(t, r.spans[i-1].attempt, s.attempt,
					"task %q was given to two workers", id)
				require.LessOrEqual(t, r.spans[i-1].to, s.from, "task %q had two live workers", id)
			}
		}
	}
	require.GreaterOrEqual(t, retried, workBatch,
		"what the first victim had must be done by others")
	require.LessOrEqual(t, unheard, 1, "of the second victim")
	t.Logf("%d tasks, %d attempts, %d of them after a kill, in %v (%.0f tasks/s, time-outs included)",
		len(ids), attempts, retried, took, float64(len(ids))/took.Seconds())
}
