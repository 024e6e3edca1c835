package sqlite

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// beside is every file in a folder, with its bytes and the time of its last
// change; of the shared memory only that it is there.
func beside(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "-shm") {
			found[e.Name()] = ""
			continue
		}
		info, err := e.Info()
		require.NoError(t, err)
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		found[e.Name()] = info.ModTime().String() + string(raw)
	}
	return found
}

func TestReadMakesAndChangesNothing(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, path string) (view driver.Snapshot) {
		before := beside(t, filepath.Dir(path))
		require.NoError(t, Read(bg, path, func(ctx context.Context, s *Store) (err error) {
			if view, err = s.Look(ctx); err != nil {
				return err
			}
			for _, read := range []func() error{
				func() error { _, err := s.Terms(ctx, 10); return err },
				func() error { _, err := s.Jobs(ctx); return err },
				func() error { _, err := s.Runs(ctx, "", 10); return err },
				func() error { _, err := s.Pending(ctx); return err },
			} {
				if err := read(); err != nil {
					return err
				}
			}
			_, err = s.Pause(ctx, ledger.Action{By: "nobody"})
			assert.Error(t, err, "it wrote")
			return nil
		}))
		assert.Equal(t, before, beside(t, filepath.Dir(path)))
		return view
	}
	t.Run("of a database that nobody uses", func(t *testing.T) {
		assert.Nil(t, look(t, unused(t)).Row)
	})
	t.Run("of one that is in use", func(t *testing.T) {
		s := newStore(t)
		ref := acquire(t, s)
		view := look(t, s.Path())
		require.NotNil(t, view.Row)
		assert.Equal(t, ref.Term, view.Row.Term)
		if s.ProofOfDeath() == nil {
			assert.Equal(t, driver.SignAlive, view.Sign)
		}
	})
	t.Run("of one whose lease file is lost", func(t *testing.T) {
		s := newStore(t)
		acquire(t, s)
		require.NoError(t, os.Remove(s.Path()+"-lease"))
		assert.Equal(t, driver.SignNone, look(t, s.Path()).Sign)
	})
}

// A file that was read without a lock, because nobody wrote, is read again if
// somebody has written meanwhile, whether or not the -wal file stays.
func TestReadLooksAgainIfSomebodyWrites(t *testing.T) {
	t.Parallel()
	for _, stays := range []bool{true, false} {
		path := unused(t)
		calls := 0
		var jobs []ledger.Job
		require.NoError(t, Read(bg, path, func(ctx context.Context, s *Store) (err error) {
			if calls++; calls == 1 {
				db := appPool(t, "file:"+path)
				_, err = db.Exec(`INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
					VALUES ('new', 'x', '2026-01-01T00:00:00.000000Z', 'x')`)
				require.NoError(t, err)
				if !stays {
					require.NoError(t, db.Close())
				}
			}
			jobs, err = s.Jobs(ctx)
			return err
		}))
		assert.Equal(t, 2, calls)
		assert.Len(t, jobs, 1)
	}
}

// Others may open and close it for longer than one -wal file is waited for.
func TestReadWaitsForEachWALFileThatIsJustBeingRemoved(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	path := unused(t)
	begun := time.Now()
	over := false
	require.NoError(t, Read(bg, path, func(ctx context.Context, s *Store) error {
		_, err := s.Jobs(ctx)
		if over {
			return err
		}
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Now())) // somebody has written
		if over = time.Since(begun) > settle; over {
			wal := path + "-wal"
			require.NoError(t, os.WriteFile(wal, []byte("w"), 0o600))
			removed := make(chan error, 1)
			time.AfterFunc(settle/10, func() { removed <- os.Remove(wal) })
			t.Cleanup(func() { assert.NoError(t, <-removed) })
		}
		return err
	}))
	assert.True(t, over)
}

func TestReadAndOpenExistingNeedAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "app.db"),
		filepath.Join(dir, "no", "folder", "app.db")} {
		err := Read(bg, path, func(context.Context, *Store) error { panic("called") })
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, path)
		_, err = OpenExisting(bg, path)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	assert.Empty(t, beside(t, dir))
	require.ErrorContains(t, Read(bg, dir, nil), "is a directory")
	require.ErrorContains(t, Read(bg, ":memory:", nil), "in memory")
}

func TestReadWithoutSharedMemory(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	s := newStore(t)
	acquire(t, s)
	dir := t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		raw, err := os.ReadFile(s.Path() + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "app.db"+suffix), raw, 0o600))
	}
	before := beside(t, dir)
	err := Read(bg, filepath.Join(dir, "app.db"), nil)
	require.ErrorContains(t, err, "no -shm file")
	assert.Equal(t, before, beside(t, dir))
}

// A tool leaves the app's settings as they are.
func TestOpenExistingKeepsTheJournalMode(t *testing.T) {
	t.Parallel()
	path := unused(t)
	mode := func(set string) string {
		db := appPool(t, "file:"+path)
		defer db.Close()
		return ask[string](t, db, `PRAGMA journal_mode`+set)
	}
	require.Equal(t, "delete", mode("=delete"))
	s, err := OpenExisting(bg, path)
	require.NoError(t, err)
	assert.NoFileExists(t, path+"-lease")
	ref := acquire(t, s)
	_, err = schedlock.Revoke(bg, s, ref.Term, "ann", "")
	require.NoError(t, err)
	assert.Equal(t, driver.StateRevoked, look(t, s).Row.State)
	release(t, s, ref)
	require.NoError(t, s.Close())
	assert.Equal(t, "delete", mode(""))
}
