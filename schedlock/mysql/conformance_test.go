package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/mysql"
)

func TestMain(m *testing.M) { os.Exit(mytest.RunSeated(m)) }

var ctx = context.Background()

// migrated is a new database that has its tables.
func migrated(t testing.TB) (url string) {
	t.Helper()
	url = mytest.Shared(t).Database(t)
	store, err := mysql.Open(ctx, url)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(ctx))
	require.NoError(t, store.Close())
	return url
}

func open(t testing.TB, url string, opts ...mysql.Option) *mysql.Store {
	t.Helper()
	store, err := mysql.Open(ctx, url, append([]mysql.Option{
		mysql.WithLogger(slog.New(slog.DiscardHandler)), mysql.WithSessionSign()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// byHand opens the database for the test itself.
func byHand(t testing.TB, url string) *sql.DB {
	return mytest.Shared(t).Open(t, url, "time_zone='%2B00:00'", "interpolateParams=true")
}

func exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(ctx, query, args...)
	require.NoError(t, err, query)
}

// tables are those that the lock and the ledger write.
var tables = []string{"scheduler_lock", "scheduler_terms", "scheduler_fence", "scheduler_jobs",
	"scheduler_runs", "scheduler_attempts", "scheduler_requests", "scheduler_pauses",
	"scheduler_audit", "scheduler_replicas"}

// empty makes the tables as good as new, which is faster than a new database.
func empty(t testing.TB, db *sql.DB) {
	for _, table := range tables {
		exec(t, db, `DELETE FROM `+table)
	}
	exec(t, db, `INSERT INTO scheduler_fence (term, token) VALUES (0, '')`)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	locktest.Run(t, suite(byHand(t, url), servertest.Reopened(t, func(t testing.TB) driver.Store {
		return open(t, url)
	})))
}

// suite is what the suite of the lock asks for; db has the database of the stores.
func suite(db *sql.DB, open func(testing.TB) driver.Store,
	without ...locktest.Feature) func(testing.TB) locktest.Database {
	return func(t testing.TB) locktest.Database {
		empty(t, db)
		return locktest.Database{
			Open:                open,
			Edit:                func(t testing.TB, e locktest.Edit) { edit(t, db, e) },
			Fill:                func(t testing.TB, f locktest.Fill) { fill(t, db, f) },
			Backup:              func(t testing.TB) func() { return backup(t, db) },
			Begin:               func(t testing.TB) locktest.Tx { return begin(t, db, nil) },
			HeartbeatsPassFence: true,
			Without:             without,
		}
	}
}

// begin begins a transaction of the app's own.
func begin(t testing.TB, db *sql.DB, options *sql.TxOptions) locktest.Tx {
	t.Helper()
	tx, err := db.BeginTx(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
}

func edit(t testing.TB, db *sql.DB, e locktest.Edit) {
	t.Helper()
	if e.Silent != "" {
		exec(t, db, `UPDATE scheduler_replicas SET seen_at = seen_at - INTERVAL ? MICROSECOND
			WHERE instance = ?`, e.For.Microseconds(), e.Silent)
		return
	}
	if e.CursorOf != "" {
		text := "0000-00-00 00:00:00"
		if !e.CursorAt.IsZero() {
			text = e.CursorAt.Format(time.DateTime)
		}
		exec(t, db, `SET STATEMENT sql_mode = '' FOR
			UPDATE scheduler_jobs SET cursor_at = ? WHERE job = ?`, text, e.CursorOf)
		return
	}
	exec(t, db, `UPDATE scheduler_lock SET token = coalesce(nullif(?, ''), token),
		term = coalesce(nullif(?, 0), term), beat = coalesce(nullif(?, 0), beat),
		state = coalesce(nullif(?, ''), state)`, e.Token, e.Term, e.Beat, string(e.State))
	if e.DeleteRow {
		exec(t, db, `DELETE FROM scheduler_lock`)
	}
	if e.EmptyTerms {
		exec(t, db, `DELETE FROM scheduler_terms`)
	}
}

func fill(t testing.TB, db *sql.DB, f locktest.Fill) {
	t.Helper()
	exec(t, db, `INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at,
		end_reason, next_term, ttl_ms)
		SELECT seq, 't', 1, 'h', now(6), now(6), 'released', seq + 1, 60000
		FROM seq_1_to_1000000 WHERE seq <= ?`, f.Terms)
	exec(t, db, `INSERT INTO scheduler_requests (job, requested_at, requested_by, reason)
		SELECT ?, now(6) - INTERVAL seq SECOND, 'ann', 'why'
		FROM seq_1_to_1000000 WHERE seq <= ?`, f.RequestsOf, f.Requests)
	exec(t, db, "INSERT INTO scheduler_audit (at, what, job, `by`, reason) "+
		`SELECT now(6) - INTERVAL 1 HOUR, 'pause', '', 'ann', 'why'
		FROM seq_1_to_1000000 WHERE seq <= ?`, f.Orders)
}

// backup keeps the rows in tables beside them.
func backup(t testing.TB, db *sql.DB) (restore func()) {
	t.Helper()
	for _, table := range tables {
		// On Galera a SELECT waits for what other nodes have committed, and CREATE does not.
		value[int](t, db, `SELECT count(*) FROM `+table)
		exec(t, db, fmt.Sprintf(`CREATE OR REPLACE TABLE backup_%[1]s AS SELECT * FROM %[1]s`, table))
	}
	once := func() error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for _, table := range tables {
			for _, query := range []string{`DELETE FROM %[1]s`,
				`INSERT INTO %[1]s SELECT * FROM backup_%[1]s`} {
				if _, err := tx.ExecContext(ctx, fmt.Sprintf(query, table)); err != nil {
					return err
				}
			}
		}
		return tx.Commit()
	}
	return func() {
		err := once()
		for range 10 { // on Galera a statement of another node may be in the way
			if err == nil || !strings.Contains(err.Error(), "1213") {
				break
			}
			err = once()
		}
		require.NoError(t, err)
	}
}
