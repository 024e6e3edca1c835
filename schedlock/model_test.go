package schedlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// TestFleet lets a small fleet live through a random schedule of faults and
// checks what the package promises: never two leaders, terms that grow, and,
// once the faults have stopped, somebody leads and stays. The schedule is drawn
// before the bubble begins, so that rapid can shrink it. More of it:
//
//	go test ./schedlock/ -run TestFleet -rapid.checks=10000
func TestFleet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		timings := rapid.SliceOfN(rapid.IntRange(0, len(modelTimings)-1), 2, 4).Draw(rt, "timings")
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 3, 30).Draw(rt, "steps")
		var f *fleet
		synctest.Test(t, func(t *testing.T) {
			f = newFleet(t, timings)
			f.run(steps)
		})
		if f.violation != "" {
			rt.Fatalf("%s\n%s", f.violation, strings.Join(f.lines, "\n"))
		}
	})
}

// modelTimings are what the replicas of one fleet may be set to: mixed
// settings must be safe.
var modelTimings = []driver.Timing{
	{TTL: 60 * time.Second, RenewDeadline: 45 * time.Second, HeartbeatInterval: 10 * time.Second},
	{TTL: 60 * time.Second, RenewDeadline: 51 * time.Second, HeartbeatInterval: 17 * time.Second},
	{TTL: 20 * time.Second, RenewDeadline: 17 * time.Second, HeartbeatInterval: 2 * time.Second},
	{TTL: 6 * time.Second, RenewDeadline: 5 * time.Second, HeartbeatInterval: time.Second},
}

const (
	maxTTL   = 60 * time.Second
	maxAfter = 20 * time.Second // of a fault's delay
)

// A step is something that happens to the fleet.
type step struct {
	wait    time.Duration // before it
	what    string
	replica int
	fault   fault
	ops     []string
}

func drawStep(t *rapid.T) step {
	return step{
		wait: time.Duration(rapid.OneOf(rapid.IntRange(0, 5_000), rapid.IntRange(0, 80_000)).Draw(t,
			"wait")) * time.Millisecond,
		what: rapid.SampledFrom([]string{
			"fault", "fault", "fault", "heal", "heal", "pause", "kill", "start", "start", "leave",
			"clock +1h", "clock -1h", "delete row", "edit token", "edit term", "edit beat",
			"edit ttl", "revoke",
			"backup", "restore",
		}).Draw(t, "what"),
		replica: rapid.IntRange(0, 3).Draw(t, "replica"),
		fault: fault{
			kind: rapid.SampledFrom([]faultKind{broken, hang, deaf, frozen, late, late, lost,
				lateApply, slowApply}).Draw(t, "kind"),
			after: time.Duration(rapid.IntRange(0, int(maxAfter/time.Millisecond)).Draw(t,
				"after")) * time.Millisecond,
		},
		ops: rapid.SampledFrom([][]string{nil, {"look"}, {"acquire"}, {"heartbeat"}, {"release"},
			{"look", "acquire"}, {"heartbeat", "release"}}).Draw(t, "ops"),
	}
}

// A fleet is some replicas on one database.
type fleet struct {
	t       *testing.T
	db      *memory.Store
	offset  atomic.Int64 // of the database's clock
	timings []int

	launched []*member // all there ever were

	trace             // its mu guards what follows
	members []*member // nil: not running
	term    int64     // the highest ever won

	restore  func() // the backup …
	backedUp int64  // … and its newest term
	// After a restore only who was there knows the terms that were lost. That
	// a replica which was not may lead too early is a limit of the design, so
	// none starts, and none of the witnesses dies, until somebody has won.
	restoredAt int64 // the highest term then; 0: somebody has won since
}

// A member is a replica with the app around it.
type member struct {
	*replica
	leave chan struct{} // closed: release and end
	kill  context.CancelFunc
	dead  context.Context
	done  chan struct{}
}

func newFleet(t *testing.T, timings []int) *fleet {
	f := &fleet{t: t, timings: timings, members: make([]*member, len(timings)),
		trace: trace{start: time.Now()}}
	t.Cleanup(func() { // after the replicas' own, which end all faults
		for _, m := range f.launched {
			m.kill()
			<-m.done
		}
	})
	f.db = memory.New(memory.WithClock(func() time.Time {
		return time.Now().Add(time.Duration(f.offset.Load()))
	}))
	f.restore = f.db.Backup() // the empty database
	return f
}

// A trace is what has happened in a fleet. mu guards the members of the fleet, too.
type trace struct {
	start time.Time

	mu        sync.Mutex
	lines     []string
	violation string // the first
}

func (r *trace) log(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%9.3fs ", time.Since(r.start).Seconds())+
		fmt.Sprintf(format, args...))
}

func (r *trace) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.log("VIOLATION: %s", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.violation == "" {
		r.violation = text
	}
}

// present are the members that run, those that stand still included.
func present[M any](r *trace, members []*M) (ms []*M) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range members {
		if m != nil {
			ms = append(ms, m)
		}
	}
	return ms
}

// sampling calls sample again and again until stop is called.
func sampling(pause time.Duration, sample func()) (stop func()) {
	over := make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		for !bounded.Wait(over, pause) {
			sample()
		}
	})
	return func() {
		close(over)
		sampler.Wait()
	}
}

func (f *fleet) running() []*member { return present(&f.trace, f.members) }

// launch starts the app of replica i: it waits for the lock, keeps it, and
// gives it back when it has lost it or is told to.
func (f *fleet) launch(i int) {
	m := &member{leave: make(chan struct{}), done: make(chan struct{})}
	m.dead, m.kill = context.WithCancel(context.Background())
	timing := modelTimings[f.timings[i]]
	m.replica = newReplica(f.t, f.db, schedlock.WithTTL(timing.TTL),
		schedlock.WithRenewDeadline(timing.RenewDeadline),
		schedlock.WithHeartbeatInterval(timing.HeartbeatInterval),
		schedlock.WithObserver(func(e schedlock.Event) {
			f.observe(i, m, e)
		}))
	f.launched = append(f.launched, m)
	f.mu.Lock()
	f.members[i] = m
	f.mu.Unlock()
	f.log("%d starts, TTL %v", i, timing.TTL)
	go func() {
		defer close(m.done)
		waitCtx, cancel := context.WithCancel(m.dead)
		defer cancel()
		go func() {
			select {
			case <-m.leave:
				cancel()
			case <-waitCtx.Done():
			}
		}()
		for {
			lease, err := m.lock.Wait(waitCtx)
			if err != nil {
				if m.dead.Err() == nil {
					_ = m.lock.Stop(context.Background())
				}
				return
			}
			m.lead(lease, timing.HeartbeatInterval)
			if m.dead.Err() != nil {
				return
			}
			_ = lease.Release(context.Background()) // Wait repeats it
		}
	}()
}

func (m *member) lead(lease *schedlock.Lease, pause time.Duration) {
	next := pause
	for {
		select {
		case <-m.dead.Done():
			return
		case <-m.leave:
			lease.Drain()
			return
		case <-lease.Revoked():
			return
		case <-lease.Done():
			time.Sleep(500 * time.Millisecond) // jobs return
			return
		case <-time.After(next):
		}
		next = pause
		if lease.Heartbeat(m.dead) != nil {
			next = m.lock.Timing().RetryInterval()
		}
	}
}

// holds reports whether the replica would start a job, or lets one go on.
func (m *member) holds() bool {
	lease := m.lock.Lease()
	return m.lock.IsLeader(m.dead) == nil || lease != nil && lease.Context().Err() == nil
}

func (f *fleet) observe(i int, m *member, e schedlock.Event) {
	if e.Kind == schedlock.EventHeartbeat || m.dead.Err() != nil {
		return
	}
	f.log("%d: %s term %d reason %q err %v", i, e.Kind, e.Term, e.Reason, e.Err)
	if e.Kind != schedlock.EventElected {
		return
	}
	for _, other := range f.running() {
		if other != m && other.holds() {
			f.violate("two leaders: %d was elected while pid %d led", i, other.lock.Owner().PID)
		}
	}
	f.mu.Lock()
	old := f.term
	f.term, f.restoredAt = max(f.term, e.Term), 0
	f.mu.Unlock()
	if e.Term <= old {
		f.violate("term %d was won after term %d", e.Term, old)
	}
}

func (f *fleet) run(steps []step) {
	for i := range f.members {
		f.launch(i)
	}
	stop := sampling(499*time.Millisecond, f.sample)
	for _, s := range steps {
		time.Sleep(s.wait)
		f.do(s)
	}
	f.recover()
	stop()
	for _, m := range f.running() {
		m.kill()
	}
}

// sample counts the leaders of this moment.
func (f *fleet) sample() {
	var leaders []int
	for _, m := range f.running() {
		if m.holds() {
			leaders = append(leaders, m.lock.Owner().PID)
		}
	}
	if len(leaders) > 1 {
		f.violate("two leaders: pids %v", leaders)
	}
}

func (f *fleet) do(s step) {
	i := s.replica % len(f.members)
	m := f.members[i]
	f.mu.Lock()
	witnessing := f.restoredAt != 0
	f.mu.Unlock()
	edit := func(change func(*driver.Row)) {
		f.log("%s: %v", s.what, f.db.Edit(change))
	}
	switch s.what {
	case "clock +1h":
		f.offset.Add(int64(time.Hour))
		f.log("%s", s.what)
	case "clock -1h":
		f.offset.Add(-int64(time.Hour))
		f.log("%s", s.what)
	case "delete row":
		f.log("%s: %v", s.what, f.db.DeleteRow())
	case "edit token":
		edit(func(r *driver.Row) { r.RawToken = "garbage" })
	case "edit term":
		edit(func(r *driver.Row) { r.Term++ })
	case "edit beat":
		edit(func(r *driver.Row) { r.Beat += 1000 })
	case "edit ttl":
		edit(func(r *driver.Row) { r.Timing.TTL = time.Millisecond })
	case "revoke":
		edit(func(r *driver.Row) { r.State = driver.StateRevoked })
	case "backup":
		f.restore, f.backedUp = f.db.Backup(), f.newest().Term
		f.log("%s", s.what)
	case "restore":
		f.restoreBackup()
	case "start":
		if m == nil && !witnessing {
			f.launch(i)
		}
	}
	if m == nil {
		return
	}
	switch s.what {
	case "fault":
		f.log("%d: fault %d after %v on %v", i, s.fault.kind, s.fault.after, s.ops)
		m.db.set(s.fault, s.ops...)
	case "pause":
		f.log("%d: pause", i)
		m.db.set(fault{kind: frozen})
	case "heal":
		f.log("%d: heal", i)
		m.db.heal()
	case "leave", "kill":
		if witnessing {
			return
		}
		f.log("%d: %s", i, s.what)
		if s.what == "leave" {
			close(m.leave)
			select {
			case <-m.done:
			case <-time.After(30 * time.Second): // somebody kills it
			}
		}
		f.mu.Lock()
		f.members[i] = nil
		f.mu.Unlock()
		m.db.set(fault{kind: broken}) // nothing it sends arrives any more
		m.kill()
	}
}

func (f *fleet) newest() driver.Ref {
	terms, err := f.db.Terms(context.Background(), 1)
	if err != nil || len(terms) == 0 {
		return driver.Ref{}
	}
	return terms[0].Ref
}

// restoreBackup brings back an earlier term, if there is a replica, every one
// has seen the newest, and none is about to take over.
func (f *fleet) restoreBackup() {
	newest := f.newest()
	witnesses := f.running()
	if f.restore == nil || f.backedUp >= newest.Term || len(witnesses) == 0 {
		return
	}
	for _, m := range f.launched {
		if m.db.acquiring.Load() > 0 {
			return // "at the very moment of a take-over" is a limit too
		}
	}
	for _, m := range witnesses {
		if known := schedlock.Known(m.lock); known.Term < newest.Term ||
			known.Term == newest.Term && known.Token != newest.Token {
			return
		}
	}
	f.restore()
	f.mu.Lock()
	f.restoredAt = newest.Term
	f.mu.Unlock()
	f.log("restore: newest term %d instead of %d", f.backedUp, newest.Term)
}

// recover ends all faults: somebody must lead soon, and stay.
func (f *fleet) recover() {
	for _, m := range f.running() {
		m.db.heal()
	}
	if len(f.running()) == 0 {
		f.launch(0)
	}
	f.log("all faults end")
	time.Sleep(maxAfter) // what is still under way arrives or ends
	leader := func() *member {
		for _, m := range f.running() {
			if m.leads() {
				return m
			}
		}
		return nil
	}
	within := func(bound time.Duration) *member {
		for healed := time.Now(); time.Since(healed) <= bound; time.Sleep(time.Second) {
			if m := leader(); m != nil {
				return m
			}
		}
		f.violate("nobody leads %v after the faults have ended", bound)
		return nil
	}
	if within(maxTTL+15*time.Second) == nil {
		return
	}
	time.Sleep(20 * time.Second) // the next heartbeat notices what was edited
	first := within(maxTTL + 15*time.Second)
	if first == nil {
		return
	}
	term := first.lock.Status().Term
	time.Sleep(2 * maxTTL)
	if !first.leads() || first.lock.Status().Term != term {
		f.violate("the leader changed though nothing was wrong")
	}
}
