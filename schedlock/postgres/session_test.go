package postgres_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

const grace = 5 * time.Second

// acquireWatched acquires with a session whose end shall be a sign.
func acquireWatched(t testing.TB, s *postgres.Store,
	ttl time.Duration) (driver.Ref, driver.Session) {
	t.Helper()
	c := claim(look(t, s), ttl)
	c.Grace = grace
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref, grant.Session
}

func lookAtSession(t testing.TB, s *postgres.Store) driver.Snapshot {
	t.Helper()
	view, err := s.LookAtSession(ctx)
	require.NoError(t, err)
	return view
}

func hasEnded(s driver.Session) bool {
	select {
	case <-s.Ended():
		return true
	default:
		return false
	}
}

const sqlSessionColumns = `
SELECT backend_pid IS NOT NULL AND backend_start IS NOT NULL AND postmaster_start IS NOT NULL
    AND grace_ms IS NOT NULL AND ttl_only IS NULL
FROM scheduler_lock`

func TestTheEndOfASessionIsSeenByBothSides(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, admin := open(t, url), open(t, url), session(t, url)
	ref, first := acquireWatched(t, holder, time.Minute)
	require.NotNil(t, first)
	require.True(t, first.Alive())
	require.True(t, value[bool](t, admin, sqlSessionColumns))
	for range 3 {
		beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
		require.NoError(t, err)
		require.Equal(t, first, beat.Session)
		view := lookAtSession(t, standby)
		require.Equal(t, driver.SignNone, view.Sign)
		require.Equal(t, grace, view.Row.Grace)
	}
	for range 2 {
		before := value[int](t, admin, `SELECT backend_pid FROM scheduler_lock`)
		require.True(t, value[bool](t, admin,
			`SELECT pg_terminate_backend(backend_pid, 5000) FROM scheduler_lock`))
		ends(t, first.Ended()) // nobody has asked the server anything
		require.False(t, first.Alive())
		view := lookAtSession(t, standby)
		require.Equal(t, driver.SignEnded, view.Sign)
		require.Equal(t, grace, view.Row.Grace)
		require.Equal(t, driver.SignNone, look(t, standby).Sign, "a plain look does not look")

		beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
		require.NoError(t, err)
		require.NotNil(t, beat.Session)
		require.NotEqual(t, first, beat.Session)
		require.True(t, beat.Session.Alive())
		require.NotEqual(t, before, value[int](t, admin, `SELECT backend_pid FROM scheduler_lock`))
		view = lookAtSession(t, standby)
		require.Equal(t, driver.SignNone, view.Sign)
		require.True(t, value[bool](t, admin, sqlSessionColumns))
		first = beat.Session
	}
	release(t, holder, ref)
	require.False(t, hasEnded(first))
	require.NoError(t, holder.Close())
	require.True(t, hasEnded(first))
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
	require.False(t, hasEnded(s))
}

// Where something speaks against it the end of a session is no sign, the TTL
// decides, and both sides say so once.
func TestWhereTheEndOfASessionIsNoSign(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
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
		"a proxy": {
			url: func(t *testing.T) string { return withPort(t, direct, forward(t, direct)) },
			why: "another address",
		},
		"a proxy that is vouched for": {
			url:  func(t *testing.T) string { return withPort(t, direct, forward(t, direct)) },
			opts: []postgres.Option{postgres.WithDirectConnection()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			holder := open(t, tc.url(t), append(tc.opts,
				postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
			standby := open(t, direct)
			for range 2 {
				ref, s := acquireWatched(t, holder, time.Minute)
				view := lookAtSession(t, standby)
				if tc.why == "" {
					require.NotNil(t, s)
					require.Equal(t, grace, view.Row.Grace)
					require.Empty(t, view.Row.TTLOnly)
				} else {
					require.Nil(t, s)
					require.Zero(t, view.Row.Grace)
					require.Contains(t, view.Row.TTLOnly, tc.why)
				}
				for range 2 {
					beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
					require.NoError(t, err)
					require.Equal(t, tc.why == "", beat.Session != nil)
				}
				require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign)
				release(t, holder, ref)
			}
			require.Equal(t, 1, strings.Count(log.String(), "if this leader dies"), log.String())
		})
	}
}

func TestAClaimWithoutAGraceHasNoSign(t *testing.T) {
	t.Parallel()
	store := open(t, migrated(t))
	ref := acquire(t, store, time.Minute)
	view := lookAtSession(t, store)
	require.Zero(t, view.Row.Grace)
	require.Contains(t, view.Row.TTLOnly, "without a session grace")
	beat, err := store.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	require.Nil(t, beat.Session)
}

func TestWhatAnotherRoleSeesIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	role := newRole(t, url, "")
	admin := session(t, url)
	exec(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	var log syncBuffer
	holder := open(t, url)
	stranger := open(t, as(t, url, role),
		postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
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

func TestARowThatWasEditedIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	admin := session(t, url)
	for _, edit := range []string{`backend_start = NULL`, `backend_pid = NULL`,
		`postmaster_start = NULL`, `grace_ms = NULL`,
		`postmaster_start = postmaster_start - interval '1 microsecond'`} {
		holder := open(t, url)
		ref, _ := acquireWatched(t, holder, time.Minute)
		require.NoError(t, holder.Close())
		standby := open(t, url)
		eventually(t, "the sign", func() bool {
			return lookAtSession(t, standby).Sign == driver.SignEnded
		})
		exec(t, admin, `UPDATE scheduler_lock SET `+edit)
		require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign, edit)
		release(t, standby, ref)
	}
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

func TestARestartOfTheServerIsNoSign(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.Database(t)
	migrate(t, url)
	holder, standby := open(t, url), open(t, url)
	for _, mode := range []string{"fast", "immediate"} {
		ref, s := acquireWatched(t, holder, time.Minute)
		server.Restart(t, mode)
		ends(t, s.Ended())
		eventually(t, "a look", func() bool {
			_, err := standby.LookAtSession(ctx)
			return err == nil
		})
		require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign,
			"the server may have ended it without a word to the holder")
		var beat driver.Renewal
		eventually(t, "a heartbeat", func() (ok bool) {
			var err error
			beat, err = holder.Heartbeat(ctx, ref, driver.StateLeading)
			return err == nil
		})
		require.NotNil(t, beat.Session)
		release(t, holder, ref)
	}
}

// The whole: a leader dies, and another leads after the grace and long before
// the TTL; and one that comes back stays the leader.
func TestALeaderWhoseSessionHasEndedIsReplacedAfterTheGrace(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	const short = 10 * time.Second // half of it must do for a new session on a busy machine
	first := open(t, withPort(t, url, forward(t, url)), postgres.WithDirectConnection())
	var suspended, resumed atomic.Int64
	a := newLock(t, first, 5*time.Minute, schedlock.WithSessionGrace(short),
		schedlock.WithObserver(func(e schedlock.Event) {
			switch e.Kind {
			case schedlock.EventSuspended:
				suspended.Add(1)
			case schedlock.EventResumed:
				resumed.Add(1)
			}
		}))
	lease, err := a.Wait(ctx)
	require.NoError(t, err)
	b := newLock(t, open(t, url), 5*time.Minute, schedlock.WithSessionGrace(short))
	won := make(chan *schedlock.Lease, 1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		next, err := b.Wait(waiting)
		if err == nil {
			won <- next
		}
	}()
	eventually(t, "the standby waits", func() bool {
		return b.Status().State == schedlock.SelfStandby
	})

	admin := session(t, url)
	for n := range int64(5) {
		require.True(t, value[bool](t, admin,
			`SELECT pg_terminate_backend(backend_pid, 5000) FROM scheduler_lock`))
		eventually(t, "it leads on", func() bool { return resumed.Load() == n+1 })
		require.NoError(t, a.IsLeader(ctx))
	}
	require.NoError(t, lease.Err())
	require.Empty(t, won)
	require.EqualValues(t, 5, suspended.Load())

	require.NoError(t, first.Close()) // and comes back no more
	ends(t, lease.Done())
	require.ErrorIs(t, lease.Err(), driver.ErrLost)
	require.ErrorIs(t, a.IsLeader(ctx), schedlock.ErrNotLeader)
	select {
	case next := <-won:
		terms, err := open(t, url).Terms(ctx, 2)
		require.NoError(t, err)
		require.Equal(t, driver.EndSessionEnded, terms[1].EndReason)
		require.NoError(t, next.Release(ctx))
	case <-time.After(patience):
		require.Fail(t, "nobody took over")
	}
}

// forward is a proxy, and returns its port.
func forward(t testing.TB, databaseURL string) int {
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	server := u.Host
	return listenTCP(t, func(client net.Conn) {
		defer client.Close()
		backend, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer backend.Close()
		go func() {
			defer client.Close()
			_, _ = io.Copy(client, backend)
		}()
		_, _ = io.Copy(backend, client)
	})
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

// A heartbeat that was sent on a session before may be executed last.
func TestALateHeartbeatDoesNotBringAnEndedSessionBack(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, admin := open(t, url), open(t, url), session(t, url)
	ref, _ := acquireWatched(t, holder, time.Minute)
	end := func() {
		t.Helper()
		require.True(t, value[bool](t, admin,
			`SELECT pg_terminate_backend(backend_pid, 5000) FROM scheduler_lock`))
	}
	end()
	heartbeat(t, holder, ref)
	between := value[time.Time](t, admin, `SELECT backend_start FROM scheduler_lock`)
	end()
	heartbeat(t, holder, ref)
	latest := value[time.Time](t, admin, `SELECT backend_start FROM scheduler_lock`)

	exec(t, admin, `UPDATE scheduler_lock SET backend_start = '`+
		between.Format(time.RFC3339Nano)+`'`)
	require.Equal(t, driver.SignEnded, lookAtSession(t, standby).Sign, "as it would be")
	require.True(t, value[bool](t, admin, `SELECT count(pg_terminate_backend(pid, 5000)) > 0
		FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'schedlock'
		AND backend_start = '`+latest.Format(time.RFC3339Nano)+`'`))
	_, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorIs(t, err, driver.ErrLost, "it knows of no such session any more")
}

// The beat tells heartbeats apart, the backend sessions: who judged one that has
// ended must not depose a holder that is back on another.
func TestAClaimIsRefusedIfTheRowTellsOfAnotherSession(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	admin := session(t, url)
	standby := open(t, url)
	for _, edit := range []string{
		`backend_pid = $1::bigint,
		backend_start = (SELECT backend_start FROM pg_stat_get_activity($1::integer))`,
		`backend_start = backend_start + interval '1 microsecond'`,
		`backend_pid = backend_pid + 1`,
		`backend_pid = NULL`,
		`backend_start = NULL`,
	} {
		holder := open(t, url)
		ref, _ := acquireWatched(t, holder, time.Minute)
		require.NoError(t, holder.Close())
		var judged driver.Snapshot
		eventually(t, "the sign", func() bool {
			judged = lookAtSession(t, standby)
			return judged.Sign == driver.SignEnded
		})
		args := []any{admin.PgConn().PID()}
		if !strings.Contains(edit, "$1") {
			args = nil
		}
		exec(t, admin, `UPDATE scheduler_lock SET `+edit, args...) // the beat stays
		_, err := standby.Acquire(ctx, claim(judged, time.Minute))
		require.ErrorIs(t, err, driver.ErrConflict, edit)
		require.NotErrorIs(t, err, driver.ErrBlocked)
		require.Equal(t, ref.Token, look(t, standby).Row.Token)
		again := claim(lookAtSession(t, standby), time.Minute)
		grant, err := standby.Acquire(ctx, again)
		require.NoError(t, err, "what stands there now may be judged anew")
		again.Term = grant.Term
		release(t, standby, again.Ref)
	}
}
