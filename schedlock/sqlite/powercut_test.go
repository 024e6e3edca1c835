package sqlite

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/acknowledged"
	"example.com/schedlock/internal/missing"
)

var everyCut = flag.Bool("sqlite.powercuts", false,
	"cut the power after every step, with every policy, and let each fail, not only a few")

// seldom is how much rarer than in a full run the power is cut, or a step fails.
func seldom() int {
	if missing.Full() {
		return 1
	}
	return 3
}

// drawings is how many policies there are that draw what is left.
const drawings = 5

// A history is that of a process on a disk.
type history struct {
	*disk
	acknowledged.History
	t testing.TB
}

// begins returns a history that has not begun, on a database that is there or on a new one.
func begins(t *testing.T, there bool) *history {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	if there {
		putDatabase(t, filepath.Join(folder, "app.db"))
	}
	h := on(newDisk(t, folder))
	h.t = t
	return h
}

func on(d *disk) *history {
	h := &history{disk: d}
	h.Open = func(context.Context) (acknowledged.Store, error) {
		s, err := h.disk.open("app.db")
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	h.Steps, h.Sessions = h.now, 3
	h.Between = func(s acknowledged.Store) error {
		_, err := s.(*Store).DB().Exec(`PRAGMA wal_checkpoint(RESTART)`)
		return err
	}
	return h
}

// lived returns what has happened when nothing has failed. The last connection of each
// session removes the -wal file, and the next one makes it anew.
func lived(t *testing.T, there bool) *history {
	t.Helper()
	h := begins(t, there)
	require.NoError(t, h.Live(bg))
	return h
}

// survives opens what a cut has left, and returns what is not as it was told.
func (h *history) survives(folder string, cut int) error {
	path := filepath.Join(folder, "app.db")
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	if !h.Told(cut) && !exists(path) {
		return nil // nobody was told that there is one
	}
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	var sound string
	err = s.DB().QueryRowContext(ctx, `PRAGMA quick_check`).Scan(&sound)
	if err != nil || sound != "ok" {
		return fmt.Errorf("the database is damaged: %s: %w", sound, err)
	}
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	return h.Check(ctx, s, cut)
}

// cutAll cuts the power after each step that is chosen, and returns how often something was
// not as it was told, and the first of these.
func (h *history) cutAll(change func(*replay), chosen func(n int, p policy) bool) (cuts,
	lost int, first error) {
	r := h.replay()
	change(r)
	for n := 0; ; n++ {
		for p := range firstDrawing + drawings {
			if !chosen(n, p) {
				continue
			}
			folder, err := os.MkdirTemp("", "schedlock")
			require.NoError(h.t, err)
			r.cut(h.t, p, n, folder)
			err = h.survives(folder, n)
			require.NoError(h.t, os.RemoveAll(folder))
			cuts++
			if err != nil {
				if lost++; first == nil {
					first = fmt.Errorf("cut after step %d of %d, which leaves %v: %w", n,
						len(h.steps), p, err)
				}
			}
		}
		if n == len(h.steps) {
			return cuts, lost, first
		}
		r.step(h.steps[n])
	}
}

func TestNoPowerCutLosesWhatWasAcknowledged(t *testing.T) {
	missing.Long(t, "cuts the power often")
	t.Parallel()
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("there %v", there), func(t *testing.T) {
			t.Parallel()
			h := lived(t, there)
			at := 0
			cuts, lost, first := h.cutAll(func(*replay) {}, func(int, policy) bool {
				at++
				return *everyCut || at%(61*seldom()) == 0
			})
			t.Logf("%d cuts after %d steps", cuts, len(h.steps))
			require.NoError(t, first, "%d of %d cuts", lost, cuts)
		})
	}
}

// What the test above could not see it would not tell.
func TestPowerCutsOnABadDiskAreNoticed(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	h := lived(t, true)
	few := func(n int, p policy) bool { return n%(29*seldom()) == 0 && p < firstDrawing }
	for what, change := range map[string]func(*replay){
		"syncs of -wal files do nothing": func(r *replay) { r.lies = true },
		// This is what the driver does by itself, see syncNames.
		"syncs of the folder do nothing": func(r *replay) { r.forgets = true },
	} {
		cuts, lost, first := h.cutAll(change, few)
		t.Logf("%s: %d of %d cuts lose something, the first: %v", what, lost, cuts, first)
		require.Error(t, first, what)
	}
}

func TestNamesAreDurableBeforeAnythingIsCommitted(t *testing.T) {
	t.Parallel()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	synced := func(d *disk) bool {
		return slices.ContainsFunc(d.steps, func(s step) bool { return s.kind == syncNames })
	}
	above, within := newDisk(t, folder), newDisk(t, filepath.Join(folder, "new", "deep"))
	mustOpen(t, filepath.Join(folder, "new", "deep", "app.db"))
	require.True(t, synced(above), "a folder was made")
	require.True(t, synced(within), "files were made")

	putDatabase(t, filepath.Join(folder, "app.db"))
	pool := appPool(t, "file:"+filepath.Join(folder, "app.db")+"?_pragma=journal_mode(wal)")
	above.steps = nil
	storeOn(t, pool)
	require.True(t, synced(above), "a pool of the app's has made a -wal file")
}

// A disk that fails once, wherever that is, costs at most what was not acknowledged, and the
// same process goes on when it works again.
func TestNoErrorOfTheDiskLosesWhatWasAcknowledged(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	for _, there := range []bool{true, false} {
		steps := lived(t, there).tried
		failures := 0
		for n := 1; n <= steps; n++ {
			if !*everyCut && n%(23*seldom()) != 0 {
				continue
			}
			h := begins(t, there)
			h.failAt = n
			failed := h.Live(bg)
			require.GreaterOrEqual(t, h.tried, n)
			if h.Store != nil {
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				require.Eventually(t, func() bool {
					return h.Store.Migrate(ctx) == nil && acknowledged.GoesOn(ctx, h.Store) == nil
				}, time.Minute, time.Millisecond, "it does not go on after failure %d: %v", n, failed)
				cancel()
			}
			err := h.survives(h.folder, len(h.steps))
			require.NoError(t, err, "failure %d of %d: %v", n, steps, failed)
			if h.Store != nil {
				_ = h.Store.Close()
			}
			if failed != nil {
				failures++
			}
		}
		t.Logf("there %v: %d things can fail, %d failures were answered by an error", there, steps,
			failures)
		require.NotZero(t, failures)
	}
}
