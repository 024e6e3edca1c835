package simulate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/schedlock/internal/missing"
)

var (
	seedFlag = flag.Uint64("simulate.seed", 0,
		"the one history that TestHistories simulates; 0: many, each of a new seed")
	forFlag = flag.Duration("simulate.for", 0,
		"how long TestHistories goes on; 0: a second, or ten in a full run, or less with -short")
)

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

// TestHistories simulates as many histories as it has time for.
func TestHistories(t *testing.T) {
	if *seedFlag != 0 {
		p := planOf(*seedFlag)
		for i := range 10 { // not every run of a plan is the same
			v := simulate(t, p)
			if i == 0 || len(v.violations) > 0 {
				t.Logf("%v\n%s", p, strings.Join(v.trace, "\n"))
			}
			if len(v.violations) > 0 {
				report(t, *seedFlag, p, v)
			}
		}
		return
	}
	lasts := *forFlag
	switch {
	case lasts > 0:
	case missing.Full():
		lasts = 10 * time.Second
	case testing.Short():
		lasts = 300 * time.Millisecond
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
	t.Fatalf("-simulate.seed=%d:\n%v\n"+
		"Its plan has %d faults. It was shrunk to %d, in %d runs:\n%v\n%v\n%s", seed, v,
		len(p.Faults), len(small.Faults), runs, small, smallest, strings.Join(smallest.trace, "\n"))
}
