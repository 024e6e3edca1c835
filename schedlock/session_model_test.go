package schedlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// TestSessions lets a fleet whose sessions are signs live through a random
// schedule: sessions end and their holders learn of it late, the network is
// cut, processes stand still and go on, others die. Never do two lead, by the
// leader check, as long as the end of a session reaches its holder within a
// quarter of the grace; and once all that is over, somebody leads and stays.
//
//	go test ./schedlock/ -run TestSessions -rapid.checks=10000
func TestSessions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		settings := rapid.SliceOfN(rapid.Custom(drawSetting), 2, 4).Draw(rt, "settings")
		steps := rapid.SliceOfN(rapid.Custom(drawSessionStep), 3, 40).Draw(rt, "steps")
		var f *sessionFleet
		synctest.Test(t, func(t *testing.T) {
			f = newSessionFleet(t, settings)
			f.run(steps)
		})
		if f.violation != "" {
			rt.Fatalf("%s\n%s", f.violation, strings.Join(f.lines, "\n"))
		}
	})
}

// A setting is how one replica is started.
type setting struct {
	timing driver.Timing
	grace  time.Duration
}

func drawSetting(t *rapid.T) setting {
	return setting{
		timing: rapid.SampledFrom(modelTimings).Draw(t, "timing"),
		grace: rapid.SampledFrom([]time.Duration{5 * time.Second, 5 * time.Second, time.Second,
			15 * time.Second, 0}).Draw(t, "grace"),
	}
}

// A sessionStep is something that happens to the fleet.
type sessionStep struct {
	wait    time.Duration // before it
	what    string
	replica int
	// after which part of a quarter of the grace a look finds the session ended …
	seen  float64
	told  float64       // … and after which its holder is told
	slow  time.Duration // how late the answers are
	still time.Duration // how long a standstill lasts
	fault fault
	op    string
}

func drawSessionStep(t *rapid.T) sessionStep {
	return sessionStep{
		wait: time.Duration(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 6_000),
			rapid.IntRange(0, 30_000)).Draw(t, "wait")) * time.Millisecond,
		what: rapid.SampledFrom([]string{
			"end", "end", "end", "end of the leader's", "end of the leader's",
			"end of the leader's", "refuse", "accept", "accept",
			"cut", "heal", "heal", "stop", "go on", "go on", "standstill", "standstill", "slow",
			"fault", "unread", "kill", "kill the leader", "start", "start",
		}).Draw(t, "what"),
		replica: rapid.IntRange(0, 3).Draw(t, "replica"),
		seen:    rapid.Float64Range(0, 1).Draw(t, "seen"),
		told:    rapid.Float64Range(0, 1).Draw(t, "told"),
		slow: time.Duration(rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 8_000)).Draw(t,
			"slow")) * time.Millisecond,
		still: time.Duration(rapid.IntRange(0, 40_000).Draw(t, "still")) * time.Millisecond,
		fault: fault{
			kind: rapid.SampledFrom([]faultKind{broken, hang, lost, lateApply, slowApply}).Draw(t,
				"kind"),
			after: time.Duration(rapid.IntRange(0, 10_000).Draw(t, "after")) * time.Millisecond,
		},
		op: rapid.SampledFrom([]string{"look", "acquire", "heartbeat", "heartbeat",
			"release"}).Draw(t, "op"),
	}
}

// A sessionFleet is some replicas on one server.
type sessionFleet struct {
	t        *testing.T
	db       *server
	settings []setting

	launched []*sessionMember
	news     sync.WaitGroup // ends of sessions that are under way

	trace                    // its mu guards what follows
	members []*sessionMember // nil: not running
}

// A sessionMember is a replica with the app around it.
type sessionMember struct {
	member
	setting
	conn *client

	stopped bool
	woke    time.Time // when it went on
}

func newSessionFleet(t *testing.T, settings []setting) *sessionFleet {
	f := &sessionFleet{t: t, db: newServer(memory.New()), settings: settings,
		members: make([]*sessionMember, len(settings)), trace: trace{start: time.Now()}}
	t.Cleanup(func() {
		for _, m := range f.launched {
			m.kill()
			<-m.done
		}
		f.news.Wait()
	})
	return f
}

func (f *sessionFleet) running() []*sessionMember { return present(&f.trace, f.members) }

// launch starts the app of replica i.
func (f *sessionFleet) launch(i int) {
	m := &sessionMember{setting: f.settings[i], member: member{leave: make(chan struct{}),
		done: make(chan struct{})}}
	m.dead, m.kill = context.WithCancel(context.Background())
	m.replica, m.conn = newHeld(f.t, f.db, schedlock.WithSessionGrace(m.grace),
		schedlock.WithTTL(m.timing.TTL),
		schedlock.WithRenewDeadline(m.timing.RenewDeadline),
		schedlock.WithHeartbeatInterval(m.timing.HeartbeatInterval),
		schedlock.WithObserver(func(e schedlock.Event) {
			f.observe(i, m, e)
		}))
	f.launched = append(f.launched, m)
	f.mu.Lock()
	f.members[i] = m
	f.mu.Unlock()
	f.log("%d starts, TTL %v, grace %v", i, m.timing.TTL, m.lock.SessionGrace())
	go func() {
		defer close(m.done)
		for {
			lease, err := m.lock.Wait(m.dead)
			if err != nil {
				return
			}
			m.lead(lease, m.timing.HeartbeatInterval)
			if m.dead.Err() != nil {
				return
			}
			_ = lease.Release(context.Background()) // Wait repeats it
		}
	}()
}

func (f *sessionFleet) observe(i int, m *sessionMember, e schedlock.Event) {
	if e.Kind == schedlock.EventHeartbeat || m.dead.Err() != nil {
		return
	}
	f.log("%d: %s term %d reason %q err %v", i, e.Kind, e.Term, e.Reason, e.Err)
	if e.Kind == schedlock.EventElected || e.Kind == schedlock.EventResumed {
		f.sample()
	}
}

// sample counts who would start something now, or lets it go on. A process that
// stands still does neither; one that has gone on is asked at once, and cancels
// what runs a moment later.
func (f *sessionFleet) sample() {
	var leaders, working []int
	for i, m := range f.running() {
		f.mu.Lock()
		stopped, woke := m.stopped, m.woke
		f.mu.Unlock()
		if stopped {
			continue
		}
		if m.leads() {
			leaders = append(leaders, i)
		}
		if lease := m.lock.Lease(); lease != nil && lease.Err() == nil &&
			time.Since(woke) > 100*time.Millisecond {
			working = append(working, i)
		}
	}
	if len(leaders) > 1 {
		f.violate("two leaders: %v", leaders)
	}
	if len(working) > 1 {
		f.violate("two leases: %v", working)
	}
}

func (f *sessionFleet) run(steps []sessionStep) {
	for i := range f.members {
		f.launch(i)
	}
	stop := sampling(97*time.Millisecond, f.sample)
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

// leader is the index of who leads by the row, stopped or not; else i.
func (f *sessionFleet) leader(i int) int {
	view, err := f.db.Store.Look(context.Background())
	if err != nil || view.Row == nil {
		return i
	}
	for j, m := range f.members {
		if m != nil && m.lock.Owner() == view.Row.Owner {
			return j
		}
	}
	return i
}

func (f *sessionFleet) do(s sessionStep) {
	i, what := s.replica%len(f.members), s.what
	switch what {
	case "end of the leader's":
		i, what = f.leader(i), "end"
	case "standstill":
		i = f.leader(i)
	case "kill the leader":
		i, what = f.leader(i), "kill"
	}
	m := f.members[i]
	if m == nil {
		if what == "start" {
			f.launch(i)
		}
		return
	}
	f.log("%d: %s", i, what)
	switch what {
	case "end":
		f.end(m, s.seen, s.told)
	case "refuse":
		m.conn.refuse(true)
	case "accept":
		m.conn.refuse(false)
	case "cut":
		f.cut(m)
	case "heal":
		m.conn.set(func() { m.conn.silent, m.conn.slow = false, 0 })
		m.db.heal()
	case "slow":
		m.conn.set(func() { m.conn.slow = s.slow })
	case "fault":
		m.db.set(s.fault, s.op)
	case "unread":
		m.conn.set(func() {
			if x := m.conn.session; x != nil && !x.over.Load() {
				x.unread.Store(true)
				f.after(time.Duration(s.told*float64(m.grace)), func() {
					x.unread.Store(x.over.Load())
				})
			}
		})
	case "stop":
		f.stop(m)
	case "standstill": // in which its session ends
		f.stop(m)
		f.end(m, s.seen, s.told)
		f.after(s.still, func() { f.goOn(m) })
	case "go on":
		f.goOn(m)
	case "kill":
		f.mu.Lock()
		f.members[i] = nil
		f.mu.Unlock()
		m.db.set(fault{kind: broken})
		m.conn.set(func() {
			if m.conn.session != nil && !m.conn.silent {
				m.conn.session.over.Store(true)
			}
		})
		m.conn.goOn()
		m.kill()
	}
}

// after does something a time later.
func (f *sessionFleet) after(d time.Duration, do func()) {
	f.news.Go(func() {
		time.Sleep(d)
		do()
	})
}

// end lets the server end the session of m, which hears of it in time: the
// server can tell it.
func (f *sessionFleet) end(m *sessionMember, seen, told float64) {
	m.conn.set(func() {
		x := m.conn.session
		if x == nil || x.over.Load() || m.conn.silent {
			return
		}
		x.over.Store(true)
		limit := float64(m.grace / 4)
		f.after(time.Duration(seen*limit), func() { x.unread.Store(true) })
		f.after(time.Duration(max(seen, told)*limit), func() {
			m.conn.wait()
			x.notice()
		})
	})
}

// cut lets nothing through any more. The server keeps the session for the TTL,
// as it was asked to, and then nobody hears of its end.
func (f *sessionFleet) cut(m *sessionMember) {
	m.conn.set(func() {
		x := m.conn.session
		m.conn.silent = true
		if x == nil {
			return
		}
		f.after(m.timing.TTL, func() {
			m.conn.set(func() {
				if m.conn.silent && m.conn.session == x {
					x.over.Store(true)
				}
			})
		})
	})
}

func (f *sessionFleet) stop(m *sessionMember) {
	synctest.Wait()
	m.conn.stop()
	f.mu.Lock()
	m.stopped = true
	f.mu.Unlock()
}

func (f *sessionFleet) goOn(m *sessionMember) {
	f.mu.Lock()
	m.stopped, m.woke = false, time.Now()
	f.mu.Unlock()
	f.sample() // the first question, before anything else of it runs
	m.conn.goOn()
}

// recover ends all faults: somebody must lead soon, and stay.
func (f *sessionFleet) recover() {
	f.log("all faults end")
	if len(f.running()) == 0 {
		f.launch(0)
	}
	for _, m := range f.running() {
		m.conn.set(func() { m.conn.silent, m.conn.slow, m.conn.refused = false, 0, false })
		m.db.heal()
		f.goOn(m)
	}
	time.Sleep(maxTTL + 30*time.Second)
	leader := func() (term int64) {
		for _, m := range f.running() {
			if m.leads() {
				term = m.lock.Status().Term
			}
		}
		return term
	}
	term := leader()
	if term == 0 {
		f.violate("nobody leads")
		return
	}
	time.Sleep(2 * maxTTL)
	if leader() != term {
		f.violate("the leader changed though nothing was wrong")
	}
}
