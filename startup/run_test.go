package startup_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/startup"
)

// A goroutine that is left over fails the tests; inside a synctest bubble,
// synctest itself sees to that.
func TestMain(m *testing.M) {
	child.InMemory()
	goleak.VerifyTestMain(m)
}

func TestStartAndStop(t *testing.T) {
	var d diary
	a, b, c := d.stage("a", nil, nil), d.stage("b", nil, nil), d.stage("c", nil, nil)
	a.After, c.Start = []string{"b"}, nil
	g := build(t, a, b, startup.Stage{Name: "nothing to do"}, c)

	require.NoError(t, g.Start(t.Context()))
	assert.Equal(t, []string{"start b", "start a"}, d.read())
	require.NoError(t, g.Stop(t.Context()))
	assert.Equal(t, []string{"start b", "start a", "stop c", "stop a", "stop b"}, d.read())
}

func TestStartThatFailsIsRolledBack(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		start func(context.Context) error
		text  string
	}{
		{"error", fail(boom), `stage "c": start: boom`},
		{"panic with an error", func(context.Context) error {
			panic(boom)
		}, `stage "c": start: panic: boom`},
		{"panic", explode, `stage "c": start: panic: a value`},
		{"Goexit", func(context.Context) error {
			runtime.Goexit()
			return nil
		}, `stage "c": start: called runtime.Goexit instead of returning`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d diary
			g := build(t, d.stage("a", nil, nil), d.stage("b", nil, nil),
				d.stage("c", tt.start, nil), d.stage("d", nil, nil))

			err := g.Start(t.Context())
			assert.EqualError(t, err, tt.text)
			assert.Equal(t, strings.HasSuffix(tt.text, "boom"), errors.Is(err, boom))
			assert.Equal(t, []string{"c start"}, stageErrors(t, err))
			want := []string{"start a", "start b", "start c", "stop b", "stop a"}
			assert.Equal(t, want, d.read())

			require.NoError(t, g.Stop(t.Context()), "the roll-back had no error")
			assert.Equal(t, want, d.read(), "Stop has stopped something twice")
		})
	}
}

func explode(context.Context) error { panic("a value") }

func TestStartPastItsDeadline(t *testing.T) {
	const limit = 5 * time.Second
	own := errors.New("no answer from db:5432")
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		start   func(context.Context) error
		took    time.Duration
		text    string
		stopped bool // b is stopped too
	}{
		{"default", 0, obey, 30 * time.Second, "not done within its StartTimeout of 30s", false},
		{"obeys", limit, obey, limit, "not done within its StartTimeout of 5s", false},
		{"returns the cause", limit, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, limit,
			"not done within its StartTimeout of 5s", false},
		{"says more", limit, func(ctx context.Context) error { <-ctx.Done(); return own }, limit,
			"not done within its StartTimeout of 5s: no answer from db:5432", false},
		{"succeeds in its grace", limit, ignoreFor(limit+grace/2, nil), limit + grace/2,
			"not done within its StartTimeout of 5s", true},
		{"fails in its grace", limit, ignoreFor(limit+grace/2, own), limit + grace/2,
			"not done within its StartTimeout of 5s: no answer from db:5432", false},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			begin := time.Now()
			var d diary
			b := d.stage("b", tt.start, nil)
			b.StartTimeout = tt.timeout
			g := build(t, d.stage("a", nil, nil), b, d.stage("c", nil, nil))

			err := g.Start(t.Context())
			assert.EqualError(t, err, `stage "b": start: `+tt.text)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, []string{"b start"}, stageErrors(t, err))
			assert.Equal(t, tt.took, time.Since(begin))
			want := []string{"start a", "start b", "stop a"}
			if tt.stopped {
				want = []string{"start a", "start b", "stop b", "stop a"}
			}
			assert.Equal(t, want, d.read())
		})
	}
}

// A Start that cannot be ended is left behind; nothing that it starts later
// stays started.
func TestStartLeftBehind(t *testing.T) {
	late := errors.New("late")
	for _, tt := range []struct {
		name     string
		start    func(context.Context) error
		stop     func(context.Context) error
		stopTook time.Duration // of the call of Graph.Stop that follows Start at once
		stopText string
		diary    []string
	}{
		{"succeeds", ignoreFor(10*time.Second, nil), nil, 4 * time.Second, "",
			[]string{"start a", "start b", "stop a", "stop b"}},
		{"fails", ignoreFor(10*time.Second, late), nil, 4 * time.Second, "",
			[]string{"start a", "start b", "stop a"}},
		{"panics", func(context.Context) error {
			time.Sleep(10 * time.Second)
			panic("late")
		}, nil, 4 * time.Second, "",
			[]string{"start a", "start b", "stop a"}},
		{"fails to stop", ignoreFor(10*time.Second, nil), fail(late), 4 * time.Second,
			`stage "b": stop: late`,
			[]string{"start a", "start b", "stop a", "stop b"}},
		{"stops past its deadline", ignoreFor(8*time.Second, nil), obey,
			2*time.Second + 7*time.Second,
			`stage "b": stop: not done within its StopTimeout of 7s; ` +
				`it was left behind while it started, and is not stopped yet`,
			[]string{"start a", "start b", "stop a", "stop b"}},
		{"hangs", ignoreFor(time.Hour, nil), nil, 7 * time.Second,
			`stage "b": stop: not done within its StopTimeout of 7s; ` +
				`it was left behind while it started, and is not stopped yet`,
			[]string{"start a", "start b", "stop a", "stop b"}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			begin := time.Now()
			var d diary
			b := d.stage("b", tt.start, tt.stop)
			b.StartTimeout, b.StopTimeout = 5*time.Second, 7*time.Second
			g := build(t, d.stage("a", nil, nil), b)

			err := g.Start(t.Context())
			assert.EqualError(t, err,
				`stage "b": start: not done within its StartTimeout of 5s; `+
					`it still runs, and will be stopped if it succeeds after all`)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, 5*time.Second+grace, time.Since(begin))
			assert.Equal(t, []string{"start a", "start b", "stop a"}, d.read())

			begin = time.Now()
			err = g.Stop(t.Context())
			if tt.stopText == "" {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, tt.stopText)
			}
			assert.Equal(t, min(tt.stopTook, 7*time.Second), time.Since(begin))

			time.Sleep(2 * time.Hour)
			assert.Equal(t, tt.diary, d.read(), "in the end")
			assert.Equal(t, err, g.Stop(t.Context()), "the second Stop has another result")
		})
	}
}

func TestLateStartIsStoppedWithoutStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		limit := make(chan time.Duration, 1)
		g := build(t, d.stage("a", ignoreFor(time.Minute, nil), func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			limit <- time.Until(deadline)
			return ctx.Err()
		}))
		ctx, cancel := context.WithCancel(t.Context())
		require.Error(t, g.Start(ctx))
		cancel() // of no consequence for the late stop
		assert.Equal(t, []string{"start a"}, d.read())
		time.Sleep(time.Hour)
		assert.Equal(t, []string{"start a", "stop a"}, d.read())
		assert.Equal(t, 10*time.Second, <-limit)
		assert.NoError(t, g.Stop(t.Context()))
		assert.Equal(t, []string{"start a", "stop a"}, d.read())
	})
}

func TestCallerEndsTheStart(t *testing.T) {
	signal := errors.New("terminated")
	for _, tt := range []struct {
		name  string
		cause error
		is    error
		text  string
	}{
		{"cancelled", nil, context.Canceled, `stage "b": start: context canceled`},
		{"cancelled with a cause", signal, context.Canceled,
			`stage "b": start: context canceled: terminated`},
		{"at its deadline", nil, context.DeadlineExceeded,
			`stage "b": start: context deadline exceeded`},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			begin := time.Now()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.is == context.DeadlineExceeded {
				var end context.CancelFunc
				ctx, end = context.WithTimeout(ctx, time.Second)
				defer end()
			} else {
				time.AfterFunc(time.Second, func() { cancel(tt.cause) })
			}
			var d diary
			var left time.Duration
			a := d.stage("a", nil, func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				return ctx.Err()
			})
			g := build(t, a, d.stage("b", obey, nil), d.stage("c", nil, nil))

			err := g.Start(ctx)
			assert.EqualError(t, err, tt.text, "a is stopped with a context that lives")
			assert.Equal(t, 10*time.Second, left, "the roll-back has its full StopTimeout")
			assert.ErrorIs(t, err, tt.is)
			if tt.cause != nil {
				assert.ErrorIs(t, err, tt.cause)
			}
			assert.Equal(t, time.Second, time.Since(begin))
			assert.Equal(t, []string{"start a", "start b", "stop a"}, d.read())
		})
	}
}

func TestStartOfAnEndedContext(t *testing.T) {
	var d diary
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g := build(t, d.stage("a", nil, nil))
	assert.EqualError(t, g.Start(ctx), `stage "a": start: not begun: context canceled`)
	assert.Empty(t, d.read())
}

func TestStageContextEndsWithItsFunction(t *testing.T) {
	var start, stop context.Context
	g := build(t, startup.Stage{
		Name:  "a",
		Start: func(ctx context.Context) error { start = ctx; return ctx.Err() },
		Stop:  func(ctx context.Context) error { stop = ctx; return ctx.Err() },
	})
	require.NoError(t, g.Start(t.Context()))
	assert.Error(t, start.Err())
	require.NoError(t, g.Stop(t.Context()))
	assert.Error(t, stop.Err())
}

func TestStageContextsCarryTheCallersValues(t *testing.T) {
	type key struct{}
	var got []any
	look := func(ctx context.Context) error { got = append(got, ctx.Value(key{})); return nil }
	g := build(t, startup.Stage{Name: "a", Start: look, Stop: look})
	require.NoError(t, g.Start(context.WithValue(t.Context(), key{}, "start")))
	require.NoError(t, g.Stop(context.WithValue(t.Context(), key{}, "stop")))
	assert.Equal(t, []any{"start", "stop"}, got)
}

// Whatever the stages, and whichever fails in whatever way, those that had
// started, and only they, are stopped in reverse; without a failure, Stop does
// so.
func TestEveryStartedStageIsStoppedInReverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "stages")
		bad := rapid.IntRange(0, n).Draw(t, "bad") // in the order of starting; n: none
		how := rapid.SampledFrom([]func(context.Context) error{
			fail(errors.New("boom")), explode,
			func(context.Context) error { runtime.Goexit(); return nil },
		}).Draw(t, "how")
		badStop := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "bad stops")

		var names []string
		var places []int
		for i := range n {
			names = append(names, fmt.Sprintf("s%d", i))
			places = append(places, i)
		}

		var d diary
		calls := 0
		stages := make([]startup.Stage, n)
		for i, place := range rapid.Permutation(places).Draw(t, "places") {
			name := names[i]
			st := d.stage(name, func(ctx context.Context) error {
				calls++
				if calls-1 == bad {
					return how(ctx)
				}
				return nil
			}, func(context.Context) error {
				if badStop[i] {
					return errors.New(name)
				}
				return nil
			})
			for dep := range i { // on stages of lower number only: no cycle
				if rapid.Bool().Draw(t, "depends") {
					st.After = append(st.After, names[dep])
				}
			}
			stages[place] = st
		}

		order := orderOf(t, stages)
		want, wantErrs := []string{}, []string{}
		for _, name := range order[:min(bad+1, n)] {
			want = append(want, "start "+name)
		}
		if bad < n {
			wantErrs = append(wantErrs, order[bad]+" start")
		}
		stopErrs := 0
		for _, name := range slices.Backward(order[:bad]) {
			want = append(want, "stop "+name)
			if badStop[slices.Index(names, name)] {
				wantErrs = append(wantErrs, name+" stop")
				stopErrs++
			}
		}

		g := build(t, stages...)
		err := g.Start(context.Background())
		if bad < n {
			require.Equal(t, wantErrs, stageErrors(t, err))
			require.Equal(t, want, d.read(), "after the roll-back")
		} else {
			require.NoError(t, err)
			require.Equal(t, want[:n], d.read(), "after Start")
		}
		err = g.Stop(context.Background())
		require.Equal(t, want, d.read(), "after Stop")
		require.Equal(t, wantErrs[len(wantErrs)-stopErrs:], stageErrors(t, err))
	})
}
