package main_test

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A limit is what the same driver needs for the same effect, with the same durability, on the same
// file system. It knows everything beforehand and judges nothing, and has none of our code.
type limit interface {
	acquire() error
	release() error
	heartbeat() error
	info() error // a SELECT of the columns that LockInfo shows, of one row by its key
}

// sides are the store and its limit, by the name of the database. Both have the lock. Unless it is
// flushed, the limit on SQLite does not wait for the disk, as the store does not.
var sides = map[string]func(b *testing.B, flushed bool) (*side, limit){
	"sqlite": newSQLite, "postgres": newPostgres, "mysql": newMySQL, "mysql-binlog": newMySQLBinlog}

func eachSide(b *testing.B, flushed bool, f func(b *testing.B, s *side, l limit)) {
	for _, name := range slices.Sorted(maps.Keys(sides)) {
		b.Run(name, func(b *testing.B) {
			s, l := sides[name](b, flushed)
			f(b, s, l)
		})
	}
}

// An acquisition of a lock that was released.
func BenchmarkAcquire(b *testing.B) {
	eachSide(b, true, func(b *testing.B, s *side, l limit) {
		compareAfter(b, func() error { return errors.Join(s.release(), l.release(), s.look()) },
			s.acquire, l.acquire)
	})
}

func BenchmarkRelease(b *testing.B) {
	eachSide(b, true, func(b *testing.B, s *side, l limit) {
		require.NoError(b, errors.Join(s.release(), l.release()))
		compareAfter(b, func() error { return errors.Join(s.look(), s.acquire(), l.acquire()) },
			s.release, l.release)
	})
}

func BenchmarkHeartbeat(b *testing.B) {
	eachSide(b, false, func(b *testing.B, s *side, l limit) {
		compare(b, s.heartbeat, l.heartbeat)
	})
}

func BenchmarkGetLockInfo(b *testing.B) {
	eachSide(b, true, func(b *testing.B, s *side, l limit) { compare(b, s.info, l.info) })
}

// scanInfo reads the columns of a limit's info, of which two are times of type T.
func scanInfo[T any](row interface{ Scan(into ...any) error }) error {
	var (
		pid, term, beat, ttl, renew, interval int64
		hostname, token, state                string
		created, heartbeat                    T
	)
	return row.Scan(&pid, &hostname, &created, &heartbeat, &token, &term, &beat, &state, &ttl,
		&renew, &interval)
}

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
