package schedlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// A Lock is this replica's side of the scheduler lock. One per process is
// enough. All methods are safe for concurrent use.
type Lock struct {
	store     driver.Store
	owner     driver.Owner
	app       driver.App
	timing    driver.Timing
	grace     time.Duration // see WithSessionGrace
	clock     clock.Clock
	log       *slog.Logger
	observers []func(Event)

	current atomic.Pointer[Lease] // the lease that leads; nil on a standby
	failing atomic.Bool           // the last statement failed

	// The last write failed: that a look succeeds is no recovery (a disk that
	// is full can be read).
	unwritable atomic.Bool
	gaveBack   atomic.Bool // an acquisition whose answer was lost, since the last one that failed

	campaigning bounded.Turn // one campaign at a time; guards believed
	believed    int64        // the term whose release was believed last
	asking      asking
	byHand      bool // its leases do not renew themselves, in tests

	mu      sync.Mutex
	last    *Lease         // the newest lease, until it is settled
	known   driver.Term    // the newest term read or held
	watch   rules.Watch    // what the looks have seen
	silence rules.Watch    // the same, since they have found the holder's session ended
	claims  []driver.Token // sent, never answered; the newest maxClaims
	standby standby        // what Status tells
	going   *going         // the Run or Start that is under way

	stopping context.Context // ended by stop, while mu is held, with ErrStopped
	stop     context.CancelCauseFunc

	whyUnproven string     // what sayUnproven has said last
	warned      string     // the last warning of the store that was logged
	otherSaid   driver.App // the other app that the log has warned of last
}

// standby is what a replica that does not lead knows.
type standby struct {
	after  *Lease // the lease that has ended since the last look; nil: none
	looked bool
	view   driver.Snapshot
	at     time.Time // when the look was answered
	judged rules.Judgement
	err    error // of the last look, nil if it was answered

	// Why the last claim failed; nil: none has, another was faster, or there is nothing to claim.
	claim error
}

// stopped reports whether Stop was called.
func (l *Lock) stopped() bool { return l.stopping.Err() != nil }

// maxClaims bounds how many claims without an answer are remembered.
const maxClaims = 64

// An Option sets something on New.
type Option func(*Lock) error

// WithTTL sets the TTL; default 60 s. Unless they are given too, the renew
// deadline follows it (¾ TTL), and so does the heartbeat interval: 10 s, or a
// sixth of the TTL if that is less. New checks the three together: see
// [driver.Timing.Validate] for the bounds.
func WithTTL(d time.Duration) Option {
	return func(l *Lock) error { l.timing.TTL = d; return nil }
}

// WithHeartbeatInterval sets the time between heartbeats; default 10 s, or a
// sixth of the TTL if that is less.
func WithHeartbeatInterval(d time.Duration) Option {
	return func(l *Lock) error {
		if d <= 0 {
			return fmt.Errorf("heartbeat interval %v is not above 0", d)
		}
		l.timing.HeartbeatInterval = d
		return nil
	}
}

// WithRenewDeadline sets how long the lease is trusted after the last
// heartbeat that succeeded was sent; default ¾ TTL.
func WithRenewDeadline(d time.Duration) Option {
	return func(l *Lock) error {
		if d <= 0 {
			return fmt.Errorf("renew deadline %v is not above 0", d)
		}
		l.timing.RenewDeadline = d
		return nil
	}
}

// WithSessionGrace lets this replica, while it leads, be replaced d after its
// session with the database has ended, instead of a TTL after its last
// heartbeat; and replace another leader that was started with this option
// alike. In return it leads only as long as it sees its session: the moment
// that ends nothing starts any more ([ErrSuspended]), and if no heartbeat on a
// new session has succeeded after d/2 the lease is lost, so that its jobs have
// the other half to stop. It needs a store that has sessions (PostgreSQL, on a
// direct TCP connection); with others, and where d is not below the TTL, it
// does nothing. Default 0, off; package startup gives 5 s. At least 100 ms, in
// whole milliseconds.
//
// Use it only where runs start through package tasks, which lets the database
// itself refuse the start of a run to anyone but the holder. If the server ends
// the session at the very moment in which the network fails too, the holder
// learns of neither, and only its renew deadline stops what it does outside the
// database. docs/architecture.md has the whole argument.
func WithSessionGrace(d time.Duration) Option {
	return func(l *Lock) error {
		if d != 0 && (d < minSessionGrace || d%time.Millisecond != 0) {
			return fmt.Errorf("session grace %v is neither 0 nor a whole number of milliseconds "+
				"from %v on", d, minSessionGrace)
		}
		l.grace = d
		return nil
	}
}

const minSessionGrace = 100 * time.Millisecond

// WithLogger sets the logger; default slog.Default(). Use
// slog.New(slog.DiscardHandler) for silence. A handler that blocks holds up
// nothing: its lines wait, and the log says how many were lost.
func WithLogger(log *slog.Logger) Option {
	return func(l *Lock) error {
		if log == nil {
			return errors.New("logger is nil")
		}
		l.log = log
		return nil
	}
}

// WithObserver adds a function that is told what happens to the Lock, of one
// event after the other, in order, after the change it tells of has taken effect.
// It should return soon: the Lock goes on when it has, or after 100 ms. The
// events that follow wait then until it has caught up; if a thousand wait, more
// are not told, and the log says so. Its panics are logged.
//
// It may be given several times. Logs and metrics are observers; the core has
// neither.
func WithObserver(observe func(Event)) Option {
	return func(l *Lock) error {
		if observe == nil {
			return errors.New("observer is nil")
		}
		l.observers = append(l.observers, observe)
		return nil
	}
}

// WithOwner sets the pid and the hostname that the row shows; default this
// process's. The pid must be above 0. The hostname must not be empty, and has at most 200 bytes
// of UTF-8 without control characters.
func WithOwner(o driver.Owner) Option {
	return func(l *Lock) error {
		if o.PID <= 0 {
			return fmt.Errorf("pid %d is not above 0", o.PID)
		}
		if o.Hostname == "" {
			return errors.New("hostname is empty")
		}
		if err := names.Check("hostname", o.Hostname); err != nil {
			return err
		}
		l.owner = o
		return nil
	}
}

// New makes a Lock on a store. It touches no database. The error names every
// option that is wrong, with its value and the rule.
func New(store driver.Store, opts ...Option) (*Lock, error) {
	l := &Lock{
		store:       store,
		timing:      driver.Timing{TTL: rules.DefaultTTL},
		clock:       clock.System,
		log:         slog.Default(),
		campaigning: bounded.NewTurn(),
	}
	l.stopping, l.stop = context.WithCancelCause(context.Background())
	var errs []error
	if store == nil {
		errs = append(errs, errors.New("store is nil"))
	}
	for _, opt := range opts {
		errs = append(errs, opt(l))
	}
	if l.timing.RenewDeadline == 0 {
		l.timing.RenewDeadline = (l.timing.TTL / 4 * 3).Truncate(time.Millisecond)
	}
	if l.timing.HeartbeatInterval == 0 {
		follows := max((l.timing.TTL / 6).Truncate(time.Millisecond), driver.MinHeartbeatInterval)
		l.timing.HeartbeatInterval = min(defaultHeartbeatInterval, follows)
	}
	errs = append(errs, l.timing.Validate())
	if l.grace >= l.timing.TTL {
		l.grace = 0 // the TTL is as fast
	}
	l.app.Program = program()
	l.app.Name = cmp.Or(l.app.Name, l.app.Program)
	if l.owner == (driver.Owner{}) {
		host, err := os.Hostname()
		if err != nil || host == "" {
			host = "unknown"
		}
		l.owner = driver.Owner{PID: os.Getpid(), Hostname: host}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("scheduler lock: %w", err)
	}
	l.log = bounded.Log(l.log)
	for i, o := range l.observers {
		l.observers[i] = patiently(o, l.log).observe
	}
	own := &logObserver{log: l.log, now: l.clock.Now}
	l.observers = append([]func(Event){own.observe}, l.observers...)
	return l, nil
}

// Store returns the store that New was given.
func (l *Lock) Store() driver.Store { return l.store }

// Timing returns the periods that this replica's leases have.
func (l *Lock) Timing() driver.Timing { return l.timing }

// SessionGrace returns what WithSessionGrace has set, 0 if it does nothing.
func (l *Lock) SessionGrace() time.Duration { return l.grace }

// Owner returns the pid and the hostname that this replica's rows show.
func (l *Lock) Owner() driver.Owner { return l.owner }

// App returns which app this replica's rows show.
func (l *Lock) App() driver.App { return l.app }

// IsLeader returns nil if this replica holds the lock, can still prove it and
// may start something new; else an error that says why not. It is lock-free,
// allocates nothing and asks no database, so that it may stand in front of
// every job. The context is not used; the signature is that of gocron's
// Elector, so that a Lock can be passed to gocron.WithDistributedElector: see
// [Lock.Start], without which nobody campaigns. A warning says so if somebody
// asks for a TTL meanwhile.
func (l *Lock) IsLeader(context.Context) error {
	lease := l.current.Load()
	if lease == nil {
		l.askedInVain()
		return ErrNotLeader
	}
	return lease.check()
}

// Lease returns the lease that this replica leads with, nil if it does not.
func (l *Lock) Lease() *Lease { return l.current.Load() }

func (l *Lock) observe(e Event) {
	switch e.Kind {
	case EventReleaseFailed:
		l.failing.Store(true)
		l.unwritable.Store(true)
	case EventHeartbeatFailed, EventStoreFailed:
		l.failing.Store(true)
	case EventHeartbeat, EventElected, EventReleased, EventStoreRecovered:
		l.failing.Store(false)
		l.unwritable.Store(false)
	}
	for _, observe := range l.observers {
		observe(e)
	}
}

// warn logs a warning of the store once.
func (l *Lock) warn() {
	err := l.store.Warning()
	if isNews(l, &l.warned, textOf(err)) && err != nil {
		l.log.Warn("leads on, but somebody should act", "err", err)
	}
}

// learn remembers the newest term ever read, so that a restored backup cannot
// make this replica forget a holder. l.mu is held.
func (l *Lock) learn(v driver.Snapshot) {
	if t := v.Newest; t != nil && (t.Term > l.known.Term ||
		t.Term == l.known.Term && l.known.Open()) {
		l.known = *t
	}
	// A row of a term that the history does not have was edited, or the history
	// was: its TTL may be too. No term can follow the highest number.
	if r := v.Row; r != nil && r.Term > l.known.Term && r.Term < math.MaxInt64 {
		l.known = driver.Term{Ref: r.Ref, TTL: max(r.Timing.TTL, l.known.TTL)}
	}
}

// opTimeout bounds one statement, so that a connection that died silently leaves time for
// another try, also where heartbeats are rare. Servers wait for a locked row or table for a
// second: their answer should come first, as giving up ends the session, by which others may judge.
func (l *Lock) opTimeout() time.Duration {
	return max(min(l.timing.HeartbeatInterval, defaultHeartbeatInterval), time.Second,
		min(1500*time.Millisecond, l.timing.RenewDeadline/2))
}
