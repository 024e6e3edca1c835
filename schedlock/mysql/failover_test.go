package mysql_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
)

// cluster is a primary that has the tables, a replica that has them too, and the URL of a
// user of the app's, who may not write to a replica, through a proxy to the primary.
func cluster(t testing.TB) (primary, replica *mytest.Server, through *servertest.Wire,
	appURL string) {
	primary = mytest.Primary(t)
	replica = primary.Replica(t)
	database := primary.Database(t)
	s := open(t, database)
	require.NoError(t, s.Migrate(ctx))
	require.NoError(t, s.Close())
	primary.Exec(t, "CREATE USER app")
	primary.Exec(t, "GRANT ALL ON "+mytest.Name(database)+".* TO app")
	through, database = servertest.Through(t, database)
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.User = url.User("app")
	follows(t, primary, replica)
	return primary, replica, through, u.String()
}

// follows waits until the replica has all of the primary.
func follows(t testing.TB, primary, replica *mytest.Server) {
	t.Helper()
	at := value[string](t, primary.Open(t, primary.URL("")), `SELECT @@gtid_binlog_pos`)
	require.Equal(t, 0, value[int](t, replica.Open(t, replica.URL("")),
		`SELECT master_gtid_wait(?, 20)`, at))
}

// What was acknowledged may be lost with the primary. So a lock that the promoted server
// finds free is not free before a TTL has passed.
func TestAPromotedReplicaMayHaveLostATerm(t *testing.T) {
	t.Parallel()
	primary, replica, through, appURL := cluster(t)
	s := open(t, appURL)
	ref := acquire(t, s)
	release(t, s, ref)
	require.False(t, look(t, s).FailedOver)
	follows(t, primary, replica)
	replica.Exec(t, "STOP SLAVE")
	lost := acquire(t, s)
	primary.Kill(t)
	replica.Promote(t)

	promoted := open(t, strings.Replace(appURL, through.Address, replica.Address(), 1))
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
	require.Greater(t, grant.Term, lost.Term)
	require.False(t, look(t, promoted).FailedOver)
}

// A server that has become read-only is left, and a holder that goes on at another one
// vouches for it.
func TestAReadOnlyServerIsLeft(t *testing.T) {
	t.Parallel()
	primary, replica, through, appURL := cluster(t)
	s := open(t, appURL)
	ref := acquire(t, s)
	before := look(t, s)
	follows(t, primary, replica)
	primary.Exec(t, "SET GLOBAL read_only = 1")
	replica.Promote(t)
	through.LeadTo(replica.Address())
	_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorContains(t, err, "read-only; connecting anew")
	require.NotErrorIs(t, err, driver.ErrPermanent)
	require.NotErrorIs(t, err, driver.ErrLost)
	heartbeat(t, s, ref)
	now := look(t, s)
	require.NotEqual(t, before.Incarnation, now.Incarnation)
	require.True(t, now.FailedOver, "the first heartbeat may have come late")
	heartbeat(t, s, ref) // sent by a holder that has the answer, and still trusts its lease
	require.False(t, look(t, s).FailedOver)
	release(t, s, ref)
	require.False(t, look(t, s).FailedOver)
	_, err = s.Terms(ctx, 1)
	require.NoError(t, err)
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

// A look at a replica finds what the primary has, and another server.
func TestAWatchDoesNotSpanServers(t *testing.T) {
	t.Parallel()
	primary, replica, through, appURL := cluster(t)
	s := open(t, appURL)
	acquire(t, s)
	follows(t, primary, replica)
	judged := look(t, s)
	primary.Kill(t)
	replica.Promote(t)
	through.LeadTo(replica.Address())
	through.End()
	c := claim(judged) // watched for a TTL, on the primary
	eventually(t, "an answer of the other server", func() bool {
		_, err := s.Acquire(ctx, c)
		return errors.Is(err, driver.ErrConflict)
	})
	require.True(t, look(t, s).FailedOver)
}
