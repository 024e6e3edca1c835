package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/mysql"
)

// A retry writes the attempt that it replaces, and Prune deletes attempts with their runs: the two
// may wait for each other. The server undoes one of them.
func TestAPruneThatADeadlockHasUndoneIsRepeated(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	exec(t, db, `CREATE TABLE heavy (id integer PRIMARY KEY)`)
	for range 3 { // it waits for a second; the look at the waits may miss it
		exec(t, db, `DELETE FROM scheduler_runs`)
		exec(t, db, `INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname,
			attempt) SELECT 'j', now(6) - INTERVAL 10 - seq SECOND, 'done', 1, 1, 'h', 1
			FROM seq_1_to_3`)
		tx := begin(t, db, nil)
		by := tx.Tx.(*sql.Tx)
		// the server undoes the one that has changed less
		_, err := by.Exec(`INSERT INTO heavy SELECT seq FROM seq_1_to_1000`)
		require.NoError(t, err)
		first := value[int64](t, db, `SELECT min(id) FROM scheduler_runs`)
		lock := func(id int64) {
			value[int64](t, by, `SELECT id FROM scheduler_runs WHERE id = ? FOR UPDATE`, id)
		}
		lock(first + 1)
		var (
			got     = make(chan error, 1)
			deleted int64
		)
		go func() {
			n, err := s.Prune(ctx, "j", 1, 10)
			deleted = n
			got <- err
		}()
		eventually(t, "Prune waits", func() bool {
			return value[int](t, db, `SELECT variable_value FROM information_schema.global_status
				WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'`) > 0 || len(got) > 0
		})
		if len(got) == 0 {
			lock(first)
		}
		require.NoError(t, tx.Rollback())
		err = <-got
		if err != nil && strings.Contains(err.Error(), "1205") {
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 2, deleted)
		return
	}
	t.Fatal("it never waited for long enough")
}

// Packets are swallowed while a COMMIT is on its way.
func TestACommitWithoutAnAnswerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	line := servertest.NewWire(t, mytest.Shared(t).Address())
	s := open(t, withAddress(t, migrated(t), line.Address))
	ref := acquire(t, s)
	var jobs atomic.Int64
	decide := func(ctx context.Context) error {
		_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: fmt.Sprint(jobs.Add(1))})
		return err
	}
	require.NoError(t, decide(ctx))
	for range mysql.PoolSize {
		line.CutAt("\x03COMMIT") // not that of READ-COMMITTED
		short, cancel := context.WithCancel(ctx)
		done := bounded.Go(func() error { return decide(short) })
		eventually(t, "a COMMIT is on its way", func() bool { return len(line.Silent) > 0 })
		<-line.Silent
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
	if missing.Full() { // it takes 12 s until the connections are given up
		require.Eventually(t, func() bool { return decide(ctx) == nil }, 3*patience, time.Second)
	}
}
