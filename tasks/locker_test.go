package tasks

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

var _ gocron.Lock = (*named.Lock)(nil)

func newLocker(t *testing.T, w *world, pid int, atLeast, atMost time.Duration) gocron.Locker {
	t.Helper()
	locks, err := named.New(w.db.Named(), named.WithLogger(slog.New(slog.DiscardHandler)),
		named.WithOwner(driver.Owner{PID: pid, Hostname: "test"}))
	require.NoError(t, err)
	l, err := NewLocker(locks, atLeast, atMost)
	require.NoError(t, err)
	return l
}

type lockerFunc func(context.Context, string) (gocron.Lock, error)

func (f lockerFunc) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	return f(ctx, job)
}

// Two replicas, of which one has a clock that is three seconds behind, run the
// same job each minute.
func TestALockerLetsEachRunHappenOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ran, skipped atomic.Int32
		for pid, behind := range []time.Duration{0, 3 * time.Second} {
			locker := newLocker(t, w, pid+1, 30*time.Second, 10*time.Minute)
			counted := func(ctx context.Context, job string) (gocron.Lock, error) {
				lock, err := locker.Lock(ctx, job)
				if err != nil {
					assert.ErrorIs(t, err, schedlock.ErrHeld)
					skipped.Add(1)
				}
				return lock, err
			}
			s, err := gocron.NewScheduler(gocron.WithDistributedLocker(lockerFunc(counted)))
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Shutdown()) }()
			_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() {
				ran.Add(1)
			}), gocron.WithName("report"),
				gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Add(time.Minute+behind))))
			require.NoError(t, err)
			s.Start()
		}
		time.Sleep(10*time.Minute + 30*time.Second)
		require.EqualValues(t, 10, ran.Load())
		require.EqualValues(t, 10, skipped.Load())
	})
}

// gocron's Shutdown ends the context that it gives to Unlock.
func TestALockerReleasesWhenItsSchedulerShutsDown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		started := make(chan struct{})
		s,
			err := gocron.NewScheduler(gocron.WithDistributedLocker(newLocker(t, w, 1, 0,
			time.Hour)))
		require.NoError(t, err)
		_, err = s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func(ctx context.Context) {
			close(started)
			<-ctx.Done()
		}), gocron.WithName("report"), gocron.WithStartAt(gocron.WithStartImmediately()))
		require.NoError(t, err)
		s.Start()
		<-started
		key := named.Key{Kind: named.KindTask, Name: "report"}
		row, err := w.db.Named().Look(ctx, key)
		require.NoError(t, err)
		require.NotNil(t, row)
		require.NoError(t, s.Shutdown())
		row, err = w.db.Named().Look(ctx, key)
		require.NoError(t, err)
		require.Nil(t, row, "it is held for an hour")
	})
}

func TestALockerRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, err := NewLocker(nil, time.Minute, time.Second)
		require.ErrorContains(t, err, "locker: locks are nil")
		require.ErrorContains(t, err, "at least 1m0s is above")
		l := newLocker(t, w, 1, 0, time.Minute)
		lock, err := l.Lock(ctx, strings.Repeat("x", 201))
		require.ErrorContains(t, err, "200 are allowed")
		require.Nil(t, lock)
		ended, cancel := context.WithCancel(ctx)
		first, err := l.Lock(ended, "x")
		require.NoError(t, err)
		cancel()
		second, err := l.Lock(ctx, "x")
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.True(t, second == nil, "a typed nil")
		require.NoError(t, first.Unlock(ended))
	})
}

// An app that has a gocron scheduler keeps it and passes the lock to it.
var _ gocron.Elector = (*schedlock.Lock)(nil)

func TestALockIsAnElectorForAnAppsOwnGocron(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ofA, ofB diary
		a, b := w.join(nil), w.join(nil)
		for r, d := range map[*replica]*diary{a: &ofA, b: &ofB} {
			s, err := gocron.NewScheduler(gocron.WithDistributedElector(r.lock))
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Shutdown()) }()
			_, err = s.NewJob(gocron.DurationJob(time.Second), gocron.NewTask(func() {
				d.write("ran")
			}))
			require.NoError(t, err)
			s.Start()
		}
		sleepUntil(5 * time.Second)
		require.Empty(t, ofA.read(), "nobody leads")
		require.Empty(t, ofB.read())

		a.lead()
		b.stand()
		time.Sleep(500 * time.Millisecond)
		sleepUntil(15*time.Second + 500*time.Millisecond)
		ran := len(ofA.read())
		assert.GreaterOrEqual(t, ran, 10)
		assert.Empty(t, ofB.read())

		require.NoError(t, a.runner.Stop(ctx))
		sleepUntil(25*time.Second + 500*time.Millisecond)
		assert.Len(t, ofA.read(), ran)
		assert.GreaterOrEqual(t, len(ofB.read()), 9)
	})
}
