package schedlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
)

// A Store keeps the lock row and the history of terms in a database. Package
// schedlock/sqlite has one. Every method may be called concurrently, must
// return soon after its context has ended, and rolls back whatever it does not
// commit: a caller that failed must not hold a database lock.
type Store interface {
	// Look reads the lock row, the newest term and the database's clock, all
	// from one statement, and writes nothing.
	Look(ctx context.Context) (View, error)

	// Acquire ends the judged holder and puts the claim in its place, in one
	// durable write transaction: compare and swap. The term it grants is the
	// highest of: the last term in the database + 1, claim.MinTerm, and the
	// database's clock in Unix milliseconds.
	//
	// It returns ErrMoved, and has written nothing, if the database is no
	// longer as it was judged, and ErrBlocked if the judged row is still there
	// but somebody's transaction has it locked. After any other error the
	// outcome is unknown.
	Acquire(ctx context.Context, claim Claim) (Grant, error)

	// Heartbeat adds one to the beat of the row that bears ref's token and
	// term, sets its stamp, and its state (a row that is StateRevoked stays
	// so). It returns an error that wraps ErrLost if there is no such row, or
	// if the database itself is no longer the one that was opened; it never
	// inserts.
	Heartbeat(ctx context.Context, ref Ref, state State) (Beat, error)

	// Release deletes the row if id, pid, hostname, token and term are ref's,
	// and writes the end of ref's term if that is still open, in one
	// transaction. deleted tells whether there was such a row. Calling it
	// again is harmless.
	Release(ctx context.Context, ref Ref, reason EndReason) (deleted bool, err error)

	// Terms returns the newest terms, newest first, at most limit.
	Terms(ctx context.Context, limit int) ([]Term, error)
}

// A HintedStore can tell a standby that something may have changed before the
// next look is due.
type HintedStore interface {
	Store

	// AwaitHint returns when the holder in view may be gone, or when ctx ends.
	// It is a hint only: it may return early, late or never.
	AwaitHint(ctx context.Context, view View)
}

// A SessionStore can tell that the holder's session has ended. It costs more
// than Look, and only standbys that may act on it need it: see
// WithSessionGrace.
type SessionStore interface {
	Store

	// LookAtSession is Look, with the session in the same statement: Sign is
	// SignEnded if the session that the row tells of has ended, and nothing
	// speaks against taking that for a sign.
	LookAtSession(ctx context.Context) (View, error)
}

// LookAtSession looks at the lock and, where the store can, at the session of
// its holder. Like GetLockInfo it may be called by anybody.
func LookAtSession(ctx context.Context, store Store) (View, error) {
	if s, ok := store.(SessionStore); ok {
		return s.LookAtSession(ctx)
	}
	return store.Look(ctx)
}

// A FencedStore guards a caller's own transaction; see [Lease.Fence].
type FencedStore interface {
	Store

	// Fence makes sure that the row bears ref's token and term until tx ends.
	// It returns an error that wraps ErrLost if it does not, and ErrNoFence if
	// tx is of a kind, or on a database, that cannot be guarded.
	Fence(ctx context.Context, tx any, ref Ref) error
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

	// Grace is how long others wait once this holder's session has ended; 0:
	// they wait for the TTL. TTLOnly says why, "" if that is not known.
	Grace   time.Duration
	TTLOnly string
}

// Term is one line of the history.
type Term struct {
	Ref
	AcquiredAt time.Time
	EndedAt    time.Time // zero while the term is open
	EndReason  EndReason // "" while the term is open
	NextTerm   int64     // who took over; 0: nobody yet
	TTL        time.Duration
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

// View is one look at the database.
type View struct {
	Row    *Row  // nil: there is none
	Newest *Term // nil: no term was ever held
	Now    time.Time
	Sign   Sign

	// Epoch changes when the server may have lost what it had acknowledged:
	// another postmaster, another timeline. "" for a database without servers.
	Epoch string

	// FailedOver: the newest term was acquired on a server whose history this
	// one may not have wholly: a later acquisition may be lost, so one TTL must
	// pass, whatever the tables say.
	FailedOver bool

	// Blocker names who keeps the row of an expired holder locked, such as a
	// transaction that a fence guards; "" for nobody, or not known.
	Blocker string

	// Probe is the store's own, for AwaitHint.
	Probe any
}

// Claim is what a replica that judged the lock asks for.
type Claim struct {
	Ref     // Term is 0: the store grants it
	Timing  Timing
	MinTerm int64 // the highest term this replica has seen, + 1

	// Judged is the view that was judged. If it has a row, that row and no
	// other is deleted: same token, term and beat. If it has none, there must
	// be none still, and the newest term must be the same.
	Judged View

	// Grace is how long others shall wait once the claimant's session with the
	// database has ended; 0: until the TTL has passed. A store without sessions
	// ignores it.
	Grace time.Duration

	// Reason is how the judged holder's term ended, if its end is not written
	// yet.
	Reason EndReason

	// Watched tells that the holder was watched for its whole TTL. If it was
	// not, a store that has signs looks at them once more inside the
	// transaction, and returns ErrMoved unless they still allow it.
	Watched bool
}

// Grant is what an acquisition gave.
type Grant struct {
	Term    int64
	Now     time.Time // the database's clock
	Session Session   // nil: there is none whose end would be a sign to others
}

// Beat is what a heartbeat found.
type Beat struct {
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
