//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/cmd/demoapp/app"
)

// leftFiles are all that may lie beside a database that nobody has open.
func leftFiles(name string) []string {
	return []string{name, name + "-lease", name + "-migrate.lock"}
}

// Not parallel: it counts what this very process has open.
func TestStartingAndStoppingInOneProcessLeavesNothingOpen(t *testing.T) {
	f := newFleet(t)
	env := map[string]string{
		"DEMOAPP_ADDR": "127.0.0.1:0", "DEMOAPP_DATABASE_URL": "file:" +
			f.db, "DEMOAPP_BLOCKLISTS": f.dir + "/none",
		"DEMOAPP_TICK": "100ms",
	}
	cfg, err := app.LoadConfig(nil, func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}, os.Stderr)
	require.NoError(t, err)
	cycle := func(interrupt bool) {
		var log logBuffer
		app, err := app.New(cfg, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- app.Run(ctx) }()
		if interrupt { // at any moment of the start
			time.Sleep(rand.N(25 * time.Millisecond)) // that moment is the case
		} else {
			eventually(t, "it leads and serves", func() error {
				for _, line := range []string{"msg=leading", "msg=serving",
					`msg="stage started" stage=scheduler`} {
					if len(log.with(line)) == 0 {
						return errors.New(log.String())
					}
				}
				return nil
			})
		}
		cancel()
		if err := <-ended; !interrupt || !errors.Is(err, context.Canceled) {
			require.NoError(t, err, "%s", &log)
		}
		require.Empty(t, log.with("level=ERROR"))
		f.requireNoRow()
	}
	cycle(false) // what is made once per process
	before := goleak.IgnoreCurrent()
	descriptors := openDescriptors(t)
	for i := range sized(6, 20, 200) {
		cycle(i%2 == 1)
	}
	goleak.VerifyNone(t, before)
	eventually(t, "no file descriptor is left", func() error {
		now := openDescriptors(t)
		if len(now) > len(descriptors) {
			return fmt.Errorf("before: %q, after: %q", descriptors, now)
		}
		return nil
	})
}

// openDescriptors lists where the file descriptors of this process lead;
// nothing on a system that does not tell.
func openDescriptors(t *testing.T) (targets []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil { // not the one that ReadDir itself had open
			targets = append(targets, target)
		}
	}
	slices.Sort(targets)
	return targets
}
