package schedlock

import "example.com/schedlock/schedlock/driver"

// What an app sees of a database; package driver tells the rest.
type (
	// Revocation is an operator's order to a leader to leave; the zero value is none.
	Revocation = driver.Revocation
	// LockInfo is what the lock row says.
	LockInfo = driver.LockInfo
)

// Errors of a database, to test for with errors.Is.
var (
	// ErrLost: the lease has ended without a release. It is the cause of the
	// lease's context and what Heartbeat and Fence return from then on.
	ErrLost = driver.ErrLost

	// ErrNoFence: the transaction cannot be guarded, because it is not on the
	// database that has the lock row.
	ErrNoFence = driver.ErrNoFence

	// ErrCorrupt: the database reports that it is corrupt. A leader steps down
	// as soon as it sees this.
	ErrCorrupt = driver.ErrCorrupt
)
