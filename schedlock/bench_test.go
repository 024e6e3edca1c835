package schedlock_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

func benchmarkLeader(b *testing.B) *schedlock.Lock {
	lock, err := schedlock.New(memory.New(), schedlock.WithLogger(slog.New(slog.DiscardHandler)), schedlock.WithTTL(24*time.Hour))
	require.NoError(b, err)
	lease, err := lock.Acquire(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { _ = lease.Release(ctx) })
	b.ReportAllocs()
	return lock
}

// The leader check stands in front of every job. Its limit is time.Now.
func BenchmarkIsLeader(b *testing.B) {
	lock := benchmarkLeader(b)
	for b.Loop() {
		if err := lock.IsLeader(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIsLeaderParallel(b *testing.B) {
	lock := benchmarkLeader(b)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := lock.IsLeader(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkTimeNow(b *testing.B) {
	var sink time.Time
	for b.Loop() {
		sink = time.Now()
	}
	_ = sink
}
