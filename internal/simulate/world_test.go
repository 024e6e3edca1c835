package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/schedlock/internal/faults"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
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

var silence = slog.New(slog.DiscardHandler)

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
