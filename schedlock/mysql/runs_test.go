package mysql_test

import (
	"context"
	"database/sql"
	"errors"
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
	"example.com/schedlock/schedlock/driver"
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
		lock(first + 2)
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
			lock(first + 1)
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

// A leader has five seconds to look at what people ask, before it begins and then four times a
// second. One round trip for each job that somebody has asked for would take longer.
func TestALookAtTheRequestsOfManyJobsTakesFewStatements(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	s := open(t, server.Database(t))
	require.NoError(t, s.Migrate(ctx))
	const jobs = 500
	exec(t, s.DB(), `INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
		SELECT concat('j', seq), now(6), 'ann', '' FROM seq_1_to_500`)
	selects := func() int {
		return value[int](t, s.DB(), `SELECT variable_value
			FROM information_schema.global_status WHERE variable_name = 'COM_SELECT'`)
	}
	before := selects()
	in, err := s.Pending(ctx)
	require.NoError(t, err)
	require.Len(t, in.Requests, jobs)
	require.Less(t, selects()-before, 10)
}

// Another sql_mode lets a hand write what is no time.
func TestASpoiledTimeConcernsItsRowOnly(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	ref, noon := acquire(t, s), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, job := range []string{"a", "b"} {
		run, _, err := s.Decide(ctx, ref, ledger.Decision{Job: job, To: noon, Start: noon})
		require.NoError(t, err)
		_, err = s.Finish(ctx, run, ledger.End{Status: ledger.Failed, RetryAt: noon})
		require.NoError(t, err)
	}
	exec(t, byHand(t, url), `SET STATEMENT sql_mode = '' FOR
		UPDATE scheduler_runs SET retry_at = '0000-00-00' WHERE job = 'a'`)
	owed, err := s.Retries(ctx)
	require.NoError(t, err)
	require.Len(t, owed, 1, "when a is due is not known")
	require.Equal(t, "b", owed[0].Job)
	_, found, err := s.Run(ctx, "a", noon)
	require.ErrorContains(t, err, "retry_at")
	require.False(t, found)
	rest, err := s.Runs(ctx, "", 10)
	require.ErrorContains(t, err, "retry_at")
	require.Len(t, rest, 1, "the others come too")
}

// Packets are swallowed while the end of a transaction is on its way.
func TestACommitWithoutAnAnswerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	line, url := servertest.Through(t, migrated(t))
	ref, lost := acquire(t, open(t, url)), claim(driver.Snapshot{}).Ref
	var jobs atomic.Int64
	decide := func(ctx context.Context, s *mysql.Store, ref driver.Ref) error {
		_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: fmt.Sprint(jobs.Add(1))})
		return err
	}
	// cut returns the error of a transaction whose end, as it is sent, is cut.
	cut := func(s *mysql.Store, ref driver.Ref, end string) error {
		line.CutAt(end)
		short, cancel := context.WithCancel(ctx)
		done := bounded.Go(func() error { return decide(short, s, ref) })
		eventually(t, "the end is on its way", func() bool { return len(line.Silent) > 0 })
		<-line.Silent
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("it goes on")
		}
	}
	const commit, rollback = "\x03COMMIT", "\x03ROLLBACK" // not that of READ-COMMITTED
	patient := open(t, url+"&readTimeout=1h")
	require.ErrorIs(t, cut(patient, ref, commit), context.Canceled)
	require.ErrorIs(t, cut(patient, lost, rollback), driver.ErrLost)
	if !missing.Full() {
		return
	}
	usual := open(t, url) // gives a connection up after 12 s
	for range mysql.PoolSize {
		require.ErrorIs(t, cut(usual, ref, commit), context.Canceled)
	}
	require.Eventually(t, func() bool { return decide(ctx, usual, ref) == nil }, 3*patience,
		time.Second)
}
