package named

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/schedlock/schedlock"
)

// A Store keeps the rows of named locks in a database. The stores of this
// module have a method Named that returns one; package locktest has the
// contract as a numbered list, and a suite that tests a Store for it. Every
// method may be called concurrently and must return soon after its context has
// ended. All times are judged by the database: on PostgreSQL by the server's
// clock, on SQLite by a clock of the machine that nobody can set.
//
// A row is free when nobody holds it, or its holder's TTL has passed, and
// besides its time to rest (Claim.Hold) is over. A free row is as good as
// none, except that its term stays.
type Store interface {
	// Take puts the claim into the row of its key if that is free, in one
	// durable statement, and returns the term it grants: the highest of the
	// last term of the key + 1, the highest term that was cleaned up + 1, and
	// the database's clock in Unix milliseconds. If it is not free Take
	// returns 0 and the row that is in the way, nil if that was gone when it
	// looked; nothing is written. While a transaction that Fence guards is open
	// its row is not free, though it may have ended (then Left is 0). After an
	// error the outcome is unknown.
	Take(ctx context.Context, c Claim) (term int64, holder *Row, err error)

	// Look returns the row of a key, nil if it is free. It writes nothing.
	Look(ctx context.Context, key Key) (*Row, error)

	// Extend lets the row of ref end a TTL after now. It returns false, and
	// has written nothing, if the row has not ref's token and term any more,
	// or is free by now: what has expired is never revived.
	Extend(ctx context.Context, ref Ref, ttl time.Duration) (bool, error)

	// Release frees the row of ref, now or, if keepHold is set, when its time
	// to rest is over. It returns false under the conditions of Extend. Where
	// ref.Term is 0, because no answer said which it is, the token alone counts.
	Release(ctx context.Context, ref Ref, keepHold bool) (bool, error)

	// Fence makes sure that nobody else takes the row of ref until the
	// caller's own transaction tx ends, which the server may end when it was
	// idle for ttl. It returns false under the conditions of Extend, and an
	// error that wraps schedlock.ErrNoFence if tx is of a kind, or on a
	// database, that cannot be guarded.
	Fence(ctx context.Context, tx any, ref Ref, ttl time.Duration) (bool, error)

	// Clean deletes rows that are free and ended at least a day ago, at most
	// limit, and tells how many. Terms go on growing after it.
	Clean(ctx context.Context, limit int) (int64, error)
}

// Kind keeps apart names that are used for different things.
type Kind string

// The kinds.
const (
	KindLock     Kind = "lock"     // TryLock, Lock, WithLock
	KindTask     Kind = "task"     // TryTask, WithTask
	KindTimeout  Kind = "timeout"  // TakeFor
	KindElection Kind = "election" // Election
)

// MaxName is how many bytes a name may have.
const MaxName = 200

// Key says which row.
type Key struct {
	Kind Kind
	Name string
}

// CheckName returns an error unless name has 1 to 200 bytes of UTF-8 without
// NUL. Any other text is a name; letter case counts, and blanks do.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("the name of a lock is empty")
	case len(name) > MaxName:
		return fmt.Errorf("the name %.40q… of a lock has %d bytes, %d are allowed", name, len(name), MaxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("the name %q of a lock is not UTF-8, or contains NUL", name)
	}
	return nil
}

// Ref names one acquisition: what extending and releasing are scoped to.
type Ref struct {
	Key
	Token schedlock.Token
	Term  int64
}

// Claim is what Take asks for.
type Claim struct {
	Key
	schedlock.Owner
	Token schedlock.Token
	TTL   time.Duration // after which it ends unless it is extended
	Hold  time.Duration // for which nobody takes it again, even if it is released; 0: at once
}

// Row is the row of a key that is not free.
type Row struct {
	Info
	Token schedlock.Token // zero: nobody holds it, it rests
}

// Info says who holds a lock, as it may be shown.
type Info struct {
	Key
	schedlock.Owner
	Term       int64
	AcquiredAt time.Time     // by the database's clock
	Age        time.Duration // since then; below 0 if that clock was set back
	Left       time.Duration // until it can be taken, unless it is extended or released; 0: once a guarded transaction has ended
	Resting    bool          // it was released, and cannot be taken again before Left has passed
}
