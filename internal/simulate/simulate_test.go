package simulate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/schedlock/internal/faults"
	"example.com/schedlock/internal/missing"
)

var (
	seedFlag = flag.Uint64("simulate.seed", 0,
		"the one history that TestHistories simulates; 0: many, each of a new seed")
	forFlag = flag.Duration("simulate.for", 0,
		"how long TestHistories goes on; 0: a second, or ten in a full run")
)

// A verdict is what was wrong in a history, and what happened in it.
type verdict struct {
	plan       plan
	violations []faults.Violation
	trace      []string
	leaders    []string // who led, and from when to when
	starts     []string // of first attempts, in order of time
	tally      tally
}

// A tally counts what has happened.
type tally struct{ elections, losses, runs, retries, skipped, requests, writes int }

func (a tally) plus(b tally) tally {
	return tally{a.elections + b.elections, a.losses + b.losses, a.runs + b.runs,
		a.retries + b.retries, a.skipped + b.skipped, a.requests + b.requests, a.writes + b.writes}
}

// String is what was wrong, a line each.
func (v verdict) String() string {
	var b strings.Builder
	for _, violation := range v.violations {
		fmt.Fprintln(&b, violation)
	}
	return b.String()
}

// simulate lets a plan happen, and judges it.
func simulate(t *testing.T, p plan) verdict {
	w := &world{plan: p}
	left := w.inBubble(t)
	if left != "" {
		w.violate("no goroutine is left", "%s", left)
	}
	return w.judge()
}

// inBubble returns what synctest says of goroutines that are left, "" if there are none.
func (w *world) inBubble(t *testing.T) (left string) {
	defer func() {
		if r := recover(); r != nil {
			left = fmt.Sprint(r)
		}
	}()
	synctest.Test(t, w.live)
	return ""
}

// judge asks all rules.
func (w *world) judge() verdict {
	h := &w.history
	if err := w.read(); err != nil {
		w.violate("the database answers", "%v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.ended
	died := map[string]time.Duration{}
	for _, p := range w.all {
		died[p.name] = p.died
		for _, b := range p.beliefs {
			if b.Last == (faults.Sample{}) {
				at := max(p.died, b.First.After)
				if p.died == 0 {
					at = last
				}
				b.Last = faults.Sample{Before: at, After: at}
			}
			h.Beliefs = append(h.Beliefs, b)
		}
	}
	for i := range h.Runs {
		r := &h.Runs[i]
		if r.LastSign = died[r.Process]; r.LastSign == 0 {
			r.LastSign = last
		}
	}
	h.Logs = map[string][]faults.Record{operator: w.orders}
	h.AtMostOnce = []string{jobOnce}
	for _, f := range w.plan.Faults {
		h.ClockSet = h.ClockSet || f.Kind == clock
		h.Injections = append(h.Injections, faults.Injection{Fault: string(f.Kind), Silent: true,
			From: f.At + origin, To: f.At + f.For + statementLimit + origin, Until: last,
			Muted: f.mutes()})
	}
	vs := append(w.own, faults.Check(h, 0, nil)...)
	v := verdict{plan: w.plan, violations: vs, trace: w.trace}
	v.tally = tally{elections: len(h.Beliefs), losses: w.losses, runs: len(h.Runs),
		writes: len(h.Writes)}
	for _, row := range h.Ledger {
		switch {
		case row.AskedBy != "":
			v.tally.requests++
		case !row.Started:
			v.tally.skipped++
		}
	}
	for _, b := range h.Beliefs {
		v.leaders = append(v.leaders, fmt.Sprint(b.First, b.Last, b.Process))
	}
	for _, r := range h.Runs {
		if r.Attempt > 1 {
			v.tally.retries++
			continue // it waits for a random time
		}
		v.starts = append(v.starts, fmt.Sprintf("%16v %s %d %s", r.Start, r.Job, r.Tick, r.Process))
	}
	slices.Sort(v.starts)
	return v
}

// TestHistories simulates as many histories as it has time for.
func TestHistories(t *testing.T) {
	if *seedFlag != 0 {
		p := planOf(*seedFlag)
		v := simulate(t, p)
		t.Logf("%v\n%s", p, strings.Join(v.trace, "\n"))
		if len(v.violations) > 0 {
			report(t, *seedFlag, p, v)
		}
		return
	}
	lasts := *forFlag
	switch {
	case lasts > 0:
	case missing.Full():
		lasts = 10 * time.Second
	default:
		lasts = time.Second
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // the heap is small
	begin, first := time.Now(), rand.Uint64()>>1
	var (
		histories atomic.Uint64
		broken    atomic.Pointer[verdict] // the first
		mu        sync.Mutex
		all       tally
	)
	t.Run("all", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for time.Since(begin) < lasts && broken.Load() == nil {
					v := simulate(t, planOf(first+histories.Add(1)))
					if len(v.violations) > 0 {
						broken.CompareAndSwap(nil, &v)
					}
					mu.Lock()
					all = all.plus(v.tally)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d histories, %.0f a minute: %+v", histories.Load(),
		float64(histories.Load())/time.Since(begin).Minutes(), all)
	if v := broken.Load(); v != nil {
		report(t, v.plan.seed, v.plan, *v)
	}
}

// report fails the test with the history, and with the smallest plan that is found to do the same.
func report(t *testing.T, seed uint64, p plan, v verdict) {
	t.Helper()
	small, smallest, runs := shrink(t, p, v)
	t.Fatalf("-simulate.seed=%d:\n%v\nIts plan has %d faults. It was shrunk to %d, in %d runs:\n%v\n%v\n%s",
		seed, v, len(p.Faults), len(small.Faults), runs, small, smallest,
		strings.Join(smallest.trace, "\n"))
}
