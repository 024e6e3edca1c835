// Package driver is what a database must provide for package schedlock, apart from
// what an app calls, as database/sql/driver is apart from database/sql: a [Store] for
// the lock row, and the values that it exchanges. Packages schedlock/sqlite,
// schedlock/postgres and schedlock/memory have one each; package schedlock/locktest
// has the contract as a numbered list, and tests a Store for it.
//
// The ports of the other tables are in packages schedlock/ledger (the runs of jobs),
// namedlock and taskqueue.
package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// A Store keeps the lock row and the history of terms in a database. Packages
// schedlock/sqlite, postgres, mysql and memory have one each. Every method may be called
// concurrently, must return soon after its context has ended, and rolls back
// whatever it does not commit: a caller that failed must not hold a database lock.
type Store interface {
	// Look reads the lock row, the newest term and the database's clock, all
	// from one statement, and writes nothing.
	Look(ctx context.Context) (Snapshot, error)

	// Acquire ends the judged holder and puts the claim in its place, in one
	// durable write transaction: compare and swap. The term it grants is the
	// highest of: the last term in the database + 1, claim.MinTerm, and the
	// database's clock in Unix milliseconds. It is higher where the database may
	// have lost terms (Snapshot.FailedOver), so that it is above those too.
	//
	// It returns ErrConflict, and has written nothing, if the database is no
	// longer as it was judged, or another acquisition of what was judged is
	// under way; and ErrBlocked if the judged row is still there
	// but somebody's transaction has it locked. If the database is no longer the one
	// that was opened the error wraps ErrLost. After any other error the outcome is
	// unknown.
	Acquire(ctx context.Context, claim Claim) (Grant, error)

	// Heartbeat adds one to the beat of the row that bears ref's token and
	// term, sets its stamp, and its state (a row that is StateRevoked stays
	// so). It returns an error that wraps ErrLost if there is no such row, or
	// if the database itself is no longer the one that was opened; it never
	// inserts. It is called only while the lease is trusted.
	Heartbeat(ctx context.Context, ref Ref, state State) (Renewal, error)

	// Release deletes the row if id, pid, hostname, token and term are ref's,
	// and writes the end of ref's term if that is still open, in one
	// transaction. deleted tells whether there was such a row. Calling it
	// again is harmless. It need not outlive a crash of the database: the row
	// may be back then, but not once a later acquisition was granted.
	Release(ctx context.Context, ref Ref, reason EndReason) (deleted bool, err error)

	// Terms returns the newest terms, newest first, at most limit.
	Terms(ctx context.Context, limit int) ([]Term, error)

	// LookAtSession is Look, with the holder's session in the same statement:
	// Sign is SignEnded if the session that the row tells of has ended, and
	// nothing speaks against taking that for a sign. It costs more than Look;
	// only standbys that may act on it call it. Without sessions the error
	// wraps errors.ErrUnsupported, and the caller looks without them.
	LookAtSession(ctx context.Context) (Snapshot, error)

	// AwaitHint returns when the holder in view may be gone, or when ctx ends,
	// so that a standby looks before its next look is due. It is a hint only: it
	// may return early, late or, until ctx ends, never. If the store was told which
	// term was released it returns that: hearsay, upon which a standby may claim
	// without a look, since Acquire finds out whether it is true. Else it returns
	// the zero Release.
	AwaitHint(ctx context.Context, view Snapshot) Release

	// AwaitLoss returns an error that wraps ErrLost as soon as the store knows,
	// without asking the database, that the lease of ref cannot go on, such as
	// when the database's file is taken away; nil when ctx ends, or the store
	// is closed.
	AwaitLoss(ctx context.Context, ref Ref) error

	// Warning returns what an operator should look at although all goes on, an
	// error that wraps ErrWarning; nil if there is nothing. It asks nobody.
	Warning() error

	// ProofOfDeath tells why the death of a holder cannot be proven here and now,
	// so that the TTL decides; nil if it can, or if this database never proves
	// it. The error wraps errors.ErrUnsupported if nothing can be done about it.
	// It waits for nothing.
	ProofOfDeath() error

	// Fence makes sure that the row bears ref's token and term until the caller's
	// own transaction tx ends. It returns an error that wraps ErrLost if it does
	// not, and ErrNoFence if tx is of a kind, or on a database, that cannot be
	// guarded.
	Fence(ctx context.Context, tx any, ref Ref) error

	// Revoke sets the state of the row to StateRevoked if it bears term, and
	// keeps who and why with that term, in one transaction. It returns what
	// the history says then: a term that was revoked before keeps its first
	// revocation. If the row does not bear term it returns ErrConflict and has
	// written nothing. It never deletes the row. A store that cannot revoke
	// returns ErrNotRevocable.
	Revoke(ctx context.Context, term int64, by, reason string) (Revocation, error)
}

// Base answers for what a database lacks: hints, sessions, warnings, fences,
// proofs of death, revocations. A Store that lacks some of them embeds it.
type Base struct{}

// LookAtSession says that there are no sessions to look at.
func (Base) LookAtSession(context.Context) (Snapshot, error) {
	return Snapshot{}, errors.ErrUnsupported
}

// AwaitHint waits for the end of ctx.
func (Base) AwaitHint(ctx context.Context, _ Snapshot) Release {
	<-ctx.Done()
	return Release{}
}

// AwaitLoss waits for the end of ctx.
func (Base) AwaitLoss(ctx context.Context, _ Ref) error {
	<-ctx.Done()
	return nil
}

// Warning returns nil.
func (Base) Warning() error { return nil }

// ProofOfDeath returns nil.
func (Base) ProofOfDeath() error { return nil }

// Fence returns ErrNoFence.
func (Base) Fence(context.Context, any, Ref) error { return ErrNoFence }

// Revoke returns ErrNotRevocable.
func (Base) Revoke(context.Context, int64, string, string) (Revocation, error) {
	return Revocation{}, ErrNotRevocable
}

// Token proves ownership: 128 random bits, new for every acquisition. A pid is
// no proof (in containers every process is pid 1).
type Token [16]byte

// NewToken draws a token from crypto/rand.
func NewToken() (t Token) {
	rand.Read(t[:]) // never fails: crypto/rand.Read ends the program instead
	return t
}

// String returns the token as 32 hexadecimal digits, as the table keeps it.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// ParseToken reads what String wrote. A text that is no token (a row edited by
// hand) is an error, and the zero token.
func ParseToken(s string) (t Token, err error) {
	if len(s) != hex.EncodedLen(len(t)) {
		return Token{}, fmt.Errorf("token %.40q is not 32 hexadecimal digits", s)
	}
	if _, err := hex.Decode(t[:], []byte(s)); err != nil {
		return Token{}, fmt.Errorf("token %.40q is not 32 hexadecimal digits", s)
	}
	return t, nil
}

// Owner says which process a row belongs to. It is shown, and checked besides
// the token, never trusted alone.
type Owner struct {
	PID      int
	Hostname string
}

// Ref names one lease: what a heartbeat, a release and the start of a run are
// scoped to.
type Ref struct {
	Owner
	Token Token
	Term  int64
}

// State is what the row says of its holder.
type State string

// The states of a lock row.
const (
	StateLeading  State = "leading"
	StateDraining State = "draining" // leaves on purpose: starts nothing new
	StateRevoked  State = "revoked"  // was told to leave, by an operator
)

// EndReason says how a term ended.
type EndReason string

// The ends of a term, as scheduler_terms keeps them.
const (
	EndReleased     EndReason = "released"
	EndExpired      EndReason = "expired"
	EndProvenDead   EndReason = "proven dead"
	EndSessionEnded EndReason = "session ended"
	EndRevoked      EndReason = "revoked"
	EndLost         EndReason = "lost"
)

// Row is the lock row as it was read. RawToken is the token column's text: two
// rows that somebody edited into no-tokens must still be told apart.
type Row struct {
	Ref
	RawToken    string
	Beat        int64
	State       State
	CreatedAt   time.Time
	HeartbeatAt time.Time
	Timing      Timing
	App         App // zero: older code has written the row

	// Grace is how long others wait once this holder's session has ended; 0:
	// they wait for the TTL. TTLOnly says why, "" if that is not known.
	Grace   time.Duration
	TTLOnly string

	// Session names the session that the row tells of, in the store's own words;
	// "": none, or this look did not ask. See LookAtSession.
	Session string
}

// Term is one line of the history.
type Term struct {
	Ref
	AcquiredAt time.Time
	EndedAt    time.Time // zero while the term is open
	EndReason  EndReason // "" while the term is open
	NextTerm   int64     // who took over; 0: nobody yet
	TTL        time.Duration
	App        App        // zero: older code has written it
	Revoked    Revocation // zero: nobody told it to leave
}

// Open reports whether no end of the term is known.
func (t *Term) Open() bool { return t.EndedAt.IsZero() }

// Sign is what a store knows of a holder besides what the tables say.
type Sign int

// The signs. They are about the holder in the row; without a row, about the
// holder of the newest term or anybody else who holds what only a leader has.
const (
	SignNone  Sign = iota // cannot tell: the TTL decides
	SignAlive             // somebody has what only a living holder has
	SignDead              // the holder is proven dead
	SignEnded             // its session has ended; after Row.Grace it leads no more
)

// String returns "none", "alive", "dead" or "session ended".
func (s Sign) String() string {
	switch s {
	case SignAlive:
		return "alive"
	case SignDead:
		return "dead"
	case SignEnded:
		return "session ended"
	}
	return "none"
}

// Snapshot is one look at the database.
type Snapshot struct {
	Row    *Row  // nil: there is none
	Newest *Term // nil: no term was ever held
	Now    time.Time
	Sign   Sign

	// Incarnation changes when the server may have lost what it had acknowledged:
	// another postmaster, another timeline. "" for a database without servers.
	Incarnation string

	// FailedOver: the newest term was acquired (or, if there is none, the tables
	// were made) on a server whose history this one may not have wholly: a later
	// acquisition may be lost, so one TTL must pass, whatever the tables say.
	FailedOver bool

	// Blocker names who keeps the row of a holder locked that gives no sign of
	// life, such as a transaction that a fence guards; "" for nobody, or not known.
	Blocker string

	// Probe is the store's own, for AwaitHint.
	Probe any
}

// Release is what a store was told of a term that was released.
type Release struct {
	Term int64
	At   time.Time // the database's clock
}

// Claim is what a replica that judged the lock asks for.
type Claim struct {
	Ref     // Term is 0: the store grants it
	App     App
	Timing  Timing
	MinTerm int64 // the highest term this replica has seen, + 1

	// Expected is the snapshot that was judged. If it has a row, that row and no other
	// is deleted: same token, term and beat, and session if it has one. If it has
	// none, there must be none still, and the newest term must be the same and, unless
	// Watched, have an end if it had one: what was judged may be hearsay (see AwaitHint).
	Expected Snapshot

	// Grace is how long others shall wait once the claimant's session with the
	// database has ended; 0: until the TTL has passed. A store without sessions
	// ignores it.
	Grace time.Duration

	// Reason is how the judged holder's term ended, if its end is not written
	// yet.
	Reason EndReason

	// Watched tells that the holder was watched for its whole TTL. If it was
	// not, a store that has signs looks at them once more inside the
	// transaction, and returns ErrConflict unless they still allow it.
	Watched bool
}

// Grant is what an acquisition gave.
type Grant struct {
	Term    int64
	Now     time.Time // the database's clock
	Session Session   // nil: there is none whose end would be a sign to others
}

// Renewal is what a heartbeat found.
type Renewal struct {
	State   State
	Now     time.Time // the database's clock
	Session Session   // as of now; nil as in Grant
}

// A Session is what a store and its database have in common for a while, such
// as a connection. Others can see when it has ended, and take that for a sign
// that the holder is gone: so the holder watches it. Two sessions are the same
// if they are equal.
type Session interface {
	// Ended is closed when the store has noticed that the session has ended.
	Ended() <-chan struct{}

	// Alive looks at it, and does not wait: true if nothing that has reached
	// this machine says that the session has ended. false: it has, or that
	// cannot be told right now.
	Alive() bool
}

// A Revocation is an operator's order to a leader to leave. The zero value is
// none.
type Revocation struct {
	At     time.Time // by the database's clock
	By     string    // who
	Reason string    // why, or ""
}

// App says which app a replica belongs to.
type App struct {
	Name    string // by WithApp, else Program; "": not known
	Program string // the import path of the main package, or the name of the executable file
}

// Differs reports whether the two are known to be different apps. Two replicas of
// one program are one app, unless both were given names that differ. What is not
// known, such as the app of a row from an earlier release, is nobody's other.
func (a App) Differs(b App) bool {
	if a.Name == "" || b.Name == "" || a.Name == b.Name {
		return false
	}
	return a.Program != b.Program || a.Named() && b.Named()
}

// Named reports whether somebody has chosen the name.
func (a App) Named() bool { return a.Name != a.Program }
