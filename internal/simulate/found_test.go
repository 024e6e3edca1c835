package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/missing"
)

// found are plans that broke a rule, of the code or of a deliberate break of it. Seeds have found
// the late heartbeat, the edited term, the late end and the old request; the others were made by
// hand.
var found = []struct {
	name string
	plan plan
}{
	{"a decision of an earlier leader arrives late", plan{
		Members: []member{{Timing: 1}, {Timing: 1}},
		Faults: []fault{
			{At: 20 * time.Second, For: 15 * time.Second, Kind: slowRequest, Replica: everybody,
				Ops: "starts", Delay: 13 * time.Second},
			{At: 20 * time.Second, For: 15 * time.Second, Kind: loseRequest, Replica: leader,
				Ops: "heartbeats"},
		},
	}},
	{"a heartbeat is answered late, and is the last", plan{
		Members: []member{{Timing: 1, Start: 4240 * time.Millisecond, Latency: 17 * time.Millisecond,
			Rate: -45}, {Timing: 3, Start: 4519 * time.Millisecond, Latency: 7 * time.Millisecond}},
		Faults: []fault{
			{At: 6579000000, For: 12450000000, Kind: loseRequest, Replica: leader, Ops: "heartbeats"},
			{At: 22605000000, For: 4307000000, Kind: slowAnswer, Replica: leader, Delay: 1382000000},
			{At: 26912000000, For: 3277000000, Kind: loseRequest, Replica: leader, Ops: "lock"},
		},
	}},
	{"the clocks of a leader that is cut off and of a standby run apart", plan{
		Members: []member{{Timing: 1, Rate: -45}, {Timing: 1, Rate: 50, Start: 50 * time.Millisecond}},
		Faults: []fault{{At: 17020 * time.Millisecond, For: 10 * time.Second, Kind: loseRequest,
			Replica: leader, Ops: "lock"}},
	}},
	{"the term of an acquisition is edited before it is answered", plan{
		Members: []member{{Timing: 3}},
		Faults: []fault{
			{At: 23647000000, For: 1313000000, Kind: crash, Replica: leader},
			{At: 35174000000, For: 5244000000, Kind: slowAnswer, Replica: everybody, Ops: "writes",
				Delay: 4025000000},
			{At: 37400000000, For: 6491000000, Kind: editRow, Ops: "term"},
		},
	}},
	{"the end of a run that has failed is answered late", plan{
		Members: []member{{Hears: true}},
		Faults: []fault{{At: 32255000000, For: 10332000000, Kind: slowAnswer, Replica: leader,
			Ops: "ends", Delay: 7796000000}},
	}},
	{"a request is older than the clock, which was set back", plan{
		Members: []member{{Timing: 1}, {Timing: 0}},
		Faults: []fault{
			{At: 20949000000, For: 4892000000, Kind: trigger, Replica: 0},
			{At: 21043000000, For: 36000000, Kind: trigger, Replica: leader},
			{At: 29770000000, For: 22748000000, Kind: clock, Delay: -time.Hour},
			{At: 31573000000, For: 21415000000, Kind: trigger, Replica: 0},
			{At: 34606000000, For: 9151000000, Kind: crash, Replica: 0},
			{At: 38955000000, For: 25069000000, Kind: pause, Replica: 1},
		},
	}},
	{"a decision arrives after the pause that has refused its repetition", plan{
		Members: []member{{Timing: 2, Start: 3389 * time.Millisecond},
			{Timing: 3, Start: 6366 * time.Millisecond}},
		Faults: []fault{
			{At: 12932000000, For: 19504000000, Kind: refuse, Replica: leader},
			{At: 31349000000, For: 11153000000, Kind: slowRequest, Replica: leader, Ops: "starts",
				Delay: 13712000000},
			{At: 32436000000, For: 22912000000, Kind: deleteRow, Replica: leader},
			{At: 43970000000, For: 3602000000, Kind: pause, Replica: leader},
		},
	}},
	{"an answer to a request arrives after the pause that has refused its repetition", plan{
		Members: []member{{Timing: 0}},
		Faults: []fault{
			{At: 19900 * time.Millisecond, For: 5 * time.Second, Kind: slowRequest, Replica: leader,
				Ops: "starts", Delay: 13 * time.Second},
			{At: 20 * time.Second, For: 1, Kind: trigger, Replica: leader},
			{At: 25100 * time.Millisecond, For: 7900 * time.Millisecond, Kind: pause, Replica: leader},
		},
	}},
	{"a leader learns after a pause of an attempt that began before it, and repeats that", plan{
		Members: []member{{Timing: 3}},
		Faults: []fault{
			{At: 30871 * time.Millisecond, For: 1346 * time.Millisecond, Kind: failAfter,
				Replica: leader, Ops: "ledger"},
			{At: 32217 * time.Millisecond, For: 17305 * time.Millisecond, Kind: loseRequest,
				Replica: leader, Ops: "starts"},
			{At: 38370 * time.Millisecond, For: 19743 * time.Millisecond, Kind: pause,
				Replica: leader},
		},
	}},
	{"an acquisition is answered late, and is all", plan{
		Members: []member{{Timing: 1}, {Timing: 1, Start: 100 * time.Millisecond}},
		Faults: []fault{
			{At: 0, For: 1, Kind: slowAnswer, Replica: everybody, Ops: "elections",
				Delay: 1600 * time.Millisecond},
			{At: 500 * time.Millisecond, For: 20 * time.Second, Kind: loseRequest, Replica: 0, Ops: "lock"},
		},
	}},
	{"the database forgets the first term", plan{
		Members: []member{{Timing: 2, Start: time.Second}, {Timing: 2, Start: 3 * time.Second / 2}},
		Faults:  []fault{{At: 0, For: 18600 * time.Millisecond, Kind: backup}},
	}},
	{"a leader is told late that its session has ended", plan{
		Members: []member{{Timing: 2, Grace: 5 * time.Second}, {Timing: 2, Grace: 5 * time.Second}},
		Faults: []fault{{At: 20 * time.Second, For: time.Second, Kind: endSession, Replica: leader,
			Delay: 1250 * time.Millisecond}},
	}},
	{"a session ends while its leader stands still", plan{
		Members: []member{{Timing: 2, Grace: 5 * time.Second}, {Timing: 2, Grace: 5 * time.Second}},
		Faults: []fault{
			{At: 20300 * time.Millisecond, For: 10 * time.Second, Kind: stall, Replica: leader},
			{At: 20400 * time.Millisecond, For: time.Second, Kind: endSession, Replica: leader},
		},
	}},
}

// TestFound lets what was found happen again. Not every run of a plan is the same, so there are
// some.
func TestFound(t *testing.T) {
	runs := 3
	if missing.Full() {
		runs = 50
	}
	for _, f := range found {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for range runs {
				if v := simulate(t, f.plan); len(v.violations) > 0 {
					t.Fatal(v)
				}
			}
		})
	}
}

// A seed gives one plan. How much of the history it gives, too, the test only tells: tokens and
// pauses are random, and so is what goroutines of one moment do first.
func TestASeedGivesThePlanAndMostOfTheHistory(t *testing.T) {
	seeds, leaders, starts := 3, 0, 0
	if missing.Full() {
		seeds = 100
	}
	first := rand.Uint64() >> 1
	for seed := first; seed < first+uint64(seeds); seed++ {
		p := planOf(seed)
		assert.Equal(t, p, planOf(seed))
		assert.NotEqual(t, p, planOf(seed+1))
		a, b := simulate(t, p), simulate(t, p)
		if slices.Equal(a.leaders, b.leaders) {
			leaders++
		}
		if slices.Equal(a.starts, b.starts) {
			starts++
		}
	}
	t.Logf("of %d histories that were run again, %d had the same leaders at the same moments, "+
		"and %d the same starts of runs", seeds, leaders, starts)
}
