package named

import "example.com/schedlock/schedlock/driver/namedlock"

// What an app sees of the rows of named locks.
type (
	// Kind keeps apart names that are used for different things.
	Kind = namedlock.Kind
	// Key says which row.
	Key = namedlock.Key
	// Info says who holds a lock, as it may be shown.
	Info = namedlock.Info
	// Revocation is an operator's order that a lock ends.
	Revocation = namedlock.Revocation
)

// The kinds.
const (
	KindLock     = namedlock.KindLock     // TryLock, Lock, WithLock
	KindTask     = namedlock.KindTask     // TryTask, WithTask
	KindTimeout  = namedlock.KindTimeout  // OncePer
	KindElection = namedlock.KindElection // Election
)

// Kinds are all of them.
var Kinds = []Kind{KindLock, KindTask, KindTimeout, KindElection}
