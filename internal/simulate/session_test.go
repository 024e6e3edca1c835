package simulate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/wire"
	"example.com/schedlock/schedlock/driver"
)

// A session is what the database and an incarnation have in common. Once the database has ended
// it, a look finds that; the incarnation learns of it then or later.
type session struct {
	p      *process
	over   atomic.Bool // the database has ended it
	unread atomic.Bool // something waits to be read: its end, for all that a look at it can tell
	ended  chan struct{}
	once   sync.Once
}

func (x *session) Ended() <-chan struct{} { return x.ended }

func (x *session) Alive() bool {
	x.p.standStill()
	select {
	case <-x.ended:
		return false
	default:
		return !x.unread.Load()
	}
}

// notice lets the incarnation know of the end, as soon as it does not stand still.
func (x *session) notice() {
	go func() {
		x.p.standStill()
		x.once.Do(func() { close(x.ended) })
	}()
}

// connected is the session that a statement arrives on: a new one after the end of another.
func (p *process) connected() *session {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.session != nil && p.session.over.Load() {
		p.session.notice()
		p.session = nil
	}
	if p.session == nil {
		p.session = &session{p: p, ended: make(chan struct{})}
		p.session.over.Store(p.closed)
	}
	return p.session
}

// disconnect ends the session as a process does that ends, in whatever way.
func (p *process) disconnect() {
	p.closed = true
	if p.session != nil {
		p.session.over.Store(true)
	}
}

// giveUp is for a connection that does not answer. The database knows only after the TTL.
func (p *process) giveUp() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if x := p.session; x != nil {
		p.session = nil
		x.notice()
		ttl := timings[p.w.plan.Members[p.replica].Timing].TTL
		time.AfterFunc(ttl, func() { x.over.Store(true) })
	}
}

// endSession lets the database end the session, or just send something. A look at the session
// finds that in time, and then its holder is told: within a quarter of the grace.
func (p *process) endSession(f fault) {
	grace := p.w.plan.Members[p.replica].Grace
	p.w.mu.Lock()
	x := p.session
	p.w.mu.Unlock()
	if x == nil {
		return
	}
	if f.Kind == unread {
		x.unread.Store(true)
		time.Sleep(min(f.For, grace))
		x.unread.Store(x.over.Load())
		return
	}
	x.over.Store(true)
	told := min(f.Delay, grace/4)
	time.Sleep(told / 2)
	x.unread.Store(true)
	time.Sleep(told - told/2)
	x.notice()
}

// LookAtSession implements driver.Store.
func (h *hearing) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	w := h.p.w
	return wire.Send(h.Store, ctx, "look", "", func(ctx context.Context) (driver.Snapshot, error) {
		v, err := w.db.Look(ctx)
		if v.Row != nil && w.holder(v.Row.Token) != nil && w.holder(v.Row.Token).over.Load() {
			v.Sign = driver.SignEnded
		}
		return v, err
	})
}

// Acquire implements driver.Store.
func (h *hearing) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	w := h.p.w
	return wire.Send(h.Store, ctx, "acquire", "", func(ctx context.Context) (driver.Grant, error) {
		grant, err := w.db.Acquire(ctx, c)
		if err == nil && c.Grace > 0 {
			w.db.Edit(func(r *driver.Row) {
				if r.Token == c.Token {
					r.Grace = c.Grace
				}
			})
			grant.Session = h.p.hold(c.Token)
		}
		return grant, err
	})
}

// Heartbeat implements driver.Store. It puts the session in use into the row.
func (h *hearing) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	heartbeat := func(ctx context.Context) (driver.Renewal, error) {
		beat, err := h.p.w.db.Heartbeat(ctx, ref, state)
		if err == nil && h.p.w.holder(ref.Token) != nil {
			beat.Session = h.p.hold(ref.Token)
		}
		return beat, err
	}
	return wire.Send(h.Store, ctx, "heartbeat", "", heartbeat)
}

// holder is the session that a row with the token tells of; nil: it tells of none.
func (w *world) holder(token driver.Token) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[token]
}

// hold lets the row that bears the token tell of the session in use.
func (p *process) hold(token driver.Token) *session {
	x := p.connected()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.held[token] = x
	return x
}
