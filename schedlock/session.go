package schedlock

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver"
)

// looksPerGrace is how often a holder looks at its session within the grace.
const looksPerGrace = 20

// sight is what a holder sees of the session that others judge it by. Without
// one (a store that has none, an option that is off) only the renew deadline
// counts.
//
// Why half of the grace: another takes over if two of its looks, one grace
// apart, both found the session ended. The session had ended before the first.
// The holder's last look that found it alive was before that too, but for the
// time that the news was under way: so half a grace after that look nothing has
// started for long, and what runs has the other half to return.
type sight struct {
	mu      sync.Mutex
	session driver.Session
	ended   bool          // and so the holder is suspended
	since   time.Time     // when that was noticed
	alive   clock.Instant // when it was last seen alive
	changed chan struct{} // closed when there is another session
}

// confirm takes the lease for confirmed, on a session that is new, the same,
// or none.
func (l *Lease) confirm(c confirmation, s driver.Session) {
	if resumed := l.seeConfirmed(c, s); resumed > 0 {
		l.observe(Event{Kind: EventResumed, Took: resumed})
	}
}

// seeConfirmed is confirm without the event. resumed is for how long the holder
// was suspended, if this has ended it.
func (l *Lease) seeConfirmed(c confirmation, s driver.Session) (resumed time.Duration) {
	v := &l.sight
	v.mu.Lock()
	defer v.mu.Unlock()
	l.confirmed.Store(&c)
	if v.session != s {
		if v.ended {
			resumed = max(c.answered.Sub(v.since), 1)
		}
		v.session, v.ended, v.alive = s, false, c.sent
		if v.changed != nil {
			close(v.changed)
		}
		v.changed = make(chan struct{})
	}
	l.reckon()
	return resumed
}

// reckon works out for how long the leader check may say yes. sight is locked.
func (l *Lease) reckon() {
	c, v := l.confirmed.Load(), &l.sight
	t := trust{from: c.sent, lasts: l.lock.timing.RenewDeadline}
	switch {
	case v.session == nil:
	case v.ended:
		t.lasts = 0
	default:
		t.lasts = min(l.lock.grace/2, t.lasts-v.alive.After(c.sent))
		t.from = v.alive
	}
	l.trust.Store(&t)
}

// look looks at the session. left is how long the lease lasts if nothing more
// is heard of it; ended and changed tell of news. Of a session that is known to
// have ended there is no more to hear: ended is nil then.
func (l *Lease) look() (left time.Duration, ended, changed <-chan struct{}) {
	v := &l.sight
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.session == nil {
		return math.MaxInt64, nil, v.changed
	}
	if !v.ended {
		now := l.lock.clock.Read()
		if ended = v.session.Ended(); v.session.Alive() {
			v.alive = now
			l.reckon()
		}
	}
	return l.lock.grace/2 - l.lock.clock.Since(&v.alive), ended, v.changed
}

// lookAgain gives whoever reads the session a moment: what waits to be read
// may be something else than its end. It reports whether the lease lasts.
func (l *Lease) lookAgain(ended <-chan struct{}) bool {
	for range 5 {
		final := bounded.Wait(ended, min(10*time.Millisecond, l.lock.grace/100))
		if left, _, _ := l.look(); left > 0 || final {
			return left > 0
		}
	}
	return false
}

// suspend keeps everything from starting until a heartbeat on a new session
// has succeeded, and sends heartbeats for that.
func (l *Lease) suspend() {
	v := &l.sight
	v.mu.Lock()
	if v.session == nil || l.ctx.Err() != nil {
		v.mu.Unlock()
		return
	}
	select {
	case <-v.session.Ended():
	default: // that was the one before
		v.mu.Unlock()
		return
	}
	v.ended, v.since = true, l.lock.clock.Now()
	l.reckon()
	changed := v.changed
	v.mu.Unlock()
	l.observe(Event{Kind: EventSuspended})
	go l.resume(changed)
}

// resumePause is how long a suspended holder waits between two heartbeats.
const resumePause = 50 * time.Millisecond

func (l *Lease) resume(changed <-chan struct{}) {
	for {
		// Each try may take a quarter of the grace: one that hangs leaves time
		// for another.
		ctx, cancel := context.WithTimeout(l.ctx, l.lock.grace/4)
		_ = l.Heartbeat(ctx) // reported by its event
		cancel()
		select {
		case <-changed:
			return
		case <-l.ctx.Done():
			return
		case <-time.After(resumePause):
		}
	}
}

func (l *Lease) expireSession() {
	cause := fmt.Errorf("%w: the database session has ended, "+
		"and no heartbeat on a new one succeeded within %v", ErrLost, l.lock.grace/2)
	l.lose(context.Background(), Event{Err: cause, Loss: LossSession})
}
