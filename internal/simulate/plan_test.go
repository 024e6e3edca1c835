package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// A plan is all that a seed decides.
type plan struct {
	seed    uint64 // 0: it is not that of a seed any more
	Members []member
	Faults  []fault
}

// A member is a replica, in all its incarnations.
type member struct {
	Timing  int           // of timings
	Strict  bool          // refuses to start while another leads, and is started again
	Start   time.Duration // when it is started first
	Latency time.Duration // of each way to the database
	Rate    int           // of its clock, in ‰ beyond that of others; no two differ by over 10 %
	Hears   bool          // is notified of releases
	Grace   time.Duration // after the end of its session; 0: the TTL decides
}

// A fault is what happens from At on, for a while. The zero Replica is the first.
type fault struct {
	At, For time.Duration
	Kind    kind
	Replica int           // or everybody, or leader
	Ops     string        // of the network: what it concerns, see concerns; of the row: what
	Delay   time.Duration // of slow ones; the step of a clock
}

const (
	everybody = -1
	leader    = -2 // whoever leads when the fault begins
	nobody    = -3
)

type kind string

// What happens to statements on their way.
const (
	refuse      kind = "refuse"       // an error at once; they never arrive
	loseRequest kind = "lose request" // they never arrive, and nobody says so
	loseAnswer  kind = "lose answer"  // they are done, and nobody says so
	failAfter   kind = "fail after"   // they are done, and the answer is an error
	slowRequest kind = "slow request" // they arrive late, whether somebody waits or not
	slowAnswer  kind = "slow answer"  // they are done, and answered late

	// Without regard to the caller's context:
	hang       kind = "hang"        // they never arrive, and the answer is a late error
	lateAnswer kind = "late answer" // they are done, and answered late
)

// What happens to replicas.
const (
	stall kind = "stall" // stands still: what it has begun to send, or to write, goes on after
	crash kind = "crash" // nothing of it goes on; it is started again after For
	leave kind = "leave" // is stopped, and started again after For, or when it has stopped
	deaf  kind = "deaf"  // its jobs ignore their contexts

	// Its machine sleeps: as stall, and its monotonic clock does not count that.
	suspend kind = "suspend"
	wall    kind = "wall" // its wall clock is set, by Delay, and set back after For
)

// What happens to the database, by itself or by an operator.
const (
	clock     kind = "clock"  // is set, by Delay
	revoke    kind = "revoke" // whoever leads is told to leave
	trigger   kind = "trigger"
	pause     kind = "pause" // of all jobs
	deleteRow kind = "delete row"
	editRow   kind = "edit row" // Ops says what of it

	// The database ends the session of a replica, which is told late, by Delay; or it sends
	// something that is not read for a while.
	endSession kind = "end session"
	unread     kind = "unread"

	// A backup of when it begins is restored when it ends.
	backup kind = "backup"

	// Who hears of releases hears of one that never was. Ops: the row is deleted, too.
	falseNews kind = "false news"
)

// timings are what the replicas of one fleet may be set to: mixed settings must be safe.
var timings = []driver.Timing{
	{TTL: 8 * time.Second, RenewDeadline: 6 * time.Second, HeartbeatInterval: 2 * time.Second},
	{TTL: 6 * time.Second, RenewDeadline: 5100 * time.Millisecond,
		HeartbeatInterval: 1700 * time.Millisecond},
	{TTL: 15 * time.Second, RenewDeadline: 12 * time.Second,
		HeartbeatInterval: 2500 * time.Millisecond},
	{TTL: 12 * time.Second, RenewDeadline: 10200 * time.Millisecond,
		HeartbeatInterval: 3 * time.Second},
}

const (
	maxTTL   = 15 * time.Second
	maxDelay = 15 * time.Second // of a statement on its way
	spread   = 45 * time.Second // the faults begin in it …
	healedAt = 65 * time.Second // … and all have ended by then
)

// concerns are the groups of statements that a fault of the network may concern; "" is all.
var concerns = map[string][]string{
	"lock":       {"look", "acquire", "heartbeat", "release", "news"},
	"heartbeats": {"heartbeat"},
	"elections":  {"acquire", "release", "news"},
	"looks":      {"look"},
	"starts":     {"decide", "retry", "answer"},
	"ends":       {"finish"},
	"ledger": {"decide", "retry", "answer", "finish", "abandon", "give up", "jobs", "retries",
		"pending", "run", "runs", "prune"},
	"writes": {"acquire", "heartbeat", "release", "decide", "retry", "answer", "finish", "abandon",
		"give up", "prune", "present", "absent", "trigger", "pause", "resume"}, // a full disk
}

// concern is in an order that a seed can draw from.
var concern = []string{"", "", "lock", "heartbeats", "elections", "looks", "starts", "ends",
	"ledger", "writes"}

var often = []kind{refuse, loseRequest, loseRequest, loseAnswer, loseAnswer, failAfter, slowRequest,
	slowRequest, slowAnswer, slowAnswer, stall, stall, suspend, wall, crash, crash, leave, deaf,
	clock, revoke, trigger, trigger, pause, deleteRow, editRow, falseNews, endSession, endSession,
	endSession, unread, backup, backup, hang, lateAnswer}

// concernsOp reports whether a fault of the network meets a statement.
func (f fault) concernsOp(op string) bool {
	return f.Ops == "" || slices.Contains(concerns[f.Ops], op)
}

func (f fault) active(at time.Duration) bool { return f.At <= at && at < f.At+f.For }

// stops reports whether a replica stands still.
func (f fault) stops() bool { return f.Kind == stall || f.Kind == suspend }

// mutes reports whether something may have been done whose answer never came, or came late.
func (f fault) mutes() bool {
	return slices.Contains([]kind{loseAnswer, failAfter, slowRequest, slowAnswer, lateAnswer,
		stall, suspend}, f.Kind)
}

// planOf is the plan of a seed.
func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	ms := func(below time.Duration) time.Duration {
		return time.Duration(r.Int64N(below.Milliseconds())) * time.Millisecond
	}
	p := plan{seed: seed}
	for range 2 + r.IntN(3) {
		m := member{Timing: r.IntN(len(timings)), Strict: r.IntN(8) == 0}
		if r.IntN(2) == 0 {
			m.Start = ms(10 * time.Second)
		}
		if r.IntN(4) > 0 {
			m.Latency = ms(20 * time.Millisecond)
		}
		m.Rate = []int{-45, 0, 0, 0, 50}[r.IntN(5)]
		m.Hears = r.IntN(2) == 0
		m.Grace = []time.Duration{0, time.Second, 3 * time.Second, 5 * time.Second}[r.IntN(4)]
		p.Members = append(p.Members, m)
	}
	for range 2 + r.IntN(9) {
		f := drawFault(r, ms, len(p.Members))
		if i := len(p.Faults) - 1; i >= 0 && r.IntN(2) == 0 { // the next of a chain
			if end := p.Faults[i].At + p.Faults[i].For; end < spread {
				if f.At = end; p.Faults[i].Replica != everybody {
					f.Replica = p.Faults[i].Replica
				}
			}
		}
		f.For = min(f.For, healedAt-f.At)
		p.Faults = append(p.Faults, f)
	}
	slices.SortStableFunc(p.Faults, func(a, b fault) int { return int(a.At - b.At) })
	return p
}

func drawFault(r *rand.Rand, ms func(time.Duration) time.Duration, members int) fault {
	f := fault{Kind: often[r.IntN(len(often))], At: ms(spread), Replica: r.IntN(members)}
	if r.IntN(2) == 0 {
		f.Replica = leader
	}
	switch r.IntN(3) {
	case 0:
		f.For = ms(5 * time.Second)
	default:
		f.For = ms(30 * time.Second)
	}
	switch f.Kind {
	case refuse, loseRequest, loseAnswer, failAfter, slowRequest, slowAnswer, hang, lateAnswer:
		f.Ops = concern[r.IntN(len(concern))]
		if r.IntN(4) == 0 {
			f.Replica = everybody
		}
		switch {
		case !slices.Contains([]kind{slowRequest, slowAnswer, hang, lateAnswer}, f.Kind):
		case r.IntN(2) == 0:
			f.Delay = ms(3 * time.Second) // somebody may still wait
		default:
			f.Delay = ms(maxDelay)
		}
	case editRow:
		f.Ops = []string{"token", "term", "beat", "ttl", "state"}[r.IntN(5)]
	case falseNews:
		f.Ops = []string{"", "row"}[r.IntN(2)]
	case endSession:
		f.Delay = ms(1250 * time.Millisecond)
	case clock, wall:
		f.Delay = []time.Duration{-time.Hour, -3 * time.Second, 3 * time.Second, time.Minute,
			time.Hour}[r.IntN(5)]
	}
	return f
}

// setsBack reports whether the database's clock goes back. The jobs wait then, until it has
// passed their cursors, or another term begins.
func (p plan) setsBack() bool {
	return slices.ContainsFunc(p.Faults, func(f fault) bool {
		return f.Kind == clock && f.Delay < 0
	})
}

// String is the plan as Go, for the table of found_test.go.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, "plan{\n\tMembers: []member{")
	for _, m := range p.Members {
		fmt.Fprintf(&b, "\t\t{Timing: %d, Strict: %v, Start: %d, Latency: %d, Rate: %d, "+
			"Hears: %v, Grace: %d},\n", m.Timing, m.Strict, m.Start, m.Latency, m.Rate,
			m.Hears, m.Grace)
	}
	fmt.Fprintln(&b, "\t},\n\tFaults: []fault{")
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "\t\t{At: %d, For: %d, Kind: %q, Replica: %d, Ops: %q, Delay: %d},\n", f.At,
			f.For, f.Kind, f.Replica, f.Ops, f.Delay)
	}
	fmt.Fprint(&b, "\t},\n}")
	return b.String()
}
