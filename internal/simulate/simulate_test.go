package simulate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
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
	violations []faults.Violation
	trace      []string
	world      *world
}

// rules are the rules that were broken, each once.
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
			if *seedFlag != 0 {
				b := make([]byte, 1<<20)
				os.Stdout.Write(b[:runtime.Stack(b, true)])
			}
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
	return verdict{violations: vs, trace: w.trace, world: w}
}

// TestHistories simulates as many histories as it has time for.
func TestHistories(t *testing.T) {
	if *seedFlag != 0 {
		v := simulate(t, planOf(*seedFlag))
		t.Logf("%v\n%s", planOf(*seedFlag), strings.Join(v.trace, "\n"))
		if len(v.violations) > 0 {
			t.Fatalf("seed %d:\n%v", *seedFlag, v)
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
	begin := time.Now()
	var histories atomic.Int64
	first := rand.Uint64() >> 1
	t.Run("all", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for time.Since(begin) < lasts && !t.Failed() {
					seed := first + uint64(histories.Add(1))
					v := simulate(t, planOf(seed))
					if len(v.violations) > 0 {
						t.Fatalf("seed %d:\n%v\n%v\n%s", seed, v, planOf(seed), strings.Join(v.trace, "\n"))
					}
				}
			})
		}
	})
	took := time.Since(begin)
	t.Logf("%d histories, %.0f a minute", histories.Load(), float64(histories.Load())/took.Minutes())
}
