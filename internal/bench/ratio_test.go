package bench

import (
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The benchmarks of single operations, by database. The file of each database
// adds its own, in an init function: acquireOn["sqlite"] = sqliteAcquire.
var acquireOn, heartbeatOn, releaseOn, lockInfoOn = databases{}, databases{}, databases{},
	databases{}

type databases map[string]func(*testing.B)

func (d databases) run(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(d)) {
		b.Run(name, d[name])
	}
}

func BenchmarkAcquire(b *testing.B)     { acquireOn.run(b) }
func BenchmarkHeartbeat(b *testing.B)   { heartbeatOn.run(b) }
func BenchmarkRelease(b *testing.B)     { releaseOn.run(b) }
func BenchmarkGetLockInfo(b *testing.B) { lockInfoOn.run(b) }

// compare measures one operation against its physical limit: what the machine,
// the driver and the durability cost whatever the code does. The two take turns,
// and change places with every iteration, so that a noise that comes and goes
// hits both. It reports the medians, in nanoseconds, as op-ns and limit-ns, their
// ratio as x-limit, and what one call of op allocates as allocs-op.
func compare(b *testing.B, op, limit func() error) {
	compareAfter(b, func() error { return nil }, op, limit)
}

// compareAfter is compare for what needs another state for every iteration: prepare
// runs, unmeasured, before both.
func compareAfter(b *testing.B, prepare, op, limit func() error) {
	b.Helper()
	for range 3 { // statements are prepared, pages are read
		require.NoError(b, prepare())
		require.NoError(b, op())
		require.NoError(b, limit())
	}
	var (
		ops, limits []float64
		allocs      []float64
		before      runtime.MemStats
		after       runtime.MemStats
	)
	measure := func(f func() error) float64 {
		begin := time.Now()
		err := f()
		took := time.Since(begin)
		if err != nil {
			b.Fatal(err)
		}
		return float64(took)
	}
	for b.Loop() {
		if err := prepare(); err != nil {
			b.Fatal(err)
		}
		if len(ops)%2 == 0 {
			ops = append(ops, measure(op))
			limits = append(limits, measure(limit))
		} else {
			limits = append(limits, measure(limit))
			ops = append(ops, measure(op))
		}
	}
	for range 10 {
		require.NoError(b, prepare())
		runtime.ReadMemStats(&before)
		err := op()
		runtime.ReadMemStats(&after)
		require.NoError(b, err)
		require.NoError(b, limit())
		allocs = append(allocs, float64(after.Mallocs-before.Mallocs))
	}
	b.ReportMetric(median(ops), "op-ns")
	b.ReportMetric(median(limits), "limit-ns")
	b.ReportMetric(median(ops)/median(limits), "x-limit")
	b.ReportMetric(median(allocs), "allocs-op")
	b.ReportMetric(0, "ns/op") // op, limit and what prepares them in one figure: says nothing
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
