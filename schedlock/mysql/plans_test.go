package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each table is as large as one where MariaDB, left to choose, reads more than it needs.

// fillRuns adds runs of a job that are done, one for each second from a day on.
func fillRuns(t testing.TB, db *sql.DB, job, day string, n int) {
	t.Helper()
	exec(t, db, `INSERT INTO scheduler_runs (job, scheduled_at, started_at, finished_at, status,
		term, pid, hostname, attempt)
		SELECT ?, ? + INTERVAL seq SECOND, now(6), now(6), 'done', 1, 1, 'h', 1
		FROM seq_1_to_100000 WHERE seq <= ?`, job, day, n)
}

// keepLocked locks a run for as long as the test lasts: what reads it to change it, waits.
func keepLocked(t testing.TB, db *sql.DB, job, scheduledAt string) {
	t.Helper()
	value[int64](t, begin(t, db, nil).Tx.(*sql.Tx), `SELECT id FROM scheduler_runs
		WHERE job = ? AND scheduled_at = ? FOR UPDATE`, job, scheduledAt)
}

func TestAPruneLocksOnlyWhatItDeletes(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	fillRuns(t, db, "other", "2026-01-01", 3000)
	fillRuns(t, db, "j", "2026-01-02", 1500)
	keepLocked(t, db, "other", "2026-01-01 00:00:10")
	keepLocked(t, db, "j", "2026-01-02 00:20:00")
	n, err := s.Prune(ctx, "j", 10, 500)
	require.NoError(t, err)
	require.EqualValues(t, 500, n)
	require.Equal(t, "2026-01-02 00:08:21.000000",
		value[string](t, db, `SELECT min(scheduled_at) FROM scheduler_runs WHERE job = 'j'`),
		"the oldest go")
}

// The statistics of a table are out of date for some seconds after it has grown, and for ever if
// the server does not renew them.
func TestAbandonLocksOnlyWhatIsInProgress(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s := byHand(t, url), open(t, url)
	exec(t, db, `ALTER TABLE scheduler_runs STATS_PERSISTENT = 1 STATS_AUTO_RECALC = 0`)
	fillRuns(t, db, "j", "2026-01-01", 10000)
	const ours = ` WHERE database_name = database() AND table_name = 'scheduler_runs'`
	exec(t, db, `UPDATE mysql.innodb_table_stats SET n_rows = 10000, clustered_index_size = 1`+ours)
	exec(t, db, `UPDATE mysql.innodb_index_stats SET stat_value = 1`+ours)
	exec(t, db, `FLUSH TABLE scheduler_runs`)
	keepLocked(t, db, "j", "2026-01-01 00:30:00")
	_, err := s.Abandon(ctx, acquire(t, s), nil)
	require.NoError(t, err)
}
