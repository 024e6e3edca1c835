package driver

import "errors"

// Errors of a Store, to test for with errors.Is.
var (
	// ErrLost: the lease has ended without a release. It is the cause of the
	// lease's context and what Heartbeat and Fence return from then on.
	ErrLost = errors.New("scheduler lock is lost")

	// ErrNoFence: the transaction cannot be guarded, because it is not on the
	// database that has the lock row.
	ErrNoFence = errors.New("no fence: the transaction is not on the lock's database")

	// ErrCorrupt: the database reports that it is corrupt. A leader steps down
	// as soon as it sees this.
	ErrCorrupt = errors.New("the database is damaged")

	// ErrPermanent: no retry will mend it; somebody must act, and the message
	// says how (a missing table or right, a wrong password).
	ErrPermanent = errors.New("needs an operator")

	// ErrWarning: all goes on, but an operator should look at it. Status quotes
	// such an error of a leader's store.
	ErrWarning = errors.New("an operator should look")

	// ErrBlocked: the lock row could be taken over, but another transaction has
	// it locked.
	ErrBlocked = errors.New("the lock row is locked by another transaction")

	// ErrConflict is for a Store: the database is no longer as it was judged,
	// and nothing was written.
	ErrConflict = errors.New("the lock has moved since it was judged")

	// ErrNotRevocable: the store cannot tell a holder to leave.
	ErrNotRevocable = errors.New("this store cannot revoke the lock")
)
