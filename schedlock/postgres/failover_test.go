package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// timelines makes the tables say that what they have was written on another
// timeline: what a promoted server finds.
const timelines = `UPDATE scheduler_lock SET timeline = 'FFFFFFFF';
UPDATE scheduler_terms SET timeline = 'FFFFFFFF'`

func TestAHolderWhoseHeartbeatSucceedsVouchesForTheNewTimeline(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	ref := acquire(t, store, time.Minute)
	exec(t, conn, timelines)
	require.True(t, look(t, store).FailedOver)
	heartbeat(t, store, ref)
	require.True(t, look(t, store).FailedOver, "the first heartbeat may have come late")
	heartbeat(t, store, ref) // sent by a holder that has the answer, and still trusts its lease
	require.False(t, look(t, store).FailedOver)
	release(t, store, ref)
	require.False(t, look(t, store).FailedOver)
}

// The URL that docs/databases.md gives for managed fail-over.
func TestAURLOfSeveralHostsLeadsToThePrimary(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	url := primary.Database(t)
	migrate(t, url)
	standby := primary.Standby(t)
	_, err := postgres.Open(ctx, standby.URL(databaseName(t, url)), silent)
	require.ErrorContains(t, err, "read-only") // and so it is never judged by what a replica says
	require.NotErrorIs(t, err, driver.ErrPermanent)
	hosts := fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", standby.Port(), primary.Port())
	both := open(t, strings.Replace(url, fmt.Sprintf("127.0.0.1:%d", primary.Port()), hosts, 1)+
		"&target_session_attrs=read-write")
	ref := acquire(t, both, time.Minute)
	conn := session(t, standby.URL(databaseName(t, url)))
	eventually(t, "the standby has it", func() bool {
		return value[bool](t, conn,
			`SELECT EXISTS (SELECT FROM scheduler_lock)`)
	})
	primary.Stop(t, "immediate")
	standby.Promote(t)
	eventually(t, "the holder renews its lease on the promoted server", func() bool {
		_, err := both.Heartbeat(ctx, ref, driver.StateLeading)
		return err == nil
	})
	require.Equal(t, ref.Token, look(t, both).Row.Token)
}
