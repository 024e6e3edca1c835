// Package sqlitetest does what the conformance suites ask of a SQLite database
// beside its store. What is left to the caller is Open, and what the store can't
// do.
package sqlitetest

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
)

// A Database is one that has its tables.
type Database struct {
	DB   *sql.DB   // begins transactions, as the app does
	Conn *sql.Conn // edits rows, as somebody with a shell does
}

// begin begins a transaction of the app's.
func (d Database) begin(t testing.TB) locktest.Tx {
	tx, err := d.DB.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
}

func (d Database) run(t testing.TB, query string, args ...any) {
	t.Helper()
	_, err := d.Conn.ExecContext(context.Background(), query, args...)
	require.NoError(t, err, query)
}

// Lock is for locktest.Run.
func (d Database) Lock() locktest.Database {
	return locktest.Database{Begin: d.begin, Edit: d.edit, Backup: d.backup}
}

func (d Database) edit(t testing.TB, e locktest.Edit) {
	if e.Silent != "" {
		d.run(t, `
UPDATE scheduler_replicas SET seen_at = strftime('%Y-%m-%dT%H:%M:%f000Z', seen_at, ?)
WHERE instance = ?`, fmt.Sprintf("%+.3f seconds", -e.For.Seconds()), e.Silent)
		return
	}
	if e.CursorOf != "" {
		text := "yesterday"
		if !e.CursorAt.IsZero() {
			text = e.CursorAt.Format(time.DateTime) // as datetime() has it
		}
		d.run(t, `UPDATE scheduler_jobs SET cursor_at = ? WHERE job = ?`, text, e.CursorOf)
		return
	}
	d.run(t, `
UPDATE scheduler_lock
SET token = coalesce(nullif(?, ''), token), term = coalesce(nullif(?, 0), term),
    beat = coalesce(nullif(?, 0), beat), state = coalesce(nullif(?, ''), state)`,
		e.Token, e.Term, e.Beat, string(e.State))
	if e.DeleteRow {
		d.run(t, `DELETE FROM scheduler_lock`)
	}
	if e.EmptyTerms {
		d.run(t, `DELETE FROM scheduler_terms`)
	}
}

func (d Database) backup(t testing.TB) (restore func()) {
	tables := []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs", "scheduler_runs",
		"scheduler_attempts", "scheduler_requests", "scheduler_pauses", "scheduler_audit"}
	for _, table := range tables {
		d.run(t, `CREATE TEMP TABLE kept_`+table+` AS SELECT * FROM `+table)
	}
	return func() {
		d.run(t, `BEGIN IMMEDIATE`)
		for _, table := range tables {
			d.run(t, `DELETE FROM `+table)
			d.run(t, `INSERT INTO `+table+` SELECT * FROM kept_`+table)
		}
		d.run(t, `COMMIT`)
	}
}

// Named is for locktest.RunNamed.
func (d Database) Named() locktest.NamedDatabase {
	return locktest.NamedDatabase{
		Begin: d.begin,
		Age: func(t testing.TB, by time.Duration) {
			d.run(t, `
UPDATE named_locks
SET expires_ms = expires_ms - ?1, hold_ms = hold_ms - ?1,
    acquired_at = strftime('%Y-%m-%dT%H:%M:%f000Z', acquired_at, ?2),
    expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', expires_at, ?2),
    hold_until = strftime('%Y-%m-%dT%H:%M:%f000Z', hold_until, ?2)`,
				by.Milliseconds(), fmt.Sprintf("%+.3f seconds", -by.Seconds()))
		},
		Edit: func(t testing.TB, key namedlock.Key, term int64) {
			if term == 0 {
				d.run(t, `DELETE FROM named_locks WHERE kind = ? AND name = ?`, string(key.Kind),
					key.Name)
				return
			}
			d.run(t, `UPDATE named_locks SET term = ? WHERE kind = ? AND name = ?`, term,
				string(key.Kind), key.Name)
		},
		Without: []locktest.Feature{locktest.FailOvers},
	}
}

// Queue is for locktest.RunQueue.
func (d Database) Queue() locktest.QueueDatabase {
	return locktest.QueueDatabase{
		Begin: d.begin,
		SetBack: func(t testing.TB, by time.Duration) {
			d.run(t, `
UPDATE queue_tasks SET visible_ms = visible_ms + ? WHERE visible_ms IS NOT NULL`,
				by.Milliseconds())
		},
	}
}
