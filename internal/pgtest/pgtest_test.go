//go:build unix

package pgtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/pgtest"
)

// With this variable set, the test binary starts a server and waits to be killed.
const helperRole = "PGTEST_HELPER"

type withServer struct{ m *testing.M }

func (w withServer) Run() int { return pgtest.Run(w.m) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(withServer{m}) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func value[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), query, args...).Scan(&v))
	return v
}

func name(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

func TestASharedServerGivesEachTestADatabaseOfItsOwn(t *testing.T) {
	s := pgtest.Shared(t)
	require.Same(t, s, pgtest.Shared(t))
	var first string
	t.Run("while a test runs", func(t *testing.T) {
		first = name(t, s.Database(t))
		conn := connect(t, s.URL(first))
		require.Equal(t, first, value[string](t, conn, "SELECT current_database()"))
		require.NotEqual(t, first, name(t, s.Database(t)))
	})
	require.Zero(t, value[int](t, connect(t, s.URL("postgres")),
		"SELECT count(*) FROM pg_database WHERE datname = $1", first))
}

func TestAServerComesBackWithItsDataAndPort(t *testing.T) {
	s := pgtest.Start(t, "work_mem=5MB")
	db := s.Database(t)
	conn := connect(t, db)
	require.Equal(t, "5MB", value[string](t, conn, "SHOW work_mem"))
	_, err := conn.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
	require.NoError(t, err)
	for _, end := range []struct {
		name string
		stop func()
	}{
		{"fast", func() { s.Stop(t, "fast") }},
		{"immediate", func() { s.Stop(t, "immediate") }},
		{"killed", func() { s.KillPostmaster(t) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			old := connect(t, db)
			pid := s.PID()
			require.NoError(t, syscall.Kill(pid, 0))
			end.stop()
			require.Zero(t, s.PID())
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			s.StartAgain(t)
			require.Error(t, old.Ping(t.Context()))
			require.Equal(t, 42, value[int](t, connect(t, db), "SELECT n FROM kept"))
		})
	}
}

func TestAStandbyFollowsAndAcceptsWritesOncePromoted(t *testing.T) {
	s := pgtest.Shared(t)
	conn := connect(t, s.Database(t))
	standby := s.Standby(t)
	_, err := conn.Exec(t.Context(), "CREATE TABLE followed ()")
	require.NoError(t, err)
	copied := connect(t, standby.URL(conn.Config().Database))
	require.Eventually(t, func() bool {
		return value[bool](t, copied, "SELECT to_regclass('followed') IS NOT NULL")
	}, 30*time.Second, 10*time.Millisecond)
	_, err = copied.Exec(t.Context(), "CREATE TABLE written ()")
	require.ErrorContains(t, err, "25006")
	standby.Promote(t)
	_, err = copied.Exec(t.Context(), "CREATE TABLE written ()")
	require.NoError(t, err)
}

func TestPgBouncerStandsBetween(t *testing.T) {
	s := pgtest.Shared(t)
	b := pgtest.PgBouncer(t, s, "default_pool_size=3")
	db := b.URL(name(t, s.Database(t))) + "&default_query_exec_mode=exec"
	for range 2 {
		conn := connect(t, db)
		require.NotEqual(t, int(conn.PgConn().PID()), value[int](t,
			conn, "SELECT pg_backend_pid()"))
		b.Restart(t)
		require.Error(t, conn.Ping(t.Context()))
	}
	b.Stop(t)
	_, err := pgx.Connect(t.Context(), db)
	require.Error(t, err, "nobody listens there")
	b.StartAgain(t)
	connect(t, db)
}

func TestHelper(t *testing.T) {
	if os.Getenv(helperRole) == "" {
		return // it is for a process of its own
	}
	s := pgtest.Shared(t)
	fmt.Println(s.PID(), s.Dir())
	select {}
}

func TestAKilledTestBinaryLeavesNothingBehind(t *testing.T) {
	pgtest.Shared(t) // skips where there is no PostgreSQL
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelper$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), helperRole+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(io.LimitReader(out, 1000)).ReadString('\n')
	require.NoError(t, err)
	var (
		pid int
		dir string
	)
	_, err = fmt.Sscan(line, &pid, &dir)
	require.NoError(t, err, line)
	require.NoError(t, syscall.Kill(pid, 0))
	require.DirExists(t, dir)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if !errors.Is(err, fs.ErrNotExist) { // Linux
		require.NoError(t, err)
		require.Contains(t, string(maps), dir)
		require.NotContains(t, string(maps), "/dev/shm/PostgreSQL", "it would stay")
	}
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}, 30*time.Second, 20*time.Millisecond)
	require.Error(t, syscall.Kill(pid, 0))
}

// What a killed postmaster leaves behind may hold its port for a moment.
func TestAServerStartsAgainOnceItsPortIsFree(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	server.Stop(t, "immediate")
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", server.Port()))
	require.NoError(t, err)
	log := filepath.Join(server.Dir(), "log")
	go func() {
		defer listener.Close()
		for range 600 { // until it has tried
			text, _ := os.ReadFile(log)
			if strings.Contains(strings.ToLower(string(text)), "address already in use") {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	server.StartAgain(t)
	require.NotZero(t, server.PID())
}
