package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
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

func TestStatusSaysWhetherTheEndOfTheSessionIsASign(t *testing.T) {
	t.Parallel()
	databaseURL := migratedServer(t)
	lead := func(opts ...schedlock.Option) (store, *schedlock.Lease) {
		store := openAs(t, databaseURL)
		return store, acquired(t, store, opts...)
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
	leadOn(t, databaseURL)
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

// A hot standby answers, and takes no orders.
func TestStatusOfAHotStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Shared(t)
	databaseURL := migratedServer(t)
	lease := leadOn(t, databaseURL)
	standby := primary.Standby(t)
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	standbyURL := standby.URL(strings.TrimPrefix(u.Path, "/"))
	eventually(t, "the standby has the row", func() bool {
		r := call(t, "status", "--db", standbyURL)
		return r.code == exitDone && strings.Contains(r.out, fmt.Sprint(lease.Term()))
	})
	assert.Contains(t, expect(t, exitUnknown, "pause", "--all", "--db", standbyURL), "read-only")
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
