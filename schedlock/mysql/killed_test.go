package mysql_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

// What an acquisition has locked until the server ends it must not stay locked, and what
// follows on its connection must not become a part of it.
func TestAnAcquisitionThatTheServerEndsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s, other := byHand(t, url), open(t, url), open(t, url)
	ref := acquire(t, s)
	tx := begin(t, db, nil)
	value[int](t, tx.Tx.(*sql.Tx), `SELECT beat FROM scheduler_lock FOR UPDATE`)
	for range 3 { // it waits for a second; the look at the processes may miss it
		got := make(chan error, 1)
		c := claim(look(t, s))
		go func() {
			_, err := s.Acquire(ctx, c)
			got <- err
		}()
		var (
			id  int64
			err error
		)
		for id == 0 && err == nil {
			id = value[int64](t, db, `SELECT coalesce(max(id), 0) FROM information_schema.processlist
				WHERE db = database() AND info IS NOT NULL AND id <> connection_id()`)
			select {
			case err = <-got:
			case <-time.After(time.Millisecond):
			}
		}
		if err == nil {
			_, _ = db.Exec(`KILL QUERY ?`, id)
			err = <-got
		}
		require.Error(t, err)
		require.NotErrorIs(t, err, driver.ErrConflict)
		if !strings.Contains(err.Error(), "1317") {
			continue
		}
		require.NoError(t, tx.Rollback())
		heartbeat(t, s, ref)
		require.EqualValues(t, 1, look(t, other).Row.Beat, "the heartbeat is not committed")
		acquire(t, other)
		return
	}
	t.Fatal("it was never killed in time")
}
