package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/faults"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
)

// A world is one history: a database, the replicas on it, and what is written down of them.
type world struct {
	plan  plan
	db    *memory.Store
	start time.Time
	// By fault: the replica that it concerns. Of those of the leader it is known when they begin.
	targets []atomic.Int32
	offset  atomic.Int64  // of the database's clock
	over    chan struct{} // closed: nothing is started any more
	// acquiring counts the acquisitions that may still arrive, and what else is late.
	acquiring atomic.Int64

	mu       sync.Mutex // guards what follows; nobody waits while he has it
	now      []*process // the incarnation of each replica, nil while it is down
	all      []*process
	landed   time.Duration // when the last late statement arrives, or its answer does
	history  faults.History
	asks     int // orders that the operator has numbered
	orders   []faults.Record
	commits  map[string]time.Duration  // when what was committed first, as records count
	held     map[driver.Token]*session // what the row tells of its holder, by its token
	restored time.Duration             // when a backup was; 0: somebody has won since
	rows     []ledger.Run              // of the database, in the end
	peace    bool                      // the last leader released its lease
	own      []faults.Violation        // of the rules that the world asks itself
	trace    []string
	losses   int // of leases
	ends     int // of terms, by the end of a session
	ended    time.Duration
}

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

// origin is when a history begins, as its records count: 0 has a meaning of its own in them.
const origin = time.Second

func (w *world) at() time.Duration { return time.Since(w.start) + origin }

// planned is the time as a plan counts it.
func (w *world) planned() time.Duration { return time.Since(w.start) }

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%8.3fs ", w.planned().Seconds())+
		fmt.Sprintf(format, args...))
}

func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

func (w *world) violate(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := faults.Violation{Rule: rule, At: w.at(), Text: fmt.Sprintf(format, args...)}
	w.own = append(w.own, v)
	w.note("VIOLATION: %s: %s", rule, v.Text)
}

// hits reports whether the i-th fault of the plan concerns a replica.
func (w *world) hits(i, replica int) bool {
	hit := w.targets[i].Load()
	return hit == everybody || hit == int32(replica)
}

// during reports whether a fault of a kind hurts a replica now, and for how long it still does.
func (w *world) during(k kind, replica int) (left time.Duration) {
	at := w.planned()
	for i, f := range w.plan.Faults {
		if f.Kind == k && f.active(at) && w.hits(i, replica) {
			left = max(left, f.At+f.For-at)
		}
	}
	return left
}

// committed remembers when the database did something. Its own clock may be set.
func (w *world) committed(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.commits[what]; !known {
		w.commits[what] = w.at()
	}
}

func attemptOf(r ledger.Run) string {
	return r.Job + " " + strconv.FormatInt(r.ID, 10) + " " + strconv.Itoa(r.Attempt)
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

var silence = slog.New(slog.DiscardHandler)

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

// live carries the plan out, and waits until the fleet has recovered from it.
func (w *world) live(t *testing.T) {
	w.start = time.Now()
	w.now, w.over = make([]*process, len(w.plan.Members)), make(chan struct{})
	w.commits, w.held = map[string]time.Duration{}, map[driver.Token]*session{}
	w.db = memory.New(memory.WithClock(func() time.Time {
		return time.Now().Add(time.Duration(w.offset.Load()))
	}))
	w.targets = make([]atomic.Int32, len(w.plan.Faults))
	for i, f := range w.plan.Faults {
		if f.Replica == leader || f.stops() {
			f.Replica = nobody
		}
		w.targets[i].Store(int32(f.Replica))
	}
	var acting sync.WaitGroup
	for i, m := range w.plan.Members {
		acting.Go(func() {
			time.Sleep(m.Start)
			w.launch(i)
		})
	}
	quiet := make(chan struct{}, 1)
	last := 10 * time.Second // a history without faults has that
	for i, f := range w.plan.Faults {
		last = max(last, f.At+f.For)
		acting.Go(func() {
			time.Sleep(f.At)
			if f.stops() { // nothing that runs may hold a mutex while it does not go on
				quiet <- struct{}{}
				synctest.Wait()
				<-quiet
			}
			if f.Replica == leader {
				f.Replica = w.leader()
			}
			w.targets[i].Store(int32(f.Replica))
			w.log("%s of %d %q for %v (%v)", f.Kind, f.Replica, f.Ops, f.For, f.Delay)
			w.act(f)
		})
	}
	time.Sleep(last)
	acting.Wait()
	w.recover()
	close(w.over)
	w.stopAll()
	w.ended = w.at()
}

// recover waits until somebody leads, and runs jobs, after all faults have ended.
func (w *world) recover() {
	time.Sleep(time.Second) // what stood still sends what it had begun to send
	w.mu.Lock()
	landed := w.landed
	w.mu.Unlock()
	time.Sleep(landed - w.planned())
	w.resume() // also what has landed late
	w.log("all faults have ended")
	bound := maxTTL + 5*time.Second // a retry
	if !slices.ContainsFunc(w.plan.Members, func(m member) bool { return !m.Strict }) {
		bound += maxTTL + 5*time.Second // it is refused, is started again, and watches from then on
	}
	// A start that has begun among the faults may fail by its deadline, and is made again.
	for began := w.at(); w.at() < began+startTimeout+startAgain && !w.up(); {
		time.Sleep(time.Second)
	}
	healed := w.at()
	leads, works := false, false
	for w.at() < healed+bound && !(leads && works) {
		time.Sleep(time.Second)
		leads, works = w.leader() != nobody, w.worked(healed)
	}
	switch {
	case !leads:
		w.violate(faults.RuleSomebody, "nobody leads %v after all faults have ended", bound)
	case !works && !w.plan.setsBack():
		w.violate(faults.RuleStartsWork, "no run has started %v after all faults have ended", bound)
	}
	rest := bound + 60*time.Second // a few runs of jobSlow, one after the other
	for w.at() < healed+rest && w.waiting(healed) != "" {
		time.Sleep(time.Second)
	}
	if what := w.waiting(healed); what != "" {
		w.violate("nothing waits for ever", "%v after all faults have ended: %s", rest, what)
	}
	time.Sleep(5 * time.Second) // the next heartbeat notices what was edited
	before, lost := w.leader(), w.lost()
	time.Sleep(maxTTL)
	if after := w.leader(); leads && (after != before || w.lost() != lost) {
		w.violate(faults.RuleKeeps, "%d leads, and led before, though nothing was wrong", after)
	}
}

// lost is how many leases were lost.
func (w *world) lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.losses
}

// up reports whether each replica has opened its database.
func (w *world) up() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.now, func(p *process) bool { return p == nil || !p.cached.Load() })
}

// waiting is a request that nobody has answered, or a run that was in progress at a moment, or was
// owed an attempt, and still is; "": there is none. After a clock was set back an attempt may wait
// for the longest backoff, which is minutes.
func (w *world) waiting(since time.Duration) string {
	ctx := context.Background()
	if pending, _ := w.db.Pending(ctx); len(pending.Requests) > 0 {
		return fmt.Sprintf("%+v", pending.Requests[0])
	}
	runs, _ := w.db.Runs(ctx, "", 1_000_000)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		owed := !r.RetryAt.IsZero() && !w.plan.setsBack()
		if (r.Status == ledger.InProgress || owed) && w.commits[attemptOf(r)] < since {
			return fmt.Sprintf("%+v", r)
		}
	}
	return ""
}

// leader is the replica that leads, or nobody.
func (w *world) leader() int {
	for _, p := range w.running() {
		if p.holds() {
			return p.replica
		}
	}
	return nobody
}

// worked reports whether a run has started since a moment.
func (w *world) worked(since time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.history.Runs, func(r faults.Run) bool { return r.Start >= since })
}

// stopAll stops the replicas, one after the other, and waits for what is left of those that have
// crashed.
func (w *world) stopAll() {
	for ps := w.running(); len(ps) > 0; ps = w.running() {
		ps[0].stop()
		<-ps[0].ended
	}
	w.mu.Lock()
	all := w.all
	w.mu.Unlock()
	failed := false
	for _, p := range all {
		<-p.ended
		failed = failed || p.err != nil
	}
	if failed { // a Stop that returns an error goes on in the background
		time.Sleep(30 * time.Second)
	}
	ctx := context.Background()
	if v, err := w.db.Look(ctx); err != nil || v.Row != nil {
		w.violate("a clean stop", "all have stopped, and the row is still there: %+v, %v", v.Row, err)
	}
}
