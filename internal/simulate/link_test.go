package simulate

import (
	"cmp"
	"context"
	"errors"
	"time"

	"example.com/schedlock/internal/wire"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var (
	errRefused = errors.New("connection refused")
	errReset   = errors.New("connection reset by peer")
	errCrashed = errors.New("this replica has crashed")
)

// statementLimit bounds a wait in vain, as the stores bound each statement.
const statementLimit = 10 * time.Second

// link is an incarnation's way to the database, through the faults of the plan.
func (p *process) link() *hearing { return &hearing{&wire.Store{Store: p.w.db, On: p.send}, p} }

// hearing is a link on which the database may tell of releases.
type hearing struct {
	*wire.Store
	p *process
}

// AwaitHint implements driver.Store.
func (h *hearing) AwaitHint(ctx context.Context, _ driver.Snapshot) (told driver.Release) {
	select {
	case told = <-h.p.news:
		h.p.standStill()
	case <-ctx.Done():
	}
	return told
}

// notify tells everybody who hears, as late as the plan wants.
func (w *world) notify(r driver.Release) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.now {
		if p == nil || !w.plan.Members[p.replica].Hears {
			continue
		}
		late := p.latency
		switch f := w.network(p.replica, "news"); f.Kind {
		case refuse, loseRequest, loseAnswer, failAfter, hang:
			continue
		case slowRequest, slowAnswer, lateAnswer:
			late += f.Delay
		}
		time.AfterFunc(late, func() { p.hear(r) })
	}
}

// hear lets the newest news wait to be heard.
func (p *process) hear(r driver.Release) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	select {
	case <-p.news:
	default:
	}
	p.news <- r
}

// send sends a statement. It is done when it arrives, whether its caller waits or not, and also
// if the replica has crashed meanwhile.
func (p *process) send(s wire.Statement) (any, error) {
	ctx := s.Ctx
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.standStill()
	if p.crashed() {
		return nil, errCrashed
	}
	there, back := p.latency, p.latency
	f := p.w.network(p.replica, s.Op)
	p.w.land(f.Delay)
	if s.Op == "acquire" {
		p.w.acquiring.Add(1)
		defer p.w.acquiring.Add(-1)
	}
	switch f.Kind {
	case refuse:
		return nil, errRefused
	case hang:
		time.Sleep(f.Delay)
		return nil, errReset
	case loseRequest:
		return nil, p.inVain(ctx)
	case slowRequest:
		there += f.Delay
	case slowAnswer:
		back += f.Delay
	}
	if there > 0 {
		sent := time.Now()
		if err := p.await(ctx, there); err != nil {
			left := there - time.Since(sent)
			p.w.acquiring.Add(1) // whatever it is
			time.AfterFunc(left, func() {
				defer p.w.acquiring.Add(-1)
				answer, _ := p.arrive(s)
				p.w.unheard(answer)
			})
			return nil, err
		}
	}
	answer, err := p.arrive(s)
	switch f.Kind {
	case lateAnswer:
		time.Sleep(f.Delay)
	case failAfter:
		p.w.unheard(answer)
		return nil, errReset
	case loseAnswer:
		p.w.unheard(answer)
		return nil, p.inVain(ctx)
	}
	if back > 0 {
		if err := p.await(ctx, back); err != nil {
			p.w.unheard(answer)
			return nil, err
		}
	}
	p.standStill()
	if p.crashed() {
		return nil, errCrashed
	}
	switch a := answer.(type) {
	case driver.Grant:
		p.known.Store(a.Term)
	case driver.Snapshot:
		if a.Newest != nil {
			p.known.Store(a.Newest.Term)
		}
	}
	return answer, err
}

// arrive lets the database carry a statement out, and remembers when it started a run or a pause.
func (p *process) arrive(s wire.Statement) (any, error) {
	w := p.w
	p.connected()
	if s.Op == "trigger" {
		time.Sleep(137 * time.Microsecond) // a tick at just that time would be the outcome
	}
	var open driver.Term
	if s.Op == "release" {
		open = w.openTerm()
	}
	answer, err := s.Do(context.Background())
	if open.Term != 0 && w.openTerm().Term == 0 {
		at := time.Now().Add(time.Duration(w.offset.Load()))
		w.notify(driver.Release{Term: open.Term, At: at})
	}
	switch a := answer.(type) {
	case wire.Started:
		if a.OK && s.Op != "run" {
			w.committed(attemptOf(a.Run))
		}
	case ledger.Pause:
		if err == nil {
			w.committed("pause " + a.Reason) // of the order that is in force
		}
	}
	return answer, err
}

// openTerm is the newest term if it has no end, else the zero one.
func (w *world) openTerm() driver.Term {
	v, err := w.db.Look(context.Background())
	if err != nil || v.Newest == nil || !v.Newest.Open() {
		return driver.Term{}
	}
	return *v.Newest
}

// network is the fault that a statement meets.
func (w *world) network(replica int, op string) fault {
	at := w.planned()
	for i, f := range w.plan.Faults {
		switch f.Kind {
		case refuse, loseRequest, loseAnswer, failAfter, slowRequest, slowAnswer, hang, lateAnswer:
			if f.active(at) && w.hits(i, replica) && f.concernsOp(op) {
				return f
			}
		}
	}
	return fault{}
}

// land remembers that a statement may be under way for so long.
func (w *world) land(in time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.landed = max(w.landed, w.planned()+in)
}

// unheard remembers the start of a run whose caller did not hear of it.
func (w *world) unheard(answer any) {
	if s, ok := answer.(wire.Started); ok && s.OK {
		w.committed(attemptOf(s.Run) + " unheard")
	}
}

// await lasts for d. It returns an error if its caller does not wait for so long.
func (p *process) await(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	case <-ctx.Done():
		p.standStill()
		return context.Cause(ctx)
	case <-p.dead:
		return errCrashed
	}
}

// inVain waits for an answer that does not come.
func (p *process) inVain(ctx context.Context) error {
	defer p.giveUp()
	return cmp.Or(p.await(ctx, statementLimit), context.DeadlineExceeded)
}
