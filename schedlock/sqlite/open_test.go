package sqlite

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

func TestAFileThatIsGoneOrReplacedIsLost(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, s *Store){
		"unlinked": func(t *testing.T, s *Store) { require.NoError(t, os.Remove(s.Path())) },
		"moved away": func(t *testing.T, s *Store) {
			require.NoError(t, os.Rename(s.Path(), s.Path()+".old"))
		},
		"its folder moved away": func(t *testing.T, s *Store) {
			dir := filepath.Dir(s.Path())
			require.NoError(t, os.Rename(dir, dir+".old"))
			t.Cleanup(func() { os.Rename(dir+".old", dir) })
		},
		"replaced by an older copy of itself": func(t *testing.T, s *Store) {
			raw, err := os.ReadFile(s.Path() + ".copy")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(s.Path()+".new", raw, 0o600))
			require.NoError(t, os.Rename(s.Path()+".new", s.Path()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			run(t, foreign(t, s), `VACUUM INTO '`+s.Path()+`.copy'`)
			ref := acquire(t, s, nobody)
			beat(t, s, ref)
			named := s.Named()
			held := takeNamed(t, named, namedClaim(lockA, time.Minute, 0))
			harm(t, s)
			before := listing(t, filepath.Dir(filepath.Dir(s.Path())))
			wal, _ := os.ReadFile(s.Path() + "-wal") // not there if its folder was moved

			_, err := s.Heartbeat(bg, ref, driver.StateLeading)
			require.ErrorIs(t, err, driver.ErrLost)
			changed, ok := errors.AsType[*FileChangedError](err)
			require.True(t, ok)
			assert.Equal(t, s.Path(), changed.Path)
			assert.Equal(t, name != "replaced by an older copy of itself",
				errors.Is(err, os.ErrNotExist))
			assert.ErrorContains(t, err, s.Path())
			for name, op := range ops(bg, s, ref) {
				err := op()
				switch name {
				case "release":
					assert.NoError(t, err, "the row went with its file")
				case "jobs", "run", "retries", "inbox": // they read what is open
				default:
					assert.ErrorAs(t, err, &changed, name)
				}
			}
			_, err = named.Extend(bg, held, time.Minute)
			assert.ErrorIs(t, err, driver.ErrLost)
			assert.ErrorAs(t, err, &changed)
			_, _, err = named.Take(bg, namedClaim(lockA, time.Minute, 0))
			assert.ErrorAs(t, err, &changed)
			now, _ := os.ReadFile(s.Path() + "-wal")
			assert.True(t, bytes.Equal(wal, now), "pages were written beside another file")
			assert.Equal(t, before, listing(t, filepath.Dir(filepath.Dir(s.Path()))),
				"nothing was created in its place")
		})
	}
}

// As when another program has just begun to fill the file: SQLite does not
// wait by itself where the journal mode is set.
func TestOpenWaitsForWhoeverHoldsTheFile(t *testing.T) {
	missing.Long(t, "waits for a writer")
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	conn, err := appPool(t, "file:"+path).Conn(bg)
	require.NoError(t, err)
	defer conn.Close()
	run(t, conn, `CREATE TABLE theirs (x)`)
	run(t, conn, `BEGIN EXCLUSIVE`)

	began := time.Now()
	_, err = Open(lasting(t, 100*time.Millisecond), path)
	require.Error(t, err)
	assert.Less(t, time.Since(began), 20*time.Second)

	opened := make(chan error, 1)
	go func() {
		s, err := Open(bg, path)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(3 * busyTimeout): // longer than one statement waits
	}
	run(t, conn, `COMMIT`)
	assert.NoError(t, <-opened)
}

// A web page that looks at the history must not put an empty database where
// the old one was.
func TestADeletedFileIsNotMadeAnewByAConnection(t *testing.T) {
	for _, mode := range []string{"", "?mode=rwc"} { // the second is for the first opening only
		t.Run(mode, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			s := mustOpen(t, fileURI(path)+mode)
			for _, suffix := range []string{"", "-wal", "-shm"} {
				require.NoError(t, os.Remove(path+suffix))
			}
			s.DB().SetMaxIdleConns(0) // those that come are new
			for range 10 {
				_, _ = s.Runs(t.Context(), "", 1)
				_, _ = s.Look(t.Context())
			}
			require.NoFileExists(t, path)
		})
	}
}
