package named_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

var _ gocron.Elector = (*named.Election)(nil)

// Three replicas campaign and lead, each for a while, until all have led.
func TestAnElectionHasOneLeader(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var (
			wg      sync.WaitGroup
			mu      sync.Mutex
			leading int
			terms   []int64
		)
		for pid := range 3 {
			e, _ := w.election(pid + 1)
			assert.ErrorIs(t, e.IsLeader(ctx), schedlock.ErrNotLeader)
			assert.NoError(t, e.WaitLoseLeader(ctx), "it does not lead")
			assert.NoError(t, e.Resign(ctx), "nor has it anything to resign")
			_, leads := e.Confirmed()
			assert.False(t, leads)
			wg.Go(func() {
				lock, err := e.WaitForLeader(ctx)
				if !assert.NoError(t, err) {
					return
				}
				same, err := e.WaitForLeader(ctx)
				assert.NoError(t, err)
				assert.Same(t, lock, same)
				mu.Lock()
				leading++
				assert.Equal(t, 1, leading)
				terms = append(terms, lock.Term())
				mu.Unlock()
				time.Sleep(time.Hour + time.Millisecond)
				assert.NoError(t, e.IsLeader(ctx))
				age, leads := e.Confirmed()
				assert.True(t, leads)
				assert.LessOrEqual(t, age, ttl/3)
				leader, err := e.Leader(ctx)
				assert.NoError(t, err)
				assert.Equal(t, pid+1, leader.PID)
				mu.Lock()
				leading--
				mu.Unlock()
				lost := make(chan error)
				go func() { lost <- e.WaitLoseLeader(ctx) }()
				synctest.Wait()
				assert.NoError(t, e.Resign(ctx))
				assert.NoError(t, <-lost)
				assert.ErrorIs(t, e.IsLeader(ctx), schedlock.ErrNotLeader)
			})
		}
		wg.Wait()
		require.Len(t, terms, 3)
		require.IsIncreasing(t, terms)
		require.Nil(t, w.row(named.KindElection, "office"))
	})
}

func TestALeaderWithoutItsDatabaseStepsDownAndComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		a, store := w.election(1, named.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		b, _ := w.election(2)
		first, err := a.WaitForLeader(ctx)
		require.NoError(t, err)
		start := at()
		store.during(func(context.Context, string) error { return errRefused }, nil)
		require.NoError(t, a.WaitLoseLeader(ctx))
		require.Equal(t, trusted, at()-start)
		require.ErrorIs(t, a.IsLeader(ctx), schedlock.ErrNotLeader)
		wantLost(t, first)

		second, err := b.WaitForLeader(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at()-start, ttl)
		done := make(chan *named.Lock)
		go func() {
			lock, err := a.WaitForLeader(ctx)
			assert.NoError(t, err)
			done <- lock
		}()
		time.Sleep(95 * time.Second)
		store.during(nil, nil)
		time.Sleep(5 * time.Second)
		require.NoError(t, b.IsLeader(ctx))
		require.NoError(t, b.Resign(ctx))
		third := <-done
		require.NoError(t, third.Check())
		require.Greater(t, third.Term(), second.Term())
		require.NoError(t, a.Resign(ctx))
		synctest.Wait() // for what it might say of that
		for says, n := range map[string]int{
			`msg=leading election=office`:         2,
			`msg="lost the election"`:             1,
			`msg="cannot campaign, trying again"`: 1,
			`msg="still cannot campaign"`:         3, // at most one every 30 s
			`msg="database answers again"`:        1,
		} {
			assert.Equal(t, n, strings.Count(log.String(), says), "%s\n%s", says, log.String())
		}
	})
}

func TestACampaignEndsWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _ := w.election(1)
		b, store := w.election(2)
		_, err := a.WaitForLeader(ctx)
		require.NoError(t, err)
		why := errors.New("why")
		for name, fault := range map[string]func(context.Context, string) error{"held": nil,
			"outage": only("look", errRefused), "hanging": hang("look")} {
			store.during(fault, nil)
			ended, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Minute, func() { cancel(why) })
			start := at()
			_, err := b.WaitForLeader(ended)
			require.ErrorIs(t, err, why, name)
			require.ErrorIs(t, err, schedlock.ErrHeld, "%s: who was in the way", name)
			require.Equal(t, time.Minute, at()-start, name)
		}
		// Of two campaigns one waits for the other.
		store.during(nil, nil)
		var wg sync.WaitGroup
		ended, cancel := context.WithCancelCause(ctx)
		for range 2 {
			wg.Go(func() {
				_, err := b.WaitForLeader(ended)
				assert.ErrorIs(t, err, why)
			})
		}
		time.Sleep(time.Minute)
		cancel(why)
		wg.Wait()
		require.ErrorIs(t, a.WaitLoseLeader(ended), why)
		require.NoError(t, a.IsLeader(ctx))
		require.NoError(t, a.Resign(ctx))
		require.Nil(t, w.row(named.KindElection, "office"), "nobody leads who gave up")
	})
}

func TestResigningCanBeRepeated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		a, store := w.election(1, named.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		_, err := a.WaitForLeader(ctx)
		require.NoError(t, err)
		store.during(only("release", errRefused), nil)
		require.ErrorIs(t, a.Resign(ctx), errRefused)
		require.ErrorIs(t, a.IsLeader(ctx), schedlock.ErrNotLeader)
		store.during(nil, nil)
		require.NoError(t, a.Resign(ctx))
		require.Nil(t, w.row(named.KindElection, "office"))
		require.NoError(t, a.Resign(ctx))
		lock, err := a.WaitForLeader(ctx)
		require.NoError(t, err)
		w.db.AgeNamed(ttl)
		<-lock.Done()
		for range 2 {
			require.NoError(t, a.Resign(ctx), "it does not lead any more")
		}
		// It hears of the loss only when it resigns.
		synctest.Wait() // the log has what it said of the loss before
		log.Reset()
		lock, err = a.WaitForLeader(ctx)
		require.NoError(t, err)
		w.db.SetNamedTerm(named.Key{Kind: named.KindElection, Name: "office"}, lock.Term()+1)
		require.NoError(t, a.Resign(ctx))
		require.Equal(t, 1, strings.Count(log.String(), `msg="lost the election"`), log.String())
	})
}

// While an extension fails the leader still leads, and the log says so once; it is
// not silent until it has lost.
func TestALeaderThatCannotExtendSaysSoOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		e, store := w.election(1, named.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		_, err := e.WaitForLeader(ctx)
		require.NoError(t, err)
		for outage := 1; outage <= 2; outage++ {
			before := store.count("extend")
			store.during(only("extend", errRefused), nil)
			time.Sleep(ttl/3 + 1500*time.Millisecond)
			require.NoError(t, e.IsLeader(ctx))
			require.Greater(t, store.count("extend")-before, 1, "it was not tried again")
			store.during(nil, nil)
			time.Sleep(ttl)
			require.NoError(t, e.IsLeader(ctx))
			require.Equal(t, outage, strings.Count(log.String(), "level=WARN"), log.String())
			require.Equal(t, outage, strings.Count(log.String(), "connection refused"),
				log.String())
			require.Equal(t, outage, strings.Count(log.String(), "the lock is extended again"),
				log.String())
			require.Equal(t, outage, strings.Count(log.String(),
				" lost_in="+(trusted-ttl/3).String()), log.String())
		}
		require.NoError(t, e.Resign(ctx))
	})
}

func TestIsLeaderNeitherBlocksNorAllocates(t *testing.T) {
	w := &world{t: t, db: memory.New()}
	e, store := w.election(1)
	_, err := e.WaitForLeader(ctx)
	require.NoError(t, err)
	defer e.Resign(ctx)
	n := len(store.ops)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if e.IsLeader(ctx) != nil {
			t.Error("it does not lead")
		}
	}))
	require.Len(t, store.ops, n)
}

func BenchmarkElectionIsLeader(b *testing.B) {
	e, err := named.NewElection(memory.New().Named(), "office", silent, named.WithTTL(time.Hour))
	require.NoError(b, err)
	_, err = e.WaitForLeader(ctx)
	require.NoError(b, err)
	defer e.Resign(ctx)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.IsLeader(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
