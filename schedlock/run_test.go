package schedlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// run calls Run in the background.
func (r *replica) run(ctx context.Context, lead func(context.Context,
	*schedlock.Lease) error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- r.lock.Run(ctx, lead) }()
	return ended
}

// untilTheEnd does what a good function for Run does.
func untilTheEnd(ctx context.Context, _ *schedlock.Lease) error {
	<-ctx.Done()
	return ctx.Err()
}

func logTo(text *logtest.Log) schedlock.Option {
	return schedlock.WithLogger(slog.New(slog.NewTextHandler(text, nil)))
}

// Nothing but Run: no scheduler, no helper of the test. synctest fails if a
// goroutine is left.
func TestRunLeadsForADayLosesTheDatabaseForAnHourAndLeadsAgain(t *testing.T) {
	missing.Long(t, "leads for a day")
	inBubble(t, func(t *testing.T, db *memory.Store) {
		const day = 24 * time.Hour
		a := newRenewing(t, db)
		start := time.Now()
		var ( // read when the function waits
			terms  []int64
			causes []error
		)
		ctx, cancel := context.WithCancel(context.Background())
		ended := a.run(ctx, func(ctx context.Context, lease *schedlock.Lease) error {
			terms = append(terms, lease.Term())
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			return ctx.Err()
		})
		for hour := range 24 {
			sleepUntil(start, time.Duration(hour)*time.Hour)
			require.True(t, a.leads())
		}
		sleepUntil(start, day)
		require.Len(t, terms, 1)
		require.Equal(t, int(day/every), a.db.count("heartbeat"))

		a.db.set(fault{kind: broken})
		sleepUntil(start, day+renew-every)
		require.True(t, a.leads(), "it is trusted for as long")
		sleepUntil(start, day+renew)
		require.False(t, a.leads())
		require.Len(t, causes, 1)
		require.ErrorIs(t, causes[0], schedlock.ErrLost)
		sleepUntil(start, day+time.Hour)
		require.Len(t, terms, 1)

		a.db.heal()
		sleepUntil(start, day+time.Hour+2*every)
		require.True(t, a.leads())
		require.Len(t, terms, 2)
		require.Greater(t, terms[1], terms[0])
		cancel()
		require.NoError(t, <-ended)
		require.Nil(t, rowOf(t, db))
		synctest.Wait()
	})
}

func TestRunHandsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var leaders atomic.Int32
		lead := func(ctx context.Context, _ *schedlock.Lease) error {
			assert.EqualValues(t, 1, leaders.Add(1), "leaders at once")
			defer leaders.Add(-1)
			<-ctx.Done()
			time.Sleep(3 * time.Second) // it takes a while to return
			return nil
		}
		a, b := newRenewing(t, db), newRenewing(t, db)
		one, stop := context.WithCancel(t.Context())
		first := a.run(one, lead)
		synctest.Wait()
		second := b.run(t.Context(), lead)
		time.Sleep(time.Hour)
		require.True(t, a.leads())
		stop()
		time.Sleep(time.Second)
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)
		require.Equal(t, driver.StateDraining, rowOf(t, db).State)
		require.NoError(t, <-first)
		time.Sleep(2 * retry)
		require.True(t, b.leads())
		require.NoError(t, b.lock.Stop(ctx), "which waits for the function")
		require.Zero(t, leaders.Load())
		require.ErrorIs(t, <-second, schedlock.ErrStopped)
	})
}

func TestRunGoesOnWhenItsFunctionReturns(t *testing.T) {
	for name, result := range map[string]error{"without an error": nil,
		"with an error": errors.New("no such table")} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			text := new(logtest.Log)
			a := newRenewing(t, db, logTo(text))
			var calls atomic.Int32
			ended := a.run(t.Context(), func(context.Context, *schedlock.Lease) error {
				calls.Add(1)
				return result
			})
			time.Sleep(time.Minute)
			require.InDelta(t, time.Minute/(2*retry), calls.Load(), 2,
				"others have a chance in between")
			require.NoError(t, a.lock.Stop(ctx))
			require.ErrorIs(t, <-ended, schedlock.ErrStopped)
			require.Equal(t, result != nil,
				text.Count("the work under the lock has failed") > 0)
		})
	}
}

// A hollow error could wrap several, and wraps none.
type hollow struct{}

func (hollow) Error() string   { return "hollow" }
func (hollow) Unwrap() []error { return nil }

// Another word for the end of a context, as package net has one.
type cancelled struct{}

func (cancelled) Error() string        { return "operation was canceled" }
func (cancelled) Is(target error) bool { return target == context.Canceled }

func TestRunReturnsWhatWentWrongInTheEnd(t *testing.T) {
	bad := errors.New("cannot be saved")
	for name, tc := range map[string]struct {
		returns func(context.Context) error // in the end
		want    error
	}{
		"the context's error":    {context.Context.Err, nil},
		"the cause of it":        {context.Cause, nil},
		"another word for it":    {func(context.Context) error { return cancelled{} }, nil},
		"nothing":                {func(context.Context) error { return nil }, nil},
		"an error of the work's": {func(context.Context) error { return bad }, bad},
		"both": {func(ctx context.Context) error {
			return errors.Join(ctx.Err(), bad)
		}, bad},
		"an error with nothing in it": {func(context.Context) error { return hollow{} }, hollow{}},
		"both, in a text": {func(ctx context.Context) error {
			return fmt.Errorf("import: %w", fmt.Errorf("%w, %w", bad, ctx.Err()))
		}, bad},
		"twice the context's": {func(ctx context.Context) error {
			return fmt.Errorf("import: %w", errors.Join(ctx.Err(), context.Cause(ctx)))
		}, nil},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a := newRenewing(t, db)
			one, stop := context.WithCancelCause(t.Context())
			ended := a.run(one, func(ctx context.Context, _ *schedlock.Lease) error {
				<-ctx.Done()
				return tc.returns(ctx)
			})
			time.Sleep(time.Minute)
			a.db.set(fault{kind: broken}, "release")
			time.AfterFunc(3*time.Second, a.db.heal)
			stop(errors.New("SIGTERM"))
			err := <-ended
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, tc.want != nil, err != nil,
				"the release has succeeded in the end: %v", err)
		})
	}
	bubble(t, "a release that fails", func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		one, stop := context.WithCancel(t.Context())
		ended := a.run(one, untilTheEnd)
		time.Sleep(time.Minute)
		a.db.set(fault{kind: broken}, "release")
		stop()
		require.ErrorIs(t, <-ended, errBroken)
		a.db.heal()
		require.NoError(t, a.lock.Stop(ctx), "tries again")
		require.Nil(t, rowOf(t, db))
	})
	bubble(t, "a release that fails and is not made up for", func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		one, stop := context.WithCancel(t.Context())
		ended := a.run(one, func(context.Context, *schedlock.Lease) error {
			a.db.set(fault{kind: broken})
			return nil
		})
		time.Sleep(time.Hour)
		stop()
		require.ErrorIs(t, <-ended, errBroken)
	})
	bubble(t, "a release that the campaign has made up for", func(t *testing.T, db *memory.Store) {
		text := new(logtest.Log)
		a, b := newRenewing(t, db, logTo(text)), newRenewing(t, db)
		one, stop := context.WithCancel(t.Context())
		ended := a.run(one, func(context.Context, *schedlock.Lease) error { // once
			a.db.set(fault{kind: broken}, "release", "acquire")
			return nil
		})
		synctest.Wait()
		waiter := b.stand(t.Context())
		time.Sleep(6 * time.Second)
		a.db.set(fault{kind: broken}, "acquire")
		require.NoError(t, (<-waiter).err)
		require.Equal(t, 1, text.Count("it is repeated while this process runs"))
		time.Sleep(time.Minute)
		stop()
		require.NoError(t, <-ended)
	})
}

func TestRunNeedsAFunction(t *testing.T) {
	lock, err := schedlock.New(memory.New())
	require.NoError(t, err)
	require.ErrorContains(t, lock.Run(t.Context(), nil), "lead is nil")
}

func TestRunReleasesIfItsFunctionPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		require.PanicsWithValue(t, "boom", func() {
			_ = a.lock.Run(ctx, func(context.Context, *schedlock.Lease) error { panic("boom") })
		})
		require.Nil(t, rowOf(t, db))
		one, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		require.NoError(t, a.lock.Run(one, untilTheEnd), "it may be called again")
	})
}

func TestOneRunOrStartAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		one, stop := context.WithCancel(t.Context())
		ended := a.run(one, untilTheEnd)
		synctest.Wait()
		require.ErrorContains(t, a.lock.Run(ctx, untilTheEnd), "one at a time")
		a.lock.Start()
		synctest.Wait()
		require.True(t, a.leads())
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, a.lock.Run(one, untilTheEnd), "its context has ended")
		a.lock.Start()
		a.lock.Start()
		synctest.Wait()
		require.True(t, a.leads())
		require.ErrorContains(t, a.lock.Run(ctx, untilTheEnd), "one at a time")
		require.NoError(t, a.lock.Stop(ctx))
		require.ErrorIs(t, a.lock.Run(ctx, untilTheEnd), schedlock.ErrStopped)
		a.lock.Start()
		time.Sleep(time.Hour)
		require.False(t, a.leads())
		require.Nil(t, rowOf(t, db))
	})
}

func TestStopWaitsForWhatRunHasCalledAndKeepsTheLockMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		mayReturn := make(chan struct{})
		ended := a.run(t.Context(), func(context.Context, *schedlock.Lease) error {
			<-mayReturn
			return nil
		})
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := a.lock.Stop(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "what works under the lock has not returned")
		require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining, "it starts nothing")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, driver.StateDraining, rowOf(t, db).State)
		require.Less(t, rowOf(t, db).HeartbeatAge, every+retry, "nobody else leads meanwhile")
		close(mayReturn)
		require.NoError(t, a.lock.Stop(ctx))
		require.ErrorIs(t, <-ended, schedlock.ErrStopped)
		require.Nil(t, rowOf(t, db))
	})
}

func TestAnOrderToLeaveReachesRunAndStart(t *testing.T) {
	for name, tc := range map[string]struct {
		begin func(t *testing.T, a *replica)
		takes time.Duration
	}{
		"Run": {func(t *testing.T, a *replica) {
			a.run(t.Context(), func(ctx context.Context, lease *schedlock.Lease) error {
				<-ctx.Done()
				select {
				case <-lease.Revoked():
					assert.ErrorIs(t, context.Cause(ctx), schedlock.ErrDraining)
				default: // Stop
				}
				time.Sleep(5 * time.Minute) // longer than a TTL: the lease is kept alive
				return nil
			})
		}, 5 * time.Minute},
		"Start": {func(_ *testing.T, a *replica) { a.lock.Start() }, ttl - renew},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newRenewing(t, db), newRenewing(t, db)
			start := time.Now()
			tc.begin(t, a)
			synctest.Wait()
			b.lock.Start()
			synctest.Wait()
			term := a.lock.Lease().Term()
			_, err := schedlock.Revoke(ctx, db, term, "alice", "")
			require.NoError(t, err)
			sleepUntil(start, every)
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrDraining)
			sleepUntil(start, every+tc.takes-time.Millisecond)
			require.Equal(t, term, rowOf(t, db).Term, "what runs may return first")
			sleepUntil(start, every+tc.takes+retry)
			require.True(t, b.leads())
			terms, err := db.Terms(ctx, 2)
			require.NoError(t, err)
			require.Equal(t, driver.EndRevoked, terms[1].EndReason)
			require.Zero(t, a.seen.count(schedlock.EventLost))
			require.NoError(t, b.lock.Stop(ctx))
			time.Sleep(2 * retry)
			require.True(t, a.leads(), "it has been told to leave one term")
			require.NoError(t, a.lock.Stop(ctx))
		})
	}
}

// What runs under an elector cannot be told to return, so that it has the rest of
// the TTL to do so.
func TestStartGivesALostLockBackNoEarlierThanATTLAfterItsLastHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newRenewing(t, db), newRenewing(t, db)
		start := time.Now()
		a.lock.Start()
		synctest.Wait()
		b.lock.Start()
		sleepUntil(start, time.Hour+retry)
		a.db.set(fault{kind: broken}, "heartbeat")
		sleepUntil(start, time.Hour+renew)
		require.False(t, a.leads())
		sleepUntil(start, time.Hour+ttl-time.Millisecond)
		require.NotNil(t, rowOf(t, db))
		require.Zero(t, a.db.count("release"))
		require.NoError(t, a.lock.Healthy(0))
		sleepUntil(start, time.Hour+ttl+2*retry)
		require.True(t, b.leads() || a.leads())
		requireOneLeader(t, a, b)
		a.db.heal()
		require.NoError(t, a.lock.Stop(ctx))
		require.NoError(t, b.lock.Stop(ctx))
	})
}

func TestStartLeadsAgainAfterALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		a.lock.Start()
		for range 3 {
			time.Sleep(time.Hour)
			require.True(t, a.leads())
			a.db.set(fault{kind: broken})
			time.Sleep(time.Hour)
			require.False(t, a.leads())
			a.db.heal()
		}
		time.Sleep(2 * every)
		require.True(t, a.leads())
		gone, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, a.lock.Stop(gone), "as an app calls it whose context has ended")
		require.Nil(t, rowOf(t, db))
	})
}

func TestWhoAsksInVainIsToldOnceWhatToCall(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		ask := func(a *replica, d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				_ = a.lock.IsLeader(ctx)
			}
		}
		said := "but it does not campaign for the lock"
		text := new(logtest.Log)
		a := newRenewing(t, db, logTo(text))
		ask(a, ttl)
		require.Zero(t, text.Count(said))
		ask(a, 10*ttl)
		require.Equal(t, 1, text.Count(said))
		require.Equal(t, 1, text.Count("Lock.Start"))

		// Who has led once, and does not campaign again.
		text = new(logtest.Log)
		b := newRenewing(t, db, logTo(text))
		require.NoError(t, b.lead().Release(ctx))
		ask(b, 2*ttl)
		require.Equal(t, 1, text.Count(said))

		// A standby is asked for good reason, and so is who has work that returns.
		text = new(logtest.Log)
		c, d := newRenewing(t, db, logTo(text)), newRenewing(t, db, logTo(text))
		c.lock.Start()
		synctest.Wait()
		d.lock.Start()
		ask(d, 3*ttl)
		c.db.set(fault{kind: broken})
		ask(c, 3*ttl)
		e := newRenewing(t, memory.New(), logTo(text))
		lease := e.lead()
		lease.StepDown(errBroken)
		ask(e, 3*ttl)
		require.NoError(t, lease.Release(ctx))
		ask(e, ttl)
		require.Zero(t, text.Count(said))
	})
}

func TestASchedulerThatAsksAfterStopIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		text := new(logtest.Log)
		a := newRenewing(t, db, logTo(text))
		a.lock.Start()
		time.Sleep(time.Minute)
		require.NoError(t, a.lock.IsLeader(ctx))
		require.NoError(t, a.lock.Stop(ctx))
		said := "though the lock was stopped"
		require.Zero(t, text.Count(said), "it was shut down first")
		for range 3 {
			require.ErrorIs(t, a.lock.IsLeader(ctx), schedlock.ErrNotLeader)
		}
		require.Equal(t, 1, text.Count(said))
	})
}

// Somebody works under the lease that Wait or Acquire gave them: only they know when that has
// returned.
func TestRunReleasesNoLeaseOfSomebodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newRenewing(t, db), newRenewing(t, db)
		lease := a.lead()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for _, ctx := range []context.Context{ended, ended, ended, ctx} {
			require.ErrorIs(t, a.lock.Run(ctx, untilTheEnd), schedlock.ErrUnreleased)
			require.NoError(t, lease.Err())
		}
		_, err := b.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.NoError(t, lease.Release(ctx))
		_, err = b.lock.Acquire(ctx)
		require.NoError(t, err)
	})
}
