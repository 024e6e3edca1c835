//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"example.com/schedlock/internal/linear"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// A Database is the database under test, as the harness sees it: from outside,
// past the module. The test program's side is a backend.
type Database interface {
	// Settings fills in what the test program needs to open it.
	Settings(*Settings)

	// Row reads the lock row; ok is false if there is none.
	Row(context.Context) (row Row, ok bool, err error)

	// Edit changes the lock row, or the history, by hand. It keeps in mind
	// where the ledger stood when it made the database forget the cursors.
	Edit(context.Context, Edit) error

	// Paused reports whether everything is paused.
	Paused(context.Context) (bool, error)

	// Block keeps every writer waiting until unblock is called.
	Block(context.Context) (unblock func(), err error)

	// Blocked reports whether a process keeps writers waiting: one that was
	// just stopped may have been in the middle of a write.
	Blocked(context.Context) bool

	// Read reads the history that the database keeps.
	Read(context.Context, *History) error

	// Close ends what the harness itself has open.
	Close() error
}

// Row is what the harness knows of the lock row.
type Row struct {
	Term    int64
	Beat    string // the time of the newest heartbeat
	Proof   bool   // the death of the holder will be proven by the kernel
	Session bool   // the end of the holder's session is a sign that it is gone
}

// An Edit is a change of the lock row by hand: a statement in which $token is a new token, and
// $past and $future are times as the database writes them.
type Edit string

// The edits.
const (
	editDelete Edit = `DELETE FROM scheduler_lock`
	editToken  Edit = `UPDATE scheduler_lock SET token = '$token'`
	editTerm   Edit = `UPDATE scheduler_lock SET term = term + 7`
	editPID    Edit = `UPDATE scheduler_lock SET pid = pid + 7`
	editPast   Edit = `UPDATE scheduler_lock SET heartbeat_at = '$past', created_at = '$past'`
	editFuture Edit = `UPDATE scheduler_lock SET heartbeat_at = '$future', created_at = '$future'`
	editTTL    Edit = `UPDATE scheduler_lock SET ttl_ms = 1`
	editRevoke Edit = `UPDATE scheduler_lock SET state = 'revoked'` // the holder is told to leave
	editJobs   Edit = `DELETE FROM scheduler_jobs`                  // so the cursors are forgotten

	// On PostgreSQL: the standbys are told of a release that never was, …
	editTold Edit = `SELECT pg_notify('scheduler_lock', l.term || ' 1') FROM scheduler_lock l`
	// … and the row is deleted, too.
	editDeletedTold Edit = `WITH gone AS (DELETE FROM scheduler_lock RETURNING term)
		SELECT pg_notify('scheduler_lock', gone.term || ' 1') FROM gone`
)

// A written is a row that a process commits under a fence: of a run, or with the name of a
// named lock.
type written struct {
	name string
	term int64
	job  string
	tick int64
}

// A fence is asked inside of a transaction, and must agree.
type fence func(ctx context.Context, tx any) error

// A backend is the database as the test program opens it.
type backend struct {
	store linear.Full
	locks namedlock.Store
	queue taskqueue.Store

	// write commits one row, after the fence has agreed inside the transaction.
	write func(ctx context.Context, w written, agreed fence) error

	// exhaust uses up the app's pool, or gives it back; nil: it has none.
	exhaust func(on bool)
}

// fencedWrite is the write of a backend on the app's pool.
func fencedWrite(db *sql.DB, insert func(context.Context, *sql.Tx,
	written) error) func(context.Context, written, fence) error {
	return func(ctx context.Context, w written, agreed fence) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := agreed(ctx, tx); err != nil {
			return err
		}
		if err := insert(ctx, tx, w); err != nil {
			return err
		}
		return tx.Commit()
	}
}

// exhauster takes every connection of the pool that it can get, and keeps
// them until it is told to stop.
func exhauster(db *sql.DB) func(on bool) {
	var (
		wg     sync.WaitGroup
		cancel context.CancelFunc
	)
	return func(on bool) {
		if cancel != nil {
			cancel()
			wg.Wait()
			cancel = nil
		}
		if !on {
			return
		}
		var ctx context.Context
		ctx, cancel = context.WithCancel(context.Background())
		for range 2 * appPool {
			wg.Go(func() {
				if conn, err := db.Conn(ctx); err == nil {
					<-ctx.Done()
					conn.Close()
				}
			})
		}
	}
}

// backends are the databases that the test program can open, by the Kind of
// its Settings.
var backends = map[string]func(context.Context, Settings, func() time.Time) (backend, error){
	kindSQLite:   openSQLite,
	kindPostgres: openPostgres,
	kindMySQL:    openMySQL,
}

// errCannotInject is what a fault returns that this machine, or this database,
// does not allow.
var errCannotInject = errors.New("cannot be injected here")
