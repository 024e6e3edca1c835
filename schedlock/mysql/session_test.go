package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

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

func TestSessions(t *testing.T) {
	t.Parallel()
	servertest.Sessions(t, func(t testing.TB) servertest.Database {
		url := migrated(t)
		db := byHand(t, url)
		return servertest.Database{
			Open: func(t testing.TB) servertest.Store { return open(t, url) },
			Kill: func(t testing.TB) {
				killHolder(t, db)
				// A standby that was woken holds the lock for a moment.
				exec(t, db, `DO get_lock((SELECT session_lock FROM scheduler_lock), 0)`)
			},
			Session: func(t testing.TB) string {
				return value[string](t, db, `
					SELECT CASE WHEN connection_id IS NOT NULL AND session_server IS NOT NULL
						AND grace_ms IS NOT NULL AND ttl_only IS NULL
						THEN concat('session_lock = ', quote(session_lock)) ELSE '' END
					FROM scheduler_lock`)
			},
			Edit: func(t testing.TB, set string) { exec(t, db, `UPDATE scheduler_lock SET `+set) },
			NoSign: []string{`session_lock = NULL`, `connection_id = NULL`, `session_server = NULL`,
				`grace_ms = NULL`, `session_server = concat(session_server, '1')`},
			Others: []string{`session_lock = 'another'`, `session_lock = NULL`},
		}
	})
}

// Where something speaks against it the end of a session is no sign.
func TestWhereTheEndOfASessionIsNoSign(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	direct := migrated(t)
	proxy := func(t *testing.T) string {
		_, url := servertest.Through(t, direct)
		return url
	}
	for name, tc := range map[string]struct {
		url  func(t *testing.T) string
		opts []mysql.Option
		why  string
	}{
		"a unix socket": {
			url: func(*testing.T) string { return server.OnSocket(direct) },
			why: "a unix socket",
		},
		"a proxy": {url: proxy, why: "another end than the holder's"},
		"a proxy that is vouched for": {
			url:  proxy,
			opts: []mysql.Option{mysql.WithDirectConnection()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Log
			holder := open(t, tc.url(t), append(tc.opts, mysql.WithLogger(log.Logger()))...)
			servertest.Sign(t, holder, open(t, direct), &log, tc.why)
		})
	}
}

// The id of a session is another's once the server has begun anew.
func TestARestartOfTheServerEndsAWatchAndNotTheLease(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	url := server.Database(t)
	s := open(t, url)
	require.NoError(t, s.Migrate(ctx))
	servertest.OutlivesRestarts(t,
		func(t testing.TB) servertest.Store { return open(t, url) },
		servertest.Restart{Stop: func() { server.Kill(t) }, Start: func() { server.StartAgain(t) }})
	release(t, s, acquire(t, s))
	exec(t, server.Open(t, url), `SET GLOBAL server_id = @@server_id + 1`)
	require.True(t, look(t, s).FailedOver)
}

// A holder whose token was edited stops at its next heartbeat.
func TestATokenThatWasEditedIsNoSign(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	acquireWatched(t, open(t, url))
	exec(t, byHand(t, url), `UPDATE scheduler_lock SET token = 'edited'`)
	require.Equal(t, driver.SignNone, lookAtSession(t, open(t, url)).Sign)
}

// The server must keep the session of a silent client for the TTL, whatever it is asked for.
func TestAServerThatEndsSilentSessionsGivesNoSign(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t, "--maximum-wait-timeout=59", "--maximum-net-read-timeout=59",
		"--maximum-net-write-timeout=59", "--tcp-keepalive-time=59")
	s := open(t, server.Database(t))
	require.NoError(t, s.Migrate(ctx))
	_, session := acquireWatched(t, s) // for 60 s
	require.Nil(t, session)
	row := lookAtSession(t, s).Row
	require.Zero(t, row.Grace)
	require.Contains(t, row.TTLOnly, "does not keep the session of a silent client for the TTL: "+
		"wait_timeout is 59, net_read_timeout is 59, net_write_timeout is 59, "+
		"tcp_keepalive_time is 59")
}

// The time-outs are set for the holder's own session, and for its own TTL.
func TestTheServerKeepsTheSessionForTheTTL(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t, "--wait-timeout=7", "--net-read-timeout=8", "--net-write-timeout=9",
		"--interactive-timeout=10", "--tcp-keepalive-time=600", "--idle-transaction-timeout=11",
		"--innodb-default-row-format=compact") // which has no room for the tables' indexes
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

// The first heartbeat on a new session gets the lock of the session, and fails after that.
func TestAReleaseAfterAHeartbeatThatHasFailedWakesAStandby(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	holder, standby, db := open(t, url), open(t, url), byHand(t, url)
	ref := acquire(t, holder)
	killHolder(t, db)
	tx := begin(t, db, nil)
	value[int](t, tx.Tx.(*sql.Tx), `SELECT beat FROM scheduler_lock FOR UPDATE`)
	eventually(t, "a heartbeat waits for the row in vain", func() bool {
		_, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
		return err != nil && strings.Contains(err.Error(), "keeps a row locked")
	})
	require.NoError(t, tx.Rollback())
	heartbeat(t, holder, ref)
	done := awaiting(t.Context(), standby, look(t, standby))
	stays(t, done)
	release(t, holder, ref)
	ends(t, done)
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

// Somebody locks the table for less than the renew deadline, or alters it.
func TestALockedTableDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{"READ", "WRITE"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			db, holder := byHand(t, url), open(t, url)
			ref, session := acquireWatched(t, holder)
			require.NotNil(t, session)
			other, err := db.Conn(ctx)
			require.NoError(t, err)
			_, err = other.ExecContext(ctx, `LOCK TABLES scheduler_lock `+lock)
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, 8*time.Second) // the server's limit is 10 s
			defer cancel()
			_, err = holder.Heartbeat(short, ref, driver.StateLeading)
			require.ErrorContains(t, err, "somebody else keeps a row locked")
			require.NotErrorIs(t, err, driver.ErrLost)
			require.True(t, session.Alive(), "%v", err)
			_, err = other.ExecContext(ctx, `UNLOCK TABLES`)
			require.NoError(t, err)
			require.NoError(t, other.Close())
			heartbeat(t, holder, ref)
			require.True(t, session.Alive())
		})
	}
}

func TestAConnectionThatIsLateIsUsed(t *testing.T) {
	t.Parallel()
	line, url := servertest.Through(t, migrated(t))
	servertest.ConnectsLate(t, line, open(t, url), "MariaDB")
}
