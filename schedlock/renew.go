package schedlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errRevoked is why what works under a lease is told to return.
var errRevoked = fmt.Errorf("an operator has told this replica to leave: %w", ErrDraining)

// renewal is who keeps a lease alive: the lease itself, until somebody takes
// that over, once. So there is one renewer at a time. (A lease that has lost
// its session sends heartbeats besides, until one succeeds on a new session.)
type renewal struct {
	mu    sync.Mutex
	taken bool
	ctx   context.Context // until the lease ends, or stop
	stop  context.CancelFunc
	soon  chan struct{} // holds one if a heartbeat is wanted at once
}

// renewItself begins to send heartbeats, until the lease ends or TakeRenewal.
func (l *Lease) renewItself() {
	go func() {
		defer l.renewal.stop()
		l.keepAlive(l.renewal.ctx)
	}()
}

// TakeRenewal makes the caller the one who renews the lease: from now on it does
// not do so itself, and the caller has to call Heartbeat every heartbeat
// interval, and every retry interval after one that failed. An order to leave is
// the caller's to follow too; see Revoked. Package tasks does this, so that a
// gocron job renews the lease; an app has no need to. It works once in a lease.
func (l *Lease) TakeRenewal() error {
	l.renewal.mu.Lock()
	defer l.renewal.mu.Unlock()
	if l.renewal.taken {
		return fmt.Errorf("the renewal of term %d was taken before", l.ref.Term)
	}
	l.renewal.taken = true
	l.renewal.stop()
	return nil
}

// keepAlive sends a heartbeat every heartbeat interval, and repeats one that
// failed every retry interval. It follows an operator's order to leave, unless
// the owner of the lease does so itself, by Drain: nothing starts any more, and
// the lease ends once what runs has had the time that a loss would give it.
func (l *Lease) keepAlive(ctx context.Context) {
	timing := l.lock.timing
	due := time.NewTimer(timing.HeartbeatInterval)
	defer due.Stop()
	revoked := l.revoked
	var end <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-revoked:
			if ctx.Err() != nil {
				return // whoever has taken the renewal follows the order
			}
			revoked, end = nil, time.After(timing.TTL-timing.RenewDeadline)
			l.drain()
			continue
		case <-end:
			if l.leaving.Load() || ctx.Err() != nil {
				continue
			}
			l.StepDown(errRevoked)
			return
		case <-l.renewal.soon:
		case <-due.C:
		}
		begin := time.Now()
		if err := l.beat(ctx); err != nil {
			due.Reset(timing.RetryInterval()) // reported by its event
			continue
		}
		due.Reset(max(time.Until(begin.Add(timing.HeartbeatInterval)), 0))
	}
}

// beatRest is how long a heartbeat goes on when the lease has ended meanwhile: to
// cut it short costs PostgreSQL the connection that a release needs next. One
// that hangs must not take all of the release's budget.
const beatRest = releaseBudget / 5

// beat sends a heartbeat that ends a while after ctx.
func (l *Lease) beat(ctx context.Context) error {
	rest, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(beatRest, cut) })()
	return l.Heartbeat(rest)
}

// wasRevoked reports whether an operator has told this replica to leave.
func (l *Lease) wasRevoked() bool {
	select {
	case <-l.revoked:
		return true
	default:
		return false
	}
}

// rest is how long a replica whose work under the lease has returned keeps out
// of the next campaign. Ask before the release.
func (l *Lease) rest() time.Duration {
	switch {
	case errors.Is(l.Err(), ErrCorrupt):
		return l.lock.timing.TTL // winning again would only lead here again
	case l.wasRevoked() || !errors.Is(l.Err(), ErrLost):
		return 2 * l.lock.timing.RetryInterval() // let another have it
	}
	return 0
}
