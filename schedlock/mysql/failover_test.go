package mysql_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

// follows waits until the replica has all of the primary.
func follows(t testing.TB, primary, replica *mytest.Server) {
	t.Helper()
	at := value[string](t, primary.Open(t, primary.URL("")), `SELECT @@gtid_binlog_pos`)
	require.Equal(t, 0, value[int](t, replica.Open(t, replica.URL("")),
		`SELECT master_gtid_wait(?, 20)`, at))
}

// One fail-over is for four locks: one that was acquired in the last moment, one that a standby
// watches, one whose holder goes on, and one that nobody has held. The primary becomes read-only,
// and new connections lead to the replica. The app's user may not write to a replica.
func TestAFailOverToAReplica(t *testing.T) {
	missing.Costly(t, "fails over a cluster of its own")
	t.Parallel()
	primary := mytest.Primary(t)
	replica := primary.Replica(t)
	primary.Exec(t, "CREATE USER app")
	var lines []*servertest.Wire
	database := func() (s *mysql.Store, app string) {
		root := primary.Database(t)
		require.NoError(t, open(t, root).Migrate(ctx))
		primary.Exec(t, "GRANT ALL ON "+mytest.Name(root)+".* TO app")
		line, through := servertest.Through(t, root)
		lines = append(lines, line)
		app = strings.Replace(through, "root@", "app@", 1)
		return open(t, app), app
	}
	lost, appURL := database()
	watched, _ := database()
	kept, _ := database()
	_, emptyURL := database()
	ref := acquire(t, lost)
	release(t, lost, ref)
	require.False(t, look(t, lost).FailedOver)
	acquire(t, watched)
	keeps := acquire(t, kept)
	follows(t, primary, replica)
	judged, before := look(t, watched), look(t, kept)
	replica.Exec(t, "STOP SLAVE")
	last := acquire(t, lost)
	primary.Exec(t, "SET GLOBAL read_only = 1")
	replica.Promote(t)
	for _, line := range lines {
		line.LeadTo(replica.Address())
	}

	// What was acknowledged may be lost with the primary. So a lock that the promoted server
	// finds free is not free before a TTL has passed.
	t.Run("a promoted replica may have lost a term", func(t *testing.T) {
		promoted := open(t, appURL)
		view := look(t, promoted)
		require.Nil(t, view.Row)
		require.Equal(t, ref.Term, view.Newest.Term)
		require.True(t, view.FailedOver)
		c := claim(view)
		c.Watched = false
		_, err := promoted.Acquire(ctx, c)
		require.ErrorIs(t, err, driver.ErrConflict)
		c.Watched = true
		grant, err := promoted.Acquire(ctx, c)
		require.NoError(t, err)
		require.Greater(t, grant.Term, last.Term)
		require.GreaterOrEqual(t, grant.Term, ref.Term+1<<36)
		require.False(t, look(t, promoted).FailedOver)
	})
	t.Run("it may have lost the whole history", func(t *testing.T) {
		view := look(t, open(t, emptyURL))
		require.True(t, view.FailedOver)
		c := claim(view)
		c.Watched = false
		_, err := open(t, emptyURL).Acquire(ctx, c)
		require.ErrorIs(t, err, driver.ErrConflict)
	})
	// A look at a replica finds what the primary has, and another server.
	t.Run("a watch does not span servers", func(t *testing.T) {
		lines[1].End()
		c := claim(judged) // watched for a TTL, on the primary
		eventually(t, "an answer of the other server", func() bool {
			_, err := watched.Acquire(ctx, c)
			return errors.Is(err, driver.ErrConflict)
		})
		require.True(t, look(t, watched).FailedOver)
	})
	// A server that has become read-only is left, and a holder that goes on at another one
	// vouches for it.
	t.Run("a read-only server is left", func(t *testing.T) {
		_, err := kept.Heartbeat(ctx, keeps, driver.StateLeading)
		require.ErrorContains(t, err, "read-only; connecting anew")
		require.NotErrorIs(t, err, driver.ErrPermanent)
		require.NotErrorIs(t, err, driver.ErrLost)
		heartbeat(t, kept, keeps)
		now := look(t, kept)
		require.NotEqual(t, before.Incarnation, now.Incarnation)
		require.True(t, now.FailedOver, "the first heartbeat may have come late")
		// sent by a holder that has the answer, and still trusts its lease
		heartbeat(t, kept, keeps)
		require.False(t, look(t, kept).FailedOver)
		release(t, kept, keeps)
		require.False(t, look(t, kept).FailedOver)
		_, err = kept.Terms(ctx, 1)
		require.NoError(t, err)
	})
}

// The server refuses nothing to a user with READ_ONLY ADMIN, and MariaDB has prepared the
// heartbeat before it became read-only.
func TestNobodyKeepsALockOnAReadOnlyServer(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	root := server.Database(t)
	s, other := open(t, root), open(t, root)
	require.NoError(t, s.Migrate(ctx))
	ref := acquire(t, s)
	heartbeat(t, s, ref)
	named := takeNamed(t, s, lockA)
	server.Exec(t, "SET GLOBAL read_only = 1")
	for what, err := range map[string]error{
		"a heartbeat": second(s.Heartbeat(ctx, ref, driver.StateLeading)),
		"a heartbeat in another session": second(
			s.Heartbeat(ctx, ref, driver.StateLeading)),
		"a release":              second(s.Release(ctx, ref, driver.EndReleased)),
		"a take-over":            second(other.Acquire(ctx, claim(look(t, other)))),
		"a named lock's renewal": second(s.Named().Extend(ctx, named, time.Minute)),
	} {
		require.ErrorContains(t, err, "READ_ONLY ADMIN", what)
		require.NotErrorIs(t, err, driver.ErrPermanent, what)
		require.NotErrorIs(t, err, driver.ErrLost, what)
	}
	c := namedClaim()
	c.Name = "another"
	_, _, err := s.Named().Take(ctx, c)
	require.ErrorContains(t, err, "READ_ONLY ADMIN")
	server.Exec(t, "SET GLOBAL read_only = 0")
	heartbeat(t, s, ref)
	extended, err := s.Named().Extend(ctx, named, time.Minute)
	require.NoError(t, err)
	require.True(t, extended)
	release(t, s, ref)
}

func second[T any](_ T, err error) error { return err }

func TestAReleaseWithoutAHeartbeatDoesNotVouch(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, db := open(t, url), byHand(t, url)
	ref := acquire(t, s)
	exec(t, db, `UPDATE scheduler_lock SET server = 'another 1'`)
	exec(t, db, `UPDATE scheduler_terms SET server = 'another 1'`)
	release(t, s, ref)
	require.True(t, look(t, s).FailedOver)
}
