package namedlock

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver"
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
//
// A database that may have forgotten an acquisition has failed over. From when
// the first Take has noticed that, nothing is free before the longer of the TTLs
// of the row and of the claim has passed (at most MaxTTL), whatever the row says,
// and also if there is none: by then whoever is forgotten holds it no more. All
// terms that are granted then are above all that may be forgotten.
//
// If more is left of a row than its TTL the database's clock was set back. Take
// lets such a row end a TTL from now.
type Store interface {
	// Take puts the claim into the row of its key if that is free, in one
	// durable statement, and returns the term it grants: the highest of the
	// last term of the key + 1, the highest term that was cleaned up + 1, and
	// the database's clock in Unix milliseconds. If it is not free Take
	// returns 0 and the row that is in the way, nil if that was gone when it
	// looked; nothing is written, except as above. While a transaction that Fence
	// guards is open its row is not free, though it may have ended (then Left is
	// 0). After an error the outcome is unknown.
	Take(ctx context.Context, c Claim) (term int64, holder *Row, err error)

	// Look returns the row of a key, nil if it is free. It writes nothing. What
	// is free to one claim and not to another, after a fail-over, it judges by
	// the row's TTL, and by DefaultTTL if there is none.
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
	// error that wraps driver.ErrNoFence if tx is of a kind, or on a
	// database, that cannot be guarded.
	Fence(ctx context.Context, tx any, ref Ref, ttl time.Duration) (bool, error)

	// List returns up to limit rows that are not free, and those that were revoked
	// and not taken since, by kind and name.
	List(ctx context.Context, limit int) ([]Row, error)

	// Revoke puts mark in the place of the row's token, and ends its time to
	// rest, if the row has that term, is not free, and was not revoked before;
	// else it returns false. What a holder has, nobody takes before it ends; a
	// row without a holder, as is one of KindTimeout, is free from then.
	Revoke(ctx context.Context, key Key, term int64, mark string) (bool, error)

	// Clean deletes rows that are free and ended at least a day ago, at most
	// limit, and tells how many. Terms go on growing after it.
	Clean(ctx context.Context, limit int) (int64, error)
}

// Kind keeps apart names that are used for different things.
type Kind string

// DefaultTTL and MaxTTL are the time after which a lock ends that nobody extends: unless
// its user sets another, and at most.
const (
	DefaultTTL = 30 * time.Second
	MaxTTL     = driver.MaxTTL
)

// The kinds.
const (
	KindLock     Kind = "lock"     // TryLock, Lock, WithLock
	KindTask     Kind = "task"     // TryTask, WithTask
	KindTimeout  Kind = "timeout"  // OncePer
	KindElection Kind = "election" // Election
)

// Key says which row.
type Key struct {
	Kind Kind
	Name string
}

// Ref names one acquisition: what extending and releasing are scoped to.
type Ref struct {
	Key
	Token driver.Token
	Term  int64
}

// Claim is what Take asks for.
type Claim struct {
	Key
	driver.Owner
	Token driver.Token
	TTL   time.Duration // after which it ends unless it is extended
	Hold  time.Duration // for which nobody takes it again, even if it is released; 0: at once
}

// Row is the row of a key that is not free.
type Row struct {
	Info
	Token  driver.Token  // zero: nobody holds it
	TTL    time.Duration // 0: it is not known
	Unsure bool          // only Take can tell when it is free
}

// Info says who holds a lock, as it may be shown.
type Info struct {
	Key
	driver.Owner
	Term       int64
	AcquiredAt time.Time     // by the database's clock
	Age        time.Duration // since then; below 0 if that clock was set back
	// until it can be taken, unless it is extended or released;
	// 0: once a guarded transaction has ended
	Left    time.Duration
	Resting bool        // it was released, and cannot be taken again before Left has passed
	Revoked *Revocation // by an operator; nil: it was not
	// no holder is known, but the database may have forgotten one;
	// all else but Key and Left is empty
	FailedOver bool
}

// String names a key in messages: lock "x", task lock "x", ….
func (k Key) String() string {
	name := string(k.Kind)
	switch k.Kind {
	case KindTask:
		name = "task lock"
	case KindTimeout:
		name = "time-out lock"
	}
	return fmt.Sprintf("%s %q", name, k.Name)
}

// A Revocation is an operator's order that a lock ends.
type Revocation struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// revokedMark begins what stands in the place of the token of a lock that was
// revoked. It is the token of nobody, to any code.
const revokedMark = "revoked:"

// RevocationOf reads the text in the place of a token, for a [Store]. It returns
// nil unless the lock was revoked.
func RevocationOf(token string) *Revocation {
	text, revoked := strings.CutPrefix(token, revokedMark)
	if !revoked {
		return nil
	}
	var r Revocation
	if json.Unmarshal([]byte(text), &r) != nil {
		return &Revocation{By: "unknown"}
	}
	return &r
}

// Mark is the text in the place of the token of a lock that was revoked.
func (r Revocation) Mark() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // two texts
	}
	return revokedMark + string(text)
}
