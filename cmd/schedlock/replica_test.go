package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// The test binary is also the tool, and a replica.
const (
	childEnv    = "SCHEDLOCK_TEST_CHILD" // tool, replica, beacon
	replicaTTL  = "SCHEDLOCK_TEST_TTL"
	replicaGate = "SCHEDLOCK_TEST_GATE" // the job "long" runs until this file exists
)

// patience bounds a wait that should be short.
const patience = 2 * time.Minute

// callTimeout bounds a call of the tool, where time-outs are not what is tested.
const callTimeout = 5 * time.Minute

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "tool":
		main()
	case "replica":
		replica(os.Args[1])
	case "beacon":
		beacon(os.Args[1])
	default:
		child.SideBySide(24)
		code := pgtest.Run(m)
		mytest.Close()
		if binary.dir != "" {
			os.RemoveAll(binary.dir)
		}
		os.Exit(code)
	}
}

// replica is an app with two jobs, until SIGTERM.
func replica(dsn string) {
	ttl, err := time.ParseDuration(os.Getenv(replicaTTL))
	if err != nil {
		panic(err)
	}
	app, err := startup.NewApp(startup.Config{
		Open: func(ctx context.Context) (driver.Store, error) {
			return (&tool{dsn: dsn}).openAndMigrate(ctx, discard)
		},
		Lock: []schedlock.Option{schedlock.WithTTL(ttl),
			schedlock.WithHeartbeatInterval(max(min(time.Second, ttl/4), ttl/20)),
			schedlock.WithSessionGrace(max(5*time.Second, ttl/5))},
		Log: slog.New(slog.DiscardHandler), Drain: 10 * time.Minute,
		Jobs: []tasks.Job{
			{Name: "work", Spec: tasks.Every(time.Hour),
				Do: func(context.Context, tasks.Run) error {
					return nil
				}},
			{Name: "fail", Spec: tasks.Every(time.Hour),
				Do: func(context.Context, tasks.Run) error {
					return errors.New("no luck")
				}},
			{Name: "long", Spec: tasks.Every(time.Hour),
				Do: func(ctx context.Context, _ tasks.Run) error {
					gate := os.Getenv(replicaGate) // "": its tick is due by chance
					for gate != "" && ctx.Err() == nil {
						if _, err := os.Stat(gate); err == nil {
							return nil
						}
						time.Sleep(10 * time.Millisecond)
					}
					return ctx.Err()
				}},
		},
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := app.Run(ctx); err != nil {
		panic(err)
	}
}

// startReplica runs a replica, killed at the end of the test.
func startReplica(t *testing.T, dsn, ttl string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, dsn)
	cmd.Env = append(child.Environ(), childEnv+"=replica", replicaTTL+"="+ttl)
	cmd.Env = append(cmd.Env, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		kill(cmd)
		if t.Failed() {
			t.Logf("replica %d: %s", cmd.Process.Pid, out.String())
		}
	})
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// leads waits until the replica leads.
func leads(t *testing.T, dsn string, cmd *exec.Cmd) statusJSON {
	t.Helper()
	var s statusJSON
	eventually(t, "replica leads", func() bool {
		s = statusJSON{}
		r := call(t, "status", "--json", "--db", dsn)
		return r.code == exitDone && json.Unmarshal([]byte(r.out), &s) == nil && s.Lock != nil &&
			s.Lock.PID == cmd.Process.Pid
	})
	return s
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	pause := 10 * time.Millisecond
	for deadline := time.Now().Add(patience); !done(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		pause = min(pause*5/4, 100*time.Millisecond)
	}
}

// A result is what a call of the tool gave.
type result struct {
	code     int
	out, err string
}

// call runs the tool in this process, with patience for a slow database: a test
// of time-outs gives its own --timeout.
func call(t testing.TB, args ...string) result {
	t.Helper()
	return callWith(t, nil, args...)
}

// expect calls the tool, which must exit with this code, and returns all that it says.
func expect(t testing.TB, code int, args ...string) string {
	t.Helper()
	r := call(t, args...)
	require.Equal(t, code, r.code, "%v: %+v", args, r)
	return r.out + r.err
}

// expecting is expect with these flags behind the arguments.
func expecting(t testing.TB, flags ...string) func(code int, args ...string) string {
	return func(code int, args ...string) string {
		t.Helper()
		return expect(t, code, append(args, flags...)...)
	}
}

func callWith(t testing.TB, env map[string]string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var out, errOut bytes.Buffer
	args = append([]string{"--timeout", callTimeout.String()}, args...)
	call := &tool{in: strings.NewReader(""), out: &out, errOut: &errOut,
		lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
	code := call.run(ctx, args)
	return result{code, out.String(), errOut.String()}
}

// binary is a copy of the test binary that everybody may run.
var binary struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func copyBinary() (dir, path string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp("", "schedlock-tool"); err != nil {
		return "", "", err
	}
	path = filepath.Join(dir, "schedlock")
	// Not by this process: a child that inherits the file would keep it busy
	// (golang.org/issue/22315).
	return dir, path, errors.Join(exec.Command("cp", exe, path).Run(), os.Chmod(path, 0o755),
		os.Chmod(dir, 0o755))
}

// toolPath is the path of binary, which is made when it is asked for first.
func toolPath(t testing.TB) string {
	t.Helper()
	binary.once.Do(func() { binary.dir, binary.path, binary.err = copyBinary() })
	require.NoError(t, binary.err)
	return binary.path
}

// process is the tool as a process of its own.
func process(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(toolPath(t), args...)
	cmd.Dir = binary.dir
	cmd.Env = []string{childEnv + "=tool"}
	return cmd
}

func finish(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// inBoth runs a test on a SQLite file that is still to be made, and on a new PostgreSQL
// database with its tables.
func inBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, filepath.Join(folder(t), "app.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, migratedServer(t))
	})
}

// folder is a new folder that every user may enter.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "schedlock-test")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		_ = os.Chmod(dir, 0o755)
		require.NoError(t, os.RemoveAll(dir))
	})
	return dir
}

// listing is every file under dir with its bytes and the time of its last
// change; of the shared memory of SQLite only that it is there.
func listing(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case strings.HasSuffix(path, "-shm"):
			found[path] = "shared memory"
		case d.IsDir():
			found[path] = info.ModTime().String()
		default:
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found[path] = info.ModTime().String() + string(raw)
		}
		return nil
	}))
	return found
}
