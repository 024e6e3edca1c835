package main_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

var quiet = slog.New(slog.DiscardHandler)

func lead(b *testing.B, store driver.Store) *schedlock.Lease {
	lock, err := schedlock.New(store, schedlock.WithLogger(quiet), schedlock.WithTTL(driver.MaxTTL))
	require.NoError(b, err)
	lease, err := lock.Acquire(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lease.Release(context.Background())) })
	return lease
}

// line starts and ends the runs of one job, one after the other.
type line struct {
	b     *testing.B
	store ledger.Store
	ref   driver.Ref
	job   string
	at    time.Time
}

func (l *line) run() {
	next := l.at.Add(time.Second)
	if l.at.IsZero() {
		next = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	run, started, err := l.store.Decide(l.b.Context(), l.ref,
		ledger.Decision{Job: l.job, Spec: "every 1s offset 0s", From: l.at, To: next, Start: next})
	if err != nil || !started {
		l.b.Fatal(started, err)
	}
	l.at = next
	written, err := l.store.Finish(l.b.Context(), run, ledger.End{Status: ledger.Done,
		Took: time.Millisecond})
	if err != nil || !written {
		l.b.Fatal(written, err)
	}
}

// One job: the start and the end of a run, as fast as they come.
func BenchmarkRun(b *testing.B) {
	onEach(b, func(b *testing.B, store driver.Store) {
		lease := lead(b, store)
		l := &line{b: b, store: store.(ledger.Store), ref: lease.Ref(), job: "j"}
		l.run()
		b.ReportAllocs()
		for b.Loop() {
			l.run()
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	})
}

// 32 jobs at the same time.
func BenchmarkRunParallel(b *testing.B) {
	onEach(b, func(b *testing.B, store driver.Store) {
		lease := lead(b, store)
		var n sync.Mutex
		names := 0
		b.SetParallelism(16)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			n.Lock()
			names++
			l := &line{b: b, store: store.(ledger.Store), ref: lease.Ref(), job: fmt.Sprint(names)}
			n.Unlock()
			for pb.Next() {
				l.run()
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	})
}

// timed measures how much of a run's life, from when it is due until its end is
// recorded, is spent in the ledger.
type timed struct {
	ledger.Store
	mu      sync.Mutex
	decided map[int64]time.Duration
	spent   time.Duration
	total   time.Duration
}

func (t *timed) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (ledger.Run, bool, error) {
	begin := time.Now()
	run, started, err := t.Store.Decide(ctx, ref, d)
	if started {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.decided[run.ID] = time.Since(begin)
	}
	return run, started, err
}

func (t *timed) Finish(ctx context.Context, r ledger.Run, e ledger.End) (bool, error) {
	begin := time.Now()
	written, err := t.Store.Finish(ctx, r, e)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spent += t.decided[r.ID] + time.Since(begin)
	t.total += time.Since(r.ScheduledAt)
	delete(t.decided, r.ID)
	return written, err
}

// A thousand jobs, each due every second, for 20 s, on one leader.
func BenchmarkThousandJobs(b *testing.B) {
	for name, offset := range map[string]bool{"spread": false, "all at the full second": true} {
		b.Run(name, func(b *testing.B) {
			onEach(b, func(b *testing.B, store driver.Store) {
				lock, err := schedlock.New(store, schedlock.WithLogger(quiet))
				require.NoError(b, err)
				runs := &timed{Store: store.(ledger.Store), decided: map[int64]time.Duration{}}
				var jobs []tasks.Job
				for i := range 1000 {
					spec := tasks.Every(time.Second)
					if offset {
						spec = spec.Offset(0)
					}
					jobs = append(jobs, tasks.Job{Name: fmt.Sprintf("job %03d", i), Spec: spec,
						Do: func(context.Context, tasks.Run) error { return nil }})
				}
				runner, err := tasks.NewRunner(lock, runs, jobs, tasks.WithLogger(quiet))
				require.NoError(b, err)
				const length = 20 * time.Second
				runner.Start()
				runner.Campaign()
				time.Sleep(length)
				require.NoError(b, runner.Stop(b.Context()))
				require.NoError(b, lock.Stop(b.Context()))
				rows, err := runs.Runs(b.Context(), "", 1_000_000)
				require.NoError(b, err)
				var late []time.Duration
				skipped := int64(0)
				for _, r := range rows {
					if r.Status == ledger.Skipped {
						skipped += max(r.Count, 1)
					} else {
						late = append(late, r.StartedAt.Sub(r.ScheduledAt))
					}
				}
				slices.Sort(late)
				b.ReportMetric(float64(len(late))/length.Seconds(), "runs/s")
				b.ReportMetric(float64(skipped)/float64(len(late)+int(skipped))*100, "%skipped")
				b.ReportMetric(float64(late[len(late)/2].Milliseconds()), "p50-late-ms")
				b.ReportMetric(float64(late[len(late)*99/100].Milliseconds()), "p99-late-ms")
				b.ReportMetric(float64(runs.spent)/float64(runs.total)*100, "%in-ledger")
			})
		})
	}
}
