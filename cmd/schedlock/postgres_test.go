package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/postgres"
)

// secret must not show in any answer.
const secret = "ge%2Fheim"

// withSecret is the URL with a user and a password.
func withSecret(t testing.TB, databaseURL, user string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	password, err := url.PathUnescape(secret)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func execute(t testing.TB, databaseURL string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(bg, databaseURL)
	require.NoError(t, err)
	defer conn.Close(bg)
	for _, s := range statements {
		_, err := conn.Exec(bg, s)
		require.NoError(t, err, s)
	}
}

// migratedServer is a database of the shared server that has its tables.
func migratedServer(t testing.TB) string {
	t.Helper()
	return pgtest.Shared(t).Filled(t, func(url string) { migrateServer(t, url) })
}

func migrateServer(t testing.TB, url string) {
	t.Helper()
	r := call(t, "migrate", "--db", url)
	require.Equal(t, exitDone, r.code, r)
}

// leadServer makes this process the leader.
func leadServer(t testing.TB, databaseURL string) *schedlock.Lease {
	t.Helper()
	store, err := postgres.Open(bg, databaseURL, postgres.WithLogger(discard))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return silentLease(t, store)
}

func TestStatusSaysWhetherTheEndOfTheSessionIsASign(t *testing.T) {
	t.Parallel()
	databaseURL := migratedServer(t)
	lead := func(opts ...schedlock.Option) (*postgres.Store, *schedlock.Lease) {
		store, err := postgres.Open(bg, databaseURL, postgres.WithLogger(discard))
		require.NoError(t, err)
		lock, err := schedlock.New(store, append(opts, schedlock.WithLogger(discard))...)
		require.NoError(t, err)
		lease, err := lock.Acquire(bg)
		require.NoError(t, err)
		return store, lease
	}
	store, lease := lead()
	assert.Contains(t, call(t, "status", "--db", databaseURL).out,
		"none, only the heartbeats tell: the holder was started without a session grace")
	require.NoError(t, lease.Release(bg))
	require.NoError(t, store.Close())

	store, _ = lead(schedlock.WithSessionGrace(5 * time.Second))
	r := call(t, "status", "--db", databaseURL)
	assert.Equal(t, exitDone, r.code)
	assert.Contains(t, r.out, "on: once its database session has ended, others wait for 5s only")
	assert.Contains(t, r.out, "or for 5s after the end of the holder's database session")
	require.NoError(t, store.Close()) // without a word
	require.Eventually(t, func() bool {
		r = call(t, "status", "--db", databaseURL)
		return r.code == exitStale
	}, patience, 10*time.Millisecond)
	assert.Contains(t, r.out, "a sign of death: its database session has ended")
	assert.Contains(t, call(t, "status", "--json", "--db", databaseURL).out,
		`"sign": "session ended"`)
}

// A row that row-level security hides is not a lock that is free.
func TestARowThatAPolicyHidesIsNotFree(t *testing.T) {
	t.Parallel()
	databaseURL := migratedServer(t)
	leadServer(t, databaseURL)
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	role := strings.TrimPrefix(u.Path, "/") + "_app"
	execute(t, databaseURL, `CREATE ROLE `+role+` LOGIN`,
		`GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	u.User = url.User(role)
	require.Equal(t, exitDone, call(t, "status", "--db", u.String()).code)
	execute(t, databaseURL, `ALTER TABLE scheduler_lock ENABLE ROW LEVEL SECURITY`,
		`ALTER TABLE scheduler_terms ENABLE ROW LEVEL SECURITY`)
	for _, command := range []string{"status", "history", "doctor"} {
		r := call(t, command, "--db", u.String())
		assert.NotContains(t, r.out, "free", command)
		assert.NotContains(t, r.out, "nobody has ever", command)
		assert.NotEqual(t, exitDone, r.code, command)
		assert.Contains(t, r.out+r.err, "row-level security", command)
		assert.Contains(t, r.out+r.err, role, command)
		assert.Contains(t, r.out+r.err, "BYPASSRLS", command)
	}
	assert.Equal(t, exitUnknown, call(t, "status", "--db", u.String()).code)
}

func TestStatusOfEveryServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	// The role needs its password, which is another one.
	execute(t, server.URL("postgres"), `DROP ROLE IF EXISTS needs_password`,
		`CREATE ROLE needs_password LOGIN PASSWORD 'right'`)
	hba := filepath.Join(server.Dir(), "data", "pg_hba.conf")
	before, err := os.ReadFile(hba)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(hba,
		append([]byte("host all needs_password 127.0.0.1/32 scram-sha-256\n"), before...), 0o600))
	execute(t, server.URL("postgres"), `SELECT pg_reload_conf()`)
	eventually(t, "the server has read pg_hba.conf", func() bool {
		_, err := pgx.Connect(bg, withSecret(t, server.URL("postgres"), "needs_password"))
		return err != nil
	})

	down := withSecret(t, "postgres://x@127.0.0.1:1/app", "app")
	free := migratedServer(t)
	held := migratedServer(t)
	lease := leadServer(t, held)
	silent := migratedServer(t)
	leadServer(t, silent)
	execute(t, silent, `UPDATE scheduler_lock SET heartbeat_at = now() - interval '1 hour'`)
	deleted := migratedServer(t)
	leadServer(t, deleted)
	execute(t, deleted, `DELETE FROM scheduler_lock`)
	newer := migratedServer(t)
	execute(t, newer, `INSERT INTO scheduler_lock_schema VALUES (99, 98)`)
	compatible := migratedServer(t)
	execute(t, compatible, `INSERT INTO scheduler_lock_schema VALUES (99, 1)`)
	older := migratedServer(t)
	execute(t, older, fmt.Sprintf(`DELETE FROM scheduler_lock_schema WHERE version = %d`,
		migrations.Latest))
	for _, tc := range []struct {
		name, url string
		code      int
		says      []string
	}{
		{"free", free, exitNothing, []string{"free: nobody has ever held"}},
		{"held", withSecret(t, held, "postgres"), exitDone,
			[]string{"held: ", fmt.Sprint(lease.Term())}},
		{"stale", silent, exitStale, []string{"stale: ", "last heartbeat was 1h"}},
		{"no row", deleted, exitStale, []string{"not free: ", "has no end"}},
		{"newer tables", newer, exitUnknown, []string{"needs code of version 98"}},
		{"newer tables that allow this code", compatible, exitNothing, []string{"free: "}},
		{"older tables", older, exitUnknown, []string{"older than this tool", "schedlock migrate"}},
		{"no tables", server.Database(t), exitUnknown, []string{"has no scheduler tables",
			"schedlock migrate"}},
		{"down", down, exitUnknown, []string{"127.0.0.1:1", "see that the server runs"}},
		{"unknown host", withSecret(t, "postgres://x@no-such-host.invalid/app", "app"), exitUnknown,
			[]string{"no-such-host.invalid"}},
		{"unknown database", withSecret(t, server.URL("nowhere"), "postgres"), exitUnknown,
			[]string{`database "nowhere"`, "create the database"}},
		{"wrong password", withSecret(t, free, "needs_password"), exitUnknown,
			[]string{`check the password of role "needs_password"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := finish(t, process(t, "status", "--db", tc.url, "--timeout", patience.String()))
			assert.Equal(t, tc.code, r.code, r)
			first, _, _ := strings.Cut(r.out+r.err, "\n")
			for _, s := range tc.says {
				assert.Contains(t, first, s)
			}
			if tc.code == exitUnknown {
				assert.Empty(t, r.out)
				assert.Equal(t, 1, strings.Count(r.err, "\n"), r.err)
			}
			j := call(t, "status", "--db", tc.url, "--json")
			assert.Equal(t, tc.code, j.code)
			all := r.out + r.err + j.out + j.err + call(t, "doctor", "--db", tc.url).out
			assert.NotContains(t, all, secret)
			assert.NotContains(t, all, "ge/heim")
		})
	}
}

func TestReleaseAndHistoryOnAServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	databaseURL := server.Database(t)
	first := startReplica(t, databaseURL, "20s")
	was := leads(t, databaseURL, first)
	second := startReplica(t, databaseURL, "20s")
	w := startWatch(t, databaseURL)
	w.await(t, "start", was.Lock.Term)
	var r releaseJSON
	strict(t, call(t, "release", "--force", "--yes", "--by", "ann", "--reason", "to see", "--wait",
		patience.String(), "--json", "--db", databaseURL).out, &r)
	assert.True(t, r.Ended)
	assert.Equal(t, "revoked", r.Reason)
	now := leads(t, databaseURL, second)
	out := call(t, "history", "-o", "wide", "--db", databaseURL).out
	assert.Contains(t, out, "by ann: to see")
	assert.Contains(t, out, fmt.Sprint(was.Lock.Term))
	w.await(t, "ended", was.Lock.Term)
	w.await(t, "leader", now.Lock.Term)
	assert.Equal(t, exitDone, w.stop(t))

	var asked requestJSON
	strict(t, call(t, "run", "work", "--by", "ann", "--wait", patience.String(), "--json", "--db",
		databaseURL).out, &asked)
	assert.EqualValues(t, "done", asked.Run.Status)
	for _, command := range []string{"runs", "jobs"} {
		assert.Contains(t, call(t, command, "--db", databaseURL).out, "work")
	}
}

// A hot standby answers, and takes no orders.
func TestStatusOfAHotStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Shared(t)
	databaseURL := migratedServer(t)
	lease := leadServer(t, databaseURL)
	standby := primary.Standby(t)
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	standbyURL := standby.URL(strings.TrimPrefix(u.Path, "/"))
	eventually(t, "the standby has the row", func() bool {
		r := call(t, "status", "--db", standbyURL)
		return r.code == exitDone && strings.Contains(r.out, fmt.Sprint(lease.Term()))
	})
	r := call(t, "pause", "--all", "--db", standbyURL)
	assert.Equal(t, exitUnknown, r.code)
	assert.Contains(t, r.err, "read-only")
}

func TestWatchOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	databaseURL := server.URL("postgres")
	migrateServer(t, databaseURL)
	w := startWatch(t, databaseURL)
	w.await(t, "start", 0)
	server.Stop(t, "fast")
	outage := w.await(t, "outage", 0)
	assert.NotContains(t, outage.Reason, "--timeout", "it was noticed late")
	server.StartAgain(t)
	assert.Equal(t, free, w.await(t, "recovery", 0).Verdict)
	assert.Equal(t, exitDone, w.stop(t))
}
