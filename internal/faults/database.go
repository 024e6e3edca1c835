//go:build linux

package faults

import (
	"context"
	"errors"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/tasks"
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

	// Proves reports whether the death of the holder in row will be proven by
	// the kernel.
	Proves(row Row) bool

	// Read reads the history that the database keeps.
	Read(context.Context, *History) error

	// ReadLocks reads what it keeps of named locks and of the queue.
	ReadLocks(context.Context, *History) error

	// Close ends what the harness itself has open.
	Close() error
}

// Row is what the harness knows of the lock row.
type Row struct {
	Term  int64
	Proof bool // it holds what a proof of death needs

	// Session: the end of the holder's session is a sign that it is gone.
	Session bool
}

// An Edit is a change of the lock row by hand.
type Edit string

// The edits.
const (
	editDelete Edit = "delete the row"
	editToken  Edit = "change the token"
	editTerm   Edit = "change the term"
	editPID    Edit = "change the pid"
	editPast   Edit = "stamp the row into the past"
	editFuture Edit = "stamp the row into the future"
	editTTL    Edit = "set the TTL to 1 ms"
	editRevoke Edit = "tell the holder to leave"
	editJobs   Edit = "forget the cursors of the jobs"
)

// A backend is the database as the test program opens it.
type backend struct {
	store driver.Store

	// write commits one row for the run, after fence has agreed inside the
	// transaction.
	write func(ctx context.Context, run tasks.Run, fence func(ctx context.Context,
		tx any) error) error

	locks namedlock.Store
	queue taskqueue.Store

	// writeLock is write for a named lock.
	writeLock func(ctx context.Context, ref namedlock.Ref,
		fence func(ctx context.Context, tx any) error) error

	// exhaust uses up the app's pool, or gives it back; nil: it has none.
	exhaust func(on bool)
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
