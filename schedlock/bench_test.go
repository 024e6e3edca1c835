package schedlock_test

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

func benchmarkLeader(b *testing.B) *schedlock.Lock {
	lock, err := schedlock.New(memory.New(), schedlock.WithLogger(slog.New(slog.DiscardHandler)),
		schedlock.WithTTL(24*time.Hour))
	require.NoError(b, err)
	lease, err := lock.Acquire(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { _ = lease.Release(ctx) })
	b.ReportAllocs()
	return lock
}

// The leader check stands in front of every job. Its limit is time.Now, of which
// it needs one: x-limit is how many of them it costs, both measured in turns.
func BenchmarkIsLeader(b *testing.B) {
	lock := benchmarkLeader(b)
	for b.Loop() {
		if err := lock.IsLeader(ctx); err != nil {
			b.Fatal(err)
		}
	}
	reportChecks(b, lock, 1)
}

// 16 goroutines ask at once. ns/op is that of all cores together; op-ns is what
// one call takes its caller.
func BenchmarkIsLeader16Goroutines(b *testing.B) {
	lock := benchmarkLeader(b)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range b.N/16 + 1 {
				if lock.IsLeader(ctx) != nil {
					b.Error("does not lead")
					return
				}
			}
		})
	}
	wg.Wait()
	reportChecks(b, lock, 16)
}

// reportChecks compares the check to its limit, in batches that take turns.
func reportChecks(b *testing.B, lock *schedlock.Lock, goroutines int) {
	const batches, batch = 300, 1000
	b.StopTimer()
	var (
		mu          sync.Mutex
		wg          sync.WaitGroup
		ops, limits []time.Duration
	)
	for range goroutines {
		wg.Go(func() {
			var ownOps, ownLimits []time.Duration
			var last time.Time
			for range batches {
				begin := time.Now()
				for range batch {
					if lock.IsLeader(ctx) != nil {
						b.Error("does not lead")
						return
					}
				}
				ownOps = append(ownOps, time.Since(begin))
				begin = time.Now()
				for range batch {
					last = time.Now()
				}
				ownLimits = append(ownLimits, last.Sub(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			ops, limits = append(ops, ownOps...), append(limits, ownLimits...)
		})
	}
	wg.Wait()
	median := func(of []time.Duration) float64 {
		if len(of) == 0 {
			return 0
		}
		slices.Sort(of)
		return float64(of[len(of)/2]) / batch
	}
	b.ReportMetric(median(ops), "op-ns")
	b.ReportMetric(median(limits), "limit-ns")
	b.ReportMetric(median(ops)/median(limits), "x-limit")
}
