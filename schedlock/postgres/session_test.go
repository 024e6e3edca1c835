package postgres_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	servertest.Sessions(t, func(t testing.TB) servertest.Database {
		url := migrated(t)
		admin := session(t, url)
		return servertest.Database{
			Open: func(t testing.TB) servertest.Store { return open(t, url) },
			Kill: func(t testing.TB) {
				require.True(t, value[bool](t, admin,
					`SELECT pg_terminate_backend(backend_pid, 5000) FROM scheduler_lock`))
			},
			Session: func(t testing.TB) string {
				return value[string](t, admin, `
					SELECT CASE WHEN backend_pid IS NOT NULL AND postmaster_start IS NOT NULL
						AND grace_ms IS NOT NULL AND ttl_only IS NULL
						THEN format('backend_start = %L', backend_start) ELSE '' END
					FROM scheduler_lock`)
			},
			Edit: func(t testing.TB, set string) {
				exec(t, admin, `UPDATE scheduler_lock SET `+set)
			},
			NoSign: []string{`backend_start = NULL`, `backend_pid = NULL`,
				`postmaster_start = NULL`, `grace_ms = NULL`,
				`postmaster_start = postmaster_start - interval '1 microsecond'`},
			Others: []string{
				`backend_pid = pg_backend_pid(), backend_start =
					(SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))`,
				`backend_start = backend_start + interval '1 microsecond'`,
				`backend_pid = backend_pid + 1`,
				`backend_pid = NULL`,
				`backend_start = NULL`,
			},
		}
	})
}

// A standby notices a release by a notification, which is no end.
func TestNewsIsNoEnd(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, admin := open(t, url), session(t, url)
	ref, s := acquireWatched(t, holder, time.Minute)
	for range 20 {
		exec(t, admin, `NOTIFY scheduler_lock`)
		heartbeat(t, holder, ref)
	}
	eventually(t, "all is read", s.Alive)
	require.False(t, servertest.HasEnded(s))
}

// Where something speaks against it the end of a session is no sign.
func TestWhereTheEndOfASessionIsNoSign(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	proxy := func(t *testing.T) string {
		_, url := servertest.Through(t, direct)
		return url
	}
	for name, tc := range map[string]struct {
		url  func(t *testing.T) string
		opts []postgres.Option
		why  string
	}{
		"PgBouncer": {
			url: func(t *testing.T) string {
				return pgtest.PgBouncer(t, pgtest.Shared(t)).URL(databaseName(t, direct))
			},
			why: "a pooler",
		},
		"a unix socket": {
			url: func(t *testing.T) string { return onSocket(t, direct) },
			why: "a unix socket",
		},
		"a proxy": {url: proxy, why: "another address"},
		"a proxy that is vouched for": {
			url:  proxy,
			opts: []postgres.Option{postgres.WithDirectConnection()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Log
			holder := open(t, tc.url(t), append(tc.opts, postgres.WithLogger(log.Logger()))...)
			servertest.Sign(t, holder, open(t, direct), &log, tc.why)
		})
	}
}

func TestARestartOfTheServerEndsAWatchAndNotTheLease(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.Database(t)
	migrate(t, url)
	way := func(mode string) servertest.Restart {
		return servertest.Restart{Stop: func() { server.Stop(t, mode) },
			Start: func() { server.StartAgain(t) }}
	}
	servertest.OutlivesRestarts(t, func(t testing.TB) servertest.Store { return open(t, url) },
		way("fast"), way("immediate"))
}

func TestWhatAnotherRoleSeesIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	role := newRole(t, url, "")
	admin := session(t, url)
	exec(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	var log logtest.Log
	holder := open(t, url)
	stranger := open(t, as(t, url, role),
		postgres.WithLogger(log.Logger()))
	acquireWatched(t, holder, time.Minute)
	for range 3 {
		require.Equal(t, driver.SignNone, lookAtSession(t, stranger).Sign)
	}
	require.NoError(t, holder.Close())
	friend := open(t, url)
	eventually(t, "who may see it sees the end", func() bool {
		return lookAtSession(t, friend).Sign == driver.SignEnded
	})
	require.Equal(t, driver.SignNone, lookAtSession(t, stranger).Sign)
	require.Equal(t, 1, strings.Count(log.String(), "this replica has another role"), log.String())
}

// A pid is soon another's.
func TestAProcessThatTookThePIDIsNotTheHolder(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, admin := open(t, url), open(t, url), session(t, url)
	acquireWatched(t, holder, time.Minute)
	exec(t, admin,
		`UPDATE scheduler_lock SET backend_start = backend_start - interval '1 microsecond'`)
	require.Equal(t, driver.SignEnded, lookAtSession(t, standby).Sign)
}

func TestTheEndOfASessionIsNoticedByWhoeverComesNext(t *testing.T) {
	t.Parallel()
	holder := open(t, migrated(t))
	for range 2 {
		ref, s := acquireWatched(t, holder, time.Minute)
		require.NoError(t, holder.BreakUnseen(ctx))
		ends(t, s.Ended())
		release(t, holder, ref)
	}
}

// onSocket is the same database through a unix socket.
func onSocket(t testing.TB, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	q := u.Query()
	q.Set("host", pgtest.Shared(t).Dir())
	q.Set("port", u.Port())
	u.Host, u.RawQuery = "", q.Encode()
	return u.String()
}
