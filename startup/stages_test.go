package startup_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/startup"
)

// diary writes down which functions of which stages were called.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.lines...)
}

// stage returns a stage that writes "start name" and "stop name", and does
// start and stop beyond that, where they are not nil.
func (d *diary) stage(name string, start, stop func(context.Context) error) startup.Stage {
	do := func(op string, fn func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			d.write(op + " " + name)
			if fn == nil {
				return nil
			}
			return fn(ctx)
		}
	}
	return startup.Stage{Name: name, Start: do("start", start), Stop: do("stop", stop)}
}

// bubble runs a subtest in which time passes as soon as all wait for it.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func build(t require.TestingT, stages ...startup.Stage) *startup.Graph {
	g, err := startup.New(stages, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return g
}

// orderOf returns the names of stages in the order in which they start.
func orderOf(t require.TestingT, stages []startup.Stage) []string {
	names, named := []string{}, slices.Clone(stages)
	for i, st := range stages {
		named[i].Stop = nil
		named[i].Start = func(context.Context) error {
			names = append(names, st.Name)
			return nil
		}
	}
	g := build(t, named...)
	require.NoError(t, g.Start(context.Background()))
	require.NoError(t, g.Stop(context.Background()))
	return names
}

// Things that a stage may do.

func fail(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func obey(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func ignoreFor(d time.Duration, err error) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(d)
		return err
	}
}

// stageErrors returns the *StageErrors in err, which must consist of nothing
// else, as "stage op".
func stageErrors(t require.TestingT, err error) []string {
	found := []string{}
	if err == nil {
		return found
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		st, ok := one.(*startup.StageError)
		require.True(t, ok, "%T is no *StageError: %v", one, one)
		found = append(found, st.Stage+" "+st.Op)
	}
	return found
}
