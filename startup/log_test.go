package startup_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/startup"
)

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out,
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				switch a.Key {
				case slog.TimeKey:
					return slog.Attr{}
				case "stack":
					return slog.Bool("stack", strings.Contains(a.Value.String(),
						"startup_test.explode"))
				}
				return a
			}}))
		run := func(stages ...startup.Stage) string {
			out.Reset()
			g, err := startup.New(stages, log)
			require.NoError(t, err)
			_ = g.Start(t.Context())
			_ = g.Stop(t.Context())
			time.Sleep(time.Hour)
			synctest.Wait()
			return out.String()
		}
		second := ignoreFor(time.Second, nil)
		minute := ignoreFor(time.Minute, nil)

		assert.Equal(t, `level=INFO msg="stage started" stage=a took=1s
level=INFO msg="stage started" stage=b took=0s
level=WARN msg="stage failed to stop" stage=b took=0s err="panic: a value" stack=true
level=INFO msg="stage stopped" stage=a took=1s
`, run(startup.Stage{Name: "a", Start: second, Stop: second},
			startup.Stage{Name: "b", Stop: explode}))

		assert.Equal(t, `level=INFO msg="stage started" stage=a took=0s
level=ERROR msg="stage failed to start" stage=b took=0s err=boom
level=INFO msg="stage stopped" stage=a took=0s
`, run(startup.Stage{Name: "a"}, startup.Stage{Name: "b", Start: fail(errors.New("boom"))}))

		assert.Equal(t, `level=ERROR msg="stage failed to start" stage=a took=31s err="not done within its StartTimeout of 30s; it still runs, and will be stopped if it succeeds after all"
level=INFO msg="late stage started, and was stopped again" stage=a took=1m0s
`, run(startup.Stage{Name: "a", Start: minute}))

		assert.Equal(t, `level=ERROR msg="stage failed to start" stage=a took=31s err="not done within its StartTimeout of 30s; it still runs, and will be stopped if it succeeds after all"
level=WARN msg="late stage failed to start" stage=a took=1m0s err=boom
`, run(startup.Stage{Name: "a", Start: ignoreFor(time.Minute, errors.New("boom"))}))

		assert.Equal(t, `level=ERROR msg="stage failed to start" stage=a took=31s err="not done within its StartTimeout of 30s; it still runs, and will be stopped if it succeeds after all"
level=WARN msg="late stage started, but failed to stop" stage=a took=1m10s err="not done within its StopTimeout of 10s"
`, run(startup.Stage{Name: "a", Start: minute, Stop: obey}))

		assert.Equal(t, `level=INFO msg="stage started" stage=a took=0s
level=WARN msg="stage failed to stop" stage=a took=11s err="not done within its StopTimeout of 10s; it still runs"
level=INFO msg="late stage stopped" stage=a took=1m0s
`, run(startup.Stage{Name: "a", Stop: minute}))

		assert.Equal(t, `level=INFO msg="stage started" stage=a took=0s
level=WARN msg="stage failed to stop" stage=a took=11s err="not done within its StopTimeout of 10s; it still runs"
level=WARN msg="late stage failed to stop" stage=a took=1m0s err=boom
`, run(startup.Stage{Name: "a", Stop: ignoreFor(time.Minute, errors.New("boom"))}))
	})
}

// A start that was called off is nothing to wake anybody for.
func TestLogOfAStartThatWasCalledOff(t *testing.T) {
	var out strings.Builder
	g, err := startup.New(list("a"), slog.New(slog.NewTextHandler(&out, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, g.Start(ctx))
	assert.Contains(t, out.String(), `level=WARN msg="stage failed to start" stage=a`)
	assert.Equal(t, 1, strings.Count(out.String(), "\n"))
}

func TestLogGoesToTheDefaultLogger(t *testing.T) {
	var out strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	g, err := startup.New(list("a"), nil)
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	require.NoError(t, g.Stop(t.Context()))
	assert.Contains(t, out.String(), `msg="stage started" stage=a`)
}
