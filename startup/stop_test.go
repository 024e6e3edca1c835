package startup_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/startup"
)

// grace is what a stage gets in any case.
const grace = time.Second

func TestStopPastItsDeadline(t *testing.T) {
	own := errors.New("3 requests still run")
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		stop    func(context.Context) error
		took    time.Duration
		text    string
	}{
		{"default", 0, obey, 10 * time.Second, "not done within its StopTimeout of 10s"},
		{"obeys", 5 * time.Second, obey, 5 * time.Second, "not done within its StopTimeout of 5s"},
		{"says more", 5 * time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			return own
		}, 5 * time.Second,
			"not done within its StopTimeout of 5s: 3 requests still run"},
		{"succeeds in its grace", 5 * time.Second, ignoreFor(5*time.Second+grace/2, nil),
			5*time.Second + grace/2, ""},
		{"hangs", 5 * time.Second, ignoreFor(time.Hour, nil), 5*time.Second + grace,
			"not done within its StopTimeout of 5s; it still runs"},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			var d diary
			b := d.stage("b", nil, tt.stop)
			b.StopTimeout = tt.timeout
			g := build(t, d.stage("a", nil, func(ctx context.Context) error {
				return ctx.Err()
			}), b)
			require.NoError(t, g.Start(t.Context()))

			begin := time.Now()
			err := g.Stop(t.Context())
			if tt.text == "" {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, `stage "b": stop: `+tt.text)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			}
			assert.Equal(t, tt.took, time.Since(begin))
			time.Sleep(2 * time.Hour) // until the one that hangs has returned
			assert.Equal(t, []string{"start a", "start b", "stop b", "stop a"}, d.read())
		})
	}
}

// limits returns stages that each take as long to stop as they are given, and
// the times that they were given: by their deadline, and in fact.
func limits(timeouts ...time.Duration) (stages []startup.Stage, told, given *[]time.Duration) {
	told, given = new([]time.Duration), new([]time.Duration)
	for i, timeout := range timeouts {
		stages = append(stages, startup.Stage{Name: fmt.Sprint(i + 1), StopTimeout: timeout,
			Stop: func(ctx context.Context) error {
				begin := time.Now()
				deadline, _ := ctx.Deadline()
				*told = append(*told, time.Until(deadline))
				<-ctx.Done()
				*given = append(*given, time.Since(begin))
				return ctx.Err()
			}})
	}
	slices.Reverse(stages)
	return stages, told, given
}

func TestBudgetOfStop(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name     string
		budget   time.Duration
		timeouts []time.Duration // in the order of stopping
		want     []time.Duration
	}{
		{"is enough", 10 * s, []time.Duration{2 * s, 3 * s}, []time.Duration{2 * s, 3 * s}},
		{"leaves less than the own deadline", 10 * s, []time.Duration{7 * s, 7 * s},
			[]time.Duration{7 * s, 3 * s}},
		{"is used up: each still has its grace", 10 * s, []time.Duration{20 * s, 7 * s, 7 * s},
			[]time.Duration{10 * s, s, s}},
		{"leaves less than the grace", 10 * s, []time.Duration{9500 * ms, 7 * s},
			[]time.Duration{9500 * ms, s}},
		{"is used up: no more than the own deadline", 10 * s, []time.Duration{20 * s, 300 * ms},
			[]time.Duration{10 * s, 300 * ms}},
		{"was nothing", 0, []time.Duration{7 * s, 7 * s}, []time.Duration{s, s}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			stages, told, given := limits(tt.timeouts...)
			g := build(t, stages...)
			require.NoError(t, g.Start(t.Context()))
			budget, cancel := context.WithTimeout(t.Context(), tt.budget)
			defer cancel()
			err := g.Stop(budget)
			assert.Equal(t, tt.want, *given)
			assert.Equal(t, tt.want, *told, "the deadline that the stage sees")
			for i, line := range strings.Split(err.Error(), "\n") {
				why := fmt.Sprintf("not done within its StopTimeout of %v", tt.timeouts[i])
				if tt.want[i] < tt.timeouts[i] {
					why = "not done when the budget of Stop was used up"
				}
				assert.Equal(t, fmt.Sprintf("stage %q: stop: %s", fmt.Sprint(i+1), why), line)
			}
			assert.Len(t, stageErrors(t, err), len(tt.want))
		})
	}
}

func TestBudgetMayBeCancelled(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   time.Duration // when it is cancelled
		want []time.Duration
		told []time.Duration // the deadlines that the stages saw
	}{
		{"before", 0, []time.Duration{time.Second, time.Second},
			[]time.Duration{time.Second, time.Second}},
		{"in the grace of the first", 300 * time.Millisecond,
			[]time.Duration{time.Second, time.Second},
			[]time.Duration{7 * time.Second, time.Second}},
		{"later", 3 * time.Second, []time.Duration{3 * time.Second, time.Second},
			[]time.Duration{7 * time.Second, time.Second}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			stages, told, given := limits(7*time.Second, 7*time.Second)
			g := build(t, stages...)
			require.NoError(t, g.Start(t.Context()))
			budget, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.at == 0 {
				cancel()
			}
			time.AfterFunc(tt.at, cancel)
			err := g.Stop(budget)
			assert.Equal(t, tt.want, *given)
			assert.Equal(t, tt.told, *told)
			assert.EqualError(t, err,
				"stage \"1\": stop: not done when the budget of Stop was used up\n"+
					"stage \"2\": stop: not done when the budget of Stop was used up")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

func TestEndOfTheBudgetAfterStopIsOfNoConsequence(t *testing.T) {
	var d diary
	g := build(t, d.stage("a", nil, nil))
	require.NoError(t, g.Start(t.Context()))
	budget, cancel := context.WithCancel(t.Context())
	require.NoError(t, g.Stop(budget))
	cancel()
	assert.NoError(t, g.Stop(t.Context()))
	assert.Equal(t, []string{"start a", "stop a"}, d.read())
}

func TestSecondStopWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		bad := errors.New("bad")
		g := build(t, d.stage("a", nil, ignoreFor(5*time.Second, bad)))
		require.NoError(t, g.Start(t.Context()))

		begin := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				assert.ErrorIs(t, g.Stop(t.Context()), bad)
				assert.Equal(t, 5*time.Second, time.Since(begin))
			})
		}
		all.Wait()
		assert.ErrorIs(t, g.Stop(t.Context()), bad, "later")
		assert.Equal(t, 5*time.Second, time.Since(begin))
		assert.Equal(t, []string{"start a", "stop a"}, d.read())
	})
}

func TestShortestBudgetCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stages, told, given := limits(7*time.Second, 7*time.Second)
		g := build(t, stages...)
		require.NoError(t, g.Start(t.Context()))
		go func() { // a second signal, after 2 s: 3 s more
			time.Sleep(2 * time.Second)
			budget, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			assert.Error(t, g.Stop(budget))
		}()
		budget, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.Error(t, g.Stop(budget))
		assert.Equal(t, []time.Duration{5 * time.Second, time.Second}, *given)
		assert.Equal(t, []time.Duration{7 * time.Second, time.Second}, *told,
			"the second stage knows of the shorter budget")
	})
}

func TestStopDuringStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		bad := errors.New("bad")
		var cause error
		var left time.Duration
		a := d.stage("a", nil, func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return bad
		})
		b := d.stage("b", func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			time.Sleep(grace / 2)
			return ctx.Err()
		}, nil)
		g := build(t, a, b, d.stage("c", nil, nil))

		started := make(chan error, 1)
		go func() { started <- g.Start(t.Context()) }()
		time.Sleep(2 * time.Second)
		budget, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		time.AfterFunc(grace/4, func() {
			assert.ErrorIs(t, g.Stop(t.Context()), bad)
		}) // a second, while b still starts
		err := g.Stop(budget)
		assert.Equal(t, []string{"a stop"}, stageErrors(t, err))
		assert.ErrorIs(t, err, bad)

		err = <-started
		assert.Equal(t, []string{"b start", "a stop"}, stageErrors(t, err))
		assert.ErrorIs(t, err, startup.ErrStopped)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, startup.ErrStopped, cause)
		assert.Equal(t, 4*time.Second-grace/2, left,
			"the roll-back runs within the budget of the first Stop")
		assert.Equal(t, []string{"start a", "start b", "stop a"}, d.read())
	})
}

// A roll-back that runs already is bounded by the Stop that comes upon it.
func TestStopDuringRollBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stages, _, given := limits(7*time.Second, 7*time.Second)
		g := build(t, append(stages, startup.Stage{Name: "bad", Start: fail(errors.New("bad"))})...)
		started := make(chan error, 1)
		go func() { started <- g.Start(t.Context()) }()

		time.Sleep(2 * time.Second)
		budget, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		assert.Equal(t, []string{"1 stop", "2 stop"}, stageErrors(t, g.Stop(budget)))
		assert.Equal(t, []string{"bad start", "1 stop", "2 stop"}, stageErrors(t, <-started))
		assert.Equal(t, []time.Duration{5 * time.Second, time.Second}, *given)
	})
}

// A stage that calls Stop and waits for it holds nobody up for ever.
func TestStopFromWithinAStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var g *startup.Graph
		g = build(t, d.stage("a", nil, nil), d.stage("b", func(ctx context.Context) error {
			return g.Stop(context.WithoutCancel(ctx))
		}, nil))
		err := g.Start(t.Context())
		assert.ErrorIs(t, err, startup.ErrStopped)
		assert.ErrorContains(t, err, "it still runs")
		time.Sleep(time.Minute)
		assert.Error(t, g.Stop(t.Context()))
		assert.Equal(t, []string{"start a", "start b", "stop a"}, d.read()[:3])
	})
}

func TestStopBeforeStart(t *testing.T) {
	var d diary
	g := build(t, d.stage("a", nil, nil))
	require.NoError(t, g.Stop(t.Context()))
	require.NoError(t, g.Stop(t.Context()), "again")
	assert.ErrorIs(t, g.Start(t.Context()), startup.ErrStopped)
	require.NoError(t, g.Stop(t.Context()))
	assert.Empty(t, d.read())
}

func TestGraphStartsOnce(t *testing.T) {
	var d diary
	g := build(t, d.stage("a", nil, nil))
	require.NoError(t, g.Start(t.Context()))
	assert.EqualError(t, g.Start(t.Context()),
		"startup: this app, or graph, was started before: each starts once")
	assert.Equal(t, []string{"start a"}, d.read(), "the second Start has changed something")
	require.NoError(t, g.Stop(t.Context()))
	assert.ErrorIs(t, g.Start(t.Context()), startup.ErrStopped)
	assert.Equal(t, []string{"start a", "stop a"}, d.read())
}

// For the race detector: what started is stopped once, whoever comes first.
func TestStartAndStopAtOnce(t *testing.T) {
	for range 200 {
		var d diary
		g := build(t, d.stage("a", nil, nil), d.stage("b", nil, nil), d.stage("c", nil, nil))
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _ = g.Start(t.Context()) })
			all.Go(func() { assert.NoError(t, g.Stop(t.Context())) })
		}
		all.Wait()
		lines := d.read()
		n := len(lines) / 2
		assert.Equal(t, []string{"start a", "start b", "start c"}[:n], lines[:n])
		assert.Equal(t, []string{"stop c", "stop b", "stop a"}[3-n:], lines[n:])
	}
}
