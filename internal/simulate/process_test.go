package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/faults"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
)

// A process is one incarnation of a replica.
type process struct {
	w        *world
	replica  int
	name     string
	latency  time.Duration
	app      *startup.App
	stop     context.CancelFunc
	asked    atomic.Int64        // when it was told to stop first
	news     chan driver.Release // has one element if a notification has come
	dead     chan struct{}       // closed: it has crashed
	ended    chan struct{}       // closed: its app has stopped, with err
	err      error
	died     time.Duration // when it has crashed, or the history was over
	believed time.Duration // until when it may have believed to lead, if it has crashed
	beliefs  []faults.Belief
	open     map[*memory.Tx]struct{} // ended by a crash, as a database ends them
	cached   atomic.Bool             // the app's own stage is up
	giving   bool                    // it has clocks
	known    atomic.Int64            // the newest term it was told of
	session  *session                // nil: none yet
	closed   bool                    // it has no other session
}

// standStill lasts as long as the replica stands still, or its machine sleeps.
func (p *process) standStill() {
	still := func() time.Duration {
		return max(p.w.during(stall, p.replica), p.w.during(suspend, p.replica))
	}
	for left := still(); left > 0; left = still() {
		select {
		case <-time.After(left):
		case <-p.dead:
			return
		}
	}
}

func (p *process) crashed() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

const (
	startAgain   = 3 * time.Second  // from the end of a replica to its next start
	startTimeout = 10 * time.Second // of a stage, by default
)

// launch starts a replica, and starts it again if it ends unasked.
func (w *world) launch(replica int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now[replica] != nil {
		return
	}
	m := w.plan.Members[replica]
	p := &process{w: w, replica: replica, latency: m.Latency, dead: make(chan struct{}),
		ended: make(chan struct{}), open: map[*memory.Tx]struct{}{},
		news: make(chan driver.Release, 1)}
	p.name = fmt.Sprintf("%d.%d", replica, len(w.all))
	timing := timings[m.Timing]
	clocks.Lock() // NewApp makes a lock, too, and throws it away
	defer clocks.Unlock()
	app, err := startup.NewApp(startup.Config{
		Open:     p.openStore,
		Jobs:     p.jobs(),
		Strict:   m.Strict,
		Drain:    4 * time.Second,
		KeepRuns: 1_000_000,
		Presence: replica%2 == 1,
		Log:      silence,
		Lock: []schedlock.Option{
			schedlock.WithTTL(timing.TTL), schedlock.WithRenewDeadline(timing.RenewDeadline),
			schedlock.WithHeartbeatInterval(timing.HeartbeatInterval),
			schedlock.WithSessionGrace(m.Grace),
			schedlock.WithOwner(driver.Owner{PID: 1, Hostname: p.name}),
			schedlock.WithObserver(p.observe), p.hasClock,
		},
		Stages: []startup.Stage{{
			Name: "cache", After: []string{startup.StageDatabase},
			Start: func(context.Context) error { p.cached.Store(true); return nil },
			Stop:  func(context.Context) error { p.cached.Store(false); return nil },
		}},
	})
	if err != nil {
		panic(err)
	}
	p.app = app
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = func() {
		p.asked.CompareAndSwap(0, int64(w.planned()))
		cancel()
	}
	w.now[replica], w.all = p, append(w.all, p)
	w.note("%s starts", p.name)
	go p.run(ctx)
}

func (p *process) openStore(ctx context.Context) (driver.Store, error) {
	l := p.link()
	if _, err := l.Retries(ctx); err != nil {
		return nil, err
	}
	p.giveClock()
	return l, nil
}

// run is the life of an incarnation. What ends unasked is started again a while later.
func (p *process) run(ctx context.Context) {
	err := p.app.Run(ctx)
	w := p.w
	w.mu.Lock()
	asked := ctx.Err() != nil
	p.disconnect()
	if w.now[p.replica] == p {
		w.now[p.replica] = nil
	}
	w.note("%s has ended: %v", p.name, err)
	w.mu.Unlock()
	p.stop()
	p.err = err
	// One that has begun amid faults may fail by them.
	begun := max(time.Duration(p.asked.Load()), w.planned()-maxDelay)
	if err != nil && asked && !p.crashed() && begun > healedAt {
		w.violate("a clean stop", "%s: %v", p.name, err)
	}
	close(p.ended)
	if !asked && !errors.Is(err, schedlock.ErrHeld) && w.planned() > healedAt+maxDelay {
		w.violate("the process lives", "%s has ended: %v", p.name, err)
	}
	if !asked && !bounded.Wait(w.over, startAgain) {
		w.launch(p.replica)
	}
}

func (w *world) process(replica int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	if replica < 0 {
		return nil
	}
	return w.now[replica]
}

// running are the incarnations that have neither ended nor crashed.
func (w *world) running() (ps []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.now {
		if p != nil {
			ps = append(ps, p)
		}
	}
	return ps
}

// kill ends an incarnation as kill -9 does. Its goroutines end soon: nothing that they do then
// reaches the database, or is written down.
func (p *process) kill() {
	w := p.w
	w.mu.Lock()
	since, _ := p.stood()
	p.died, p.believed = w.at(), since+origin
	close(p.dead)
	p.disconnect()
	w.now[p.replica] = nil
	w.note("%s crashes", p.name)
	for tx := range p.open {
		_ = tx.Rollback()
	}
	w.mu.Unlock()
	p.stop()
}

// holds reports whether the replica would start a job, or lets one go on.
func (p *process) holds() bool {
	lock := p.app.Lock()
	if lock == nil {
		return false
	}
	lease := lock.Lease()
	goesOn := lease != nil && lease.Context().Err() == nil
	if _, stood := p.stood(); stood {
		goesOn = false
	}
	return goesOn || lock.IsLeader(context.Background()) == nil
}

// stood reports whether an incarnation that watches a session stands still, or did so a moment ago,
// and since when. It looks at the session, and so ends what runs, only after that; meanwhile it
// starts nothing, since the leader check says no.
func (p *process) stood() (since time.Duration, yes bool) {
	since = p.w.planned()
	if p.w.plan.Members[p.replica].Grace == 0 {
		return since, false
	}
	for i, f := range slices.Backward(p.w.plan.Faults) {
		if f.stops() && f.At <= since && since < f.At+f.For+resumes && p.w.hits(i, p.replica) {
			since, yes = f.At, true
		}
	}
	return since, yes
}

// resumes is how long an incarnation may need, after it stood still, to end what runs.
const resumes = 100 * time.Millisecond

// observe writes down when the replica believes that it leads.
func (p *process) observe(e schedlock.Event) {
	w := p.w
	if e.Kind == schedlock.EventHeartbeat || p.crashed() {
		return
	}
	w.log("%s: %s, term %d, reason %q, err %v", p.name, e.Kind, e.Term, e.Reason, e.Err)
	if e.Kind == schedlock.EventLost {
		w.mu.Lock()
		w.losses++
		w.mu.Unlock()
	}
	if e.Kind != schedlock.EventElected && e.Kind != schedlock.EventResumed {
		return
	}
	for _, other := range w.running() {
		if other != p && other.holds() {
			w.violate(faults.RuleOneLeader, "%s was elected, or resumed, while %s led", p.name,
				other.name)
		}
	}
	if e.Kind == schedlock.EventResumed {
		return
	}
	now := faults.Sample{Before: w.at(), After: w.at()}
	w.mu.Lock()
	if w.restored != 0 {
		w.history.Forgot = append(w.history.Forgot, faults.Span{From: w.restored, To: w.at()})
		w.restored = 0
	}
	i := len(p.beliefs)
	p.beliefs = append(p.beliefs, faults.Belief{Process: p.name, Term: e.Term, First: now,
		Last: now})
	w.mu.Unlock()
	end := func() {
		since, _ := p.stood()
		at := max(since+origin, now.After)
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.died == 0 {
			p.beliefs[i].Last = faults.Sample{Before: at, After: at}
		}
	}
	if lease := p.app.Lock().Lease(); lease != nil && lease.Term() == e.Term {
		w.mu.Lock()
		p.beliefs[i].Last = faults.Sample{} // it lasts
		w.mu.Unlock()
		context.AfterFunc(lease.Context(), end)
	}
}
