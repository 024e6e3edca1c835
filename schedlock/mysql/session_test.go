package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

const grace = 5 * time.Second

// acquireWatched acquires with a session whose end shall be a sign.
func acquireWatched(t testing.TB, s *mysql.Store) (driver.Ref, driver.Session) {
	t.Helper()
	c := claim(look(t, s))
	c.Grace = grace
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref, grant.Session
}

func lookAtSession(t testing.TB, s *mysql.Store) driver.Snapshot {
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

// killHolder ends the session that the row tells of.
func killHolder(t testing.TB, db *sql.DB) {
	t.Helper()
	id := value[int64](t, db, `SELECT connection_id FROM scheduler_lock`)
	exec(t, db, fmt.Sprintf(`KILL CONNECTION %d`, id))
	eventually(t, "the session is gone", func() bool {
		return value[int](t, db,
			`SELECT count(*) FROM information_schema.processlist WHERE id = ?`, id) == 0
	})
}

const sqlHeldColumns = `
SELECT connection_id IS NOT NULL AND session_lock IS NOT NULL AND session_server IS NOT NULL
    AND grace_ms IS NOT NULL AND ttl_only IS NULL
FROM scheduler_lock`

func TestTheEndOfASessionIsSeenByBothSides(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, db := open(t, url), open(t, url), byHand(t, url)
	ref, first := acquireWatched(t, holder)
	require.NotNil(t, first)
	require.True(t, first.Alive())
	require.True(t, value[bool](t, db, sqlHeldColumns))
	for range 3 {
		beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
		require.NoError(t, err)
		require.Equal(t, first, beat.Session)
		view := lookAtSession(t, standby)
		require.Equal(t, driver.SignNone, view.Sign)
		require.Equal(t, grace, view.Row.Grace)
	}
	for range 2 {
		before := value[int](t, db, `SELECT connection_id FROM scheduler_lock`)
		killHolder(t, db)
		ends(t, first.Ended()) // nobody has asked the server anything
		require.False(t, first.Alive())
		view := lookAtSession(t, standby)
		require.Equal(t, driver.SignEnded, view.Sign)
		require.Equal(t, grace, view.Row.Grace)
		require.Equal(t, driver.SignNone, look(t, standby).Sign, "a plain look does not look")

		// A standby that was woken holds the lock for a moment.
		exec(t, db, `DO get_lock((SELECT session_lock FROM scheduler_lock), 0)`)
		require.Equal(t, driver.SignEnded, lookAtSession(t, standby).Sign)

		beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
		require.NoError(t, err)
		require.NotNil(t, beat.Session)
		require.NotEqual(t, first, beat.Session)
		require.True(t, beat.Session.Alive())
		require.NotEqual(t, before, value[int](t, db, `SELECT connection_id FROM scheduler_lock`))
		require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign)
		require.True(t, value[bool](t, db, sqlHeldColumns))
		first = beat.Session
	}
	release(t, holder, ref)
	require.False(t, hasEnded(first))
	require.NoError(t, holder.Close())
	require.True(t, hasEnded(first))
}

// Where something speaks against it the end of a session is no sign, the TTL decides, and
// both sides say so once.
func TestWhereTheEndOfASessionIsNoSign(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	direct := migrated(t)
	for name, tc := range map[string]struct {
		url  func(t *testing.T) string
		opts []mysql.Option
		why  string
	}{
		"a unix socket": {
			url: func(*testing.T) string { return server.OnSocket(direct) },
			why: "a unix socket",
		},
		"a proxy": {
			url: func(t *testing.T) string {
				return withAddress(t, direct, newForward(t, server.Address()).address)
			},
			why: "another end than the holder's",
		},
		"a proxy that is vouched for": {
			url: func(t *testing.T) string {
				return withAddress(t, direct, newForward(t, server.Address()).address)
			},
			opts: []mysql.Option{mysql.WithDirectConnection()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			holder := open(t, tc.url(t), append(tc.opts,
				mysql.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
			standby := open(t, direct)
			for range 2 {
				ref, s := acquireWatched(t, holder)
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
			require.NoError(t, holder.Close())
			eventually(t, "the log has it", func() bool {
				return strings.Count(log.String(), "if this leader dies") == 1
			})
		})
	}
}

// The server must keep the session of a silent client for the TTL, whatever it is asked for.
func TestAServerThatEndsSilentSessionsGivesNoSign(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ setting, why string }{
		{"--maximum-wait-timeout=59", "wait_timeout is 59"},
		{"--maximum-net-read-timeout=59", "net_read_timeout is 59"},
		{"--maximum-net-write-timeout=59", "net_write_timeout is 59"},
		{"--tcp-keepalive-time=59", "tcp_keepalive_time is 59"},
	} {
		t.Run(tc.setting, func(t *testing.T) {
			server := mytest.Start(t, tc.setting)
			s := open(t, server.Database(t))
			require.NoError(t, s.Migrate(ctx))
			ref, session := acquireWatched(t, s) // for 60 s
			require.Nil(t, session)
			row := lookAtSession(t, s).Row
			require.Zero(t, row.Grace)
			require.Contains(t, row.TTLOnly, "does not keep the session of a silent client for the TTL: ")
			require.Contains(t, row.TTLOnly, tc.why)
			release(t, s, ref)
		})
	}
}

// The time-outs are set for the holder's own session, and for its own TTL.
func TestTheServerKeepsTheSessionForTheTTL(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t, "--wait-timeout=7", "--net-read-timeout=8", "--net-write-timeout=9",
		"--interactive-timeout=10", "--tcp-keepalive-time=600", "--idle-transaction-timeout=11")
	s := open(t, server.Database(t))
	require.NoError(t, s.Migrate(ctx))
	c := claim(look(t, s))
	c.Grace, c.Timing = grace, timing(10*time.Minute)
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	require.NotNil(t, grant.Session)
	for name, least := range map[string]int{"wait_timeout": 600, "net_read_timeout": 600,
		"net_write_timeout": 600} {
		require.Equal(t, least, s.Setting(ctx, name), name)
	}
	c.Expected = look(t, s)
	c.Timing = timing(10*time.Minute + time.Second)
	c.Token = driver.NewToken()
	grant, err = s.Acquire(ctx, c)
	require.NoError(t, err)
	require.Nil(t, grant.Session, "tcp_keepalive_time is too short")
}

func TestASessionThatGetsNoLockIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, db := open(t, url), byHand(t, url)
	ref, _ := acquireWatched(t, holder)
	id := value[int64](t, db, `SELECT connection_id FROM scheduler_lock`)
	release(t, holder, ref)
	c := claim(look(t, holder))
	c.Grace = grace
	other, err := db.Conn(ctx)
	require.NoError(t, err)
	defer other.Close()
	_, err = other.ExecContext(ctx, `DO get_lock(?, 0)`, fmt.Sprintf("schedlock-%s-%d", c.Token, id))
	require.NoError(t, err)
	grant, err := holder.Acquire(ctx, c)
	require.NoError(t, err)
	require.Nil(t, grant.Session)
	row := lookAtSession(t, holder).Row
	require.Zero(t, row.Grace)
	require.Contains(t, row.TTLOnly, "does not give the holder a lock")
}

// A server of MariaDB sets no TCP_USER_TIMEOUT, and its system gives up after 15 minutes.
func TestAServerThatCannotKeepASilentClientForTheTTLGivesNoSign(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	for _, tc := range []struct {
		ttl  time.Duration
		sign bool
	}{{15 * time.Minute, true}, {15*time.Minute + time.Second, false}, {24 * time.Hour, false}} {
		c := claim(look(t, s))
		c.Grace, c.Timing = grace, timing(tc.ttl)
		grant, err := s.Acquire(ctx, c)
		require.NoError(t, err)
		require.Equal(t, tc.sign, grant.Session != nil, tc.ttl)
		row := look(t, s).Row
		require.Equal(t, tc.sign, row.Grace == grace, tc.ttl)
		if !tc.sign {
			require.Contains(t, row.TTLOnly, "after 15 minutes")
		}
		c.Term = grant.Term
		release(t, s, c.Ref)
	}
}

func TestTheSignIsAskedFor(t *testing.T) {
	t.Parallel()
	s, err := mysql.Open(ctx, migrated(t))
	require.NoError(t, err)
	defer s.Close()
	_, session := acquireWatched(t, s)
	require.Nil(t, session)
	row := look(t, s).Row
	require.Zero(t, row.Grace)
	require.Contains(t, row.TTLOnly, "without mysql.WithSessionSign")
}

func TestAClaimWithoutAGraceHasNoSign(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	ref := acquire(t, s)
	view := lookAtSession(t, s)
	require.Zero(t, view.Row.Grace)
	require.Contains(t, view.Row.TTLOnly, "without a session grace")
	beat, err := s.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	require.Nil(t, beat.Session)
	require.NoError(t, s.Close())
}

func TestARowThatWasEditedIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db := byHand(t, url)
	standby := open(t, url)
	for _, edit := range []string{`session_lock = NULL`, `connection_id = NULL`,
		`session_server = NULL`, `grace_ms = NULL`, `session_server = concat(session_server, '1')`} {
		holder := open(t, url)
		ref, _ := acquireWatched(t, holder)
		require.NoError(t, holder.Close())
		eventually(t, "the sign", func() bool {
			return lookAtSession(t, standby).Sign == driver.SignEnded
		})
		exec(t, db, `UPDATE scheduler_lock SET `+edit)
		require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign, edit)
		release(t, standby, ref)
	}
	// Nor is a token that was edited while its holder lives: it stops at its next heartbeat.
	holder := open(t, url)
	acquireWatched(t, holder)
	exec(t, db, `UPDATE scheduler_lock SET token = 'edited'`)
	require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign)
}

// An id is another's once the server has begun anew.
func TestARestartOfTheServerIsNoSign(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	url := server.Database(t)
	holder, standby := open(t, url), open(t, url)
	require.NoError(t, holder.Migrate(ctx))
	ref, s := acquireWatched(t, holder)
	server.Kill(t)
	ends(t, s.Ended())
	server.StartAgain(t)
	var view driver.Snapshot
	eventually(t, "a look", func() (ok bool) {
		var err error
		view, err = standby.LookAtSession(ctx)
		return err == nil
	})
	require.Equal(t, driver.SignNone, view.Sign,
		"the server may have ended it without a word to the holder")
	beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	require.NotNil(t, beat.Session)
	require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign)
}

// A heartbeat that was sent on a session before may be executed last.
func TestALateHeartbeatDoesNotBringAnEndedSessionBack(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, db := open(t, url), open(t, url), byHand(t, url)
	ref, _ := acquireWatched(t, holder)
	killHolder(t, db)
	heartbeat(t, holder, ref)
	between := value[string](t, db, `SELECT session_lock FROM scheduler_lock`)
	killHolder(t, db)
	heartbeat(t, holder, ref)
	latest := value[int64](t, db, `SELECT connection_id FROM scheduler_lock`)

	exec(t, db, `UPDATE scheduler_lock SET session_lock = ?`, between)
	require.Equal(t, driver.SignEnded, lookAtSession(t, standby).Sign, "as it would be")
	exec(t, db, fmt.Sprintf(`KILL CONNECTION %d`, latest))
	var err error
	eventually(t, "an answer", func() bool {
		_, err = holder.Heartbeat(ctx, ref, driver.StateLeading)
		return err != nil && !strings.Contains(err.Error(), "connection")
	})
	require.ErrorIs(t, err, driver.ErrLost, "it knows of no such session any more")
}

// The beat tells heartbeats apart, the lock sessions: who judged one that has ended must
// not depose a holder that is back on another.
func TestAClaimIsRefusedIfTheRowTellsOfAnotherSession(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, standby := byHand(t, url), open(t, url)
	for _, edit := range []string{`session_lock = 'another'`, `session_lock = NULL`} {
		holder := open(t, url)
		ref, _ := acquireWatched(t, holder)
		require.NoError(t, holder.Close())
		var judged driver.Snapshot
		eventually(t, "the sign", func() bool {
			judged = lookAtSession(t, standby)
			return judged.Sign == driver.SignEnded
		})
		exec(t, db, `UPDATE scheduler_lock SET `+edit) // the beat stays
		_, err := standby.Acquire(ctx, claim(judged))
		require.ErrorIs(t, err, driver.ErrConflict, edit)
		require.NotErrorIs(t, err, driver.ErrBlocked)
		require.Equal(t, ref.Token, look(t, standby).Row.Token)
		again := claim(lookAtSession(t, standby))
		grant, err := standby.Acquire(ctx, again)
		require.NoError(t, err, "what stands there now may be judged anew")
		again.Term = grant.Term
		release(t, standby, again.Ref)
	}
}

// Somebody locks the table for less than the renew deadline, or alters it.
func TestALockedTableDoesNotEndTheSession(t *testing.T) {
	url := migrated(t)
	db, holder := byHand(t, url), open(t, url)
	ref, session := acquireWatched(t, holder)
	require.NotNil(t, session)
	other, err := db.Conn(ctx)
	require.NoError(t, err)
	_, err = other.ExecContext(ctx, `LOCK TABLES scheduler_lock READ`)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 8*time.Second) // the server's limit is 10 s
	defer cancel()
	_, err = holder.Heartbeat(short, ref, driver.StateLeading)
	require.Error(t, err)
	require.NotErrorIs(t, err, driver.ErrLost)
	require.True(t, session.Alive(), "%v", err)
	_, err = other.ExecContext(ctx, `UNLOCK TABLES`)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	heartbeat(t, holder, ref)
	require.True(t, session.Alive())
}

// The whole: a leader dies, and another leads after the grace and long before the TTL; and
// one that comes back stays the leader.
func TestALeaderWhoseSessionHasEndedIsReplacedAfterTheGrace(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	const long = 10 * time.Second // half of it must do for a new session on a busy machine
	first := open(t, url)
	var suspended, resumed atomic.Int64
	a := newLock(t, first, 5*time.Minute, schedlock.WithSessionGrace(long),
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
	b := newLock(t, open(t, url), 5*time.Minute, schedlock.WithSessionGrace(long))
	won := make(chan *schedlock.Lease, 1)
	go func() {
		next, err := b.Wait(t.Context())
		if err == nil {
			won <- next
		}
	}()
	eventually(t, "the standby waits", func() bool {
		return b.Status().State == schedlock.SelfStandby
	})
	db := byHand(t, url)
	for n := range int64(5) {
		killHolder(t, db)
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
	case <-time.After(3 * patience):
		require.Fail(t, "nobody took over")
	}
}
