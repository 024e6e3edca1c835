package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ncruces/go-sqlite3"
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
			ref := acquire(t, s)
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

// A removingConnector removes the database when it has been opened, and its -wal file has not.
type removingConnector struct {
	sqldriver.Connector
	path string
}

func (c removingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err = errors.Join(err, os.Remove(c.path+suffix))
	}
	return conn, err
}

// Else it would migrate the file that is gone, and a -wal file would lie there that lets nobody
// make another database.
func TestADatabaseThatIsRemovedWhileItIsOpenedIsNotUsed(t *testing.T) {
	path := newStore(t).Path()
	connector, err := newConnector(fileURI(path) + "?mode=rw")
	require.NoError(t, err)
	db := sql.OpenDB(&pool{databaseFiles: must(findFiles(path)),
		Connector: removingConnector{connector, path}})
	defer db.Close()
	var changed *FileChangedError
	require.ErrorAs(t, db.PingContext(t.Context()), &changed)
	wal, err := os.Stat(path + "-wal")
	require.NoError(t, err, "it was opened before it was removed")
	require.Zero(t, wal.Size())
	require.NoError(t, mustOpen(t, path).Migrate(t.Context()))
}

// A brokenConnector counts how often a database is opened, and cannot be.
type brokenConnector struct {
	sqldriver.Connector
	opens int
}

func (c *brokenConnector) Connect(context.Context) (sqldriver.Conn, error) {
	c.opens++
	return nil, sqlite3.CANTOPEN
}

func TestADatabaseThatCannotBeOpenedIsNotOpenedAllTheTime(t *testing.T) {
	missing.Long(t, "opens it for an hour")
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	files, err := findFiles(path)
	require.NoError(t, err)
	files.readOnly = true // asks nobody else
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenConnector{}
		db := sql.OpenDB(&pool{databaseFiles: files, Connector: broken})
		defer db.Close()
		callers, began := 0, time.Now()
		for time.Since(began) < time.Minute {
			callers++
			require.ErrorIs(t, db.PingContext(t.Context()), sqlite3.CANTOPEN)
			time.Sleep(20 * time.Millisecond)
		}
		assert.Greater(t, broken.opens, 5, "it may have been mended")
		assert.Less(t, broken.opens, callers/100)
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			_ = db.PingContext(t.Context())
		}
		assert.Less(t, broken.opens, 2*3600/10)
	})
}

// Nobody has noticed yet that they are gone.
func TestAConnectionThatFindsOtherFilesThanThoseOfItsPoolIsRefused(t *testing.T) {
	for _, suffix := range []string{"-wal", "-shm", ""} {
		t.Run("app.db"+suffix, func(t *testing.T) {
			t.Parallel()
			path := unused(t)
			db, err := openPool(must(findFiles(path)), fileURI(path)+
				"?mode=rw&_pragma=journal_mode(wal)")
			require.NoError(t, err)
			defer db.Close()
			first, err := db.Conn(bg)
			require.NoError(t, err)
			defer first.Close()
			require.NoError(t, os.Remove(path+suffix))
			if suffix == "" {
				putDatabase(t, path)
			}
			_, err = db.Conn(bg)
			var changed *FileChangedError
			require.ErrorAs(t, err, &changed)
			assert.Equal(t, path+suffix, changed.Path)
			if suffix != "" {
				_, err = first.ExecContext(bg, `CREATE TABLE t (n)`)
				require.Error(t, err, "it would go to a file that nobody else finds")
			}
		})
	}
}

func TestWhoGivesUpPausesNobody(t *testing.T) {
	var p openPause
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, sqlite3.INTERRUPT,
		sqlite3.BUSY} {
		p.learn(err)
		require.NoError(t, p.over(), err)
	}
	p.learn(sqlite3.CANTOPEN)
	require.ErrorIs(t, p.over(), sqlite3.CANTOPEN)
	p.learn(context.Canceled)
	require.ErrorIs(t, p.over(), sqlite3.CANTOPEN)
	p.learn(nil)
	require.NoError(t, p.over())
}

func TestADatabaseThatWasMendedIsOpened(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	db, err := openPool(must(findFiles(s.Path())), fileURI(s.Path())+
		"?mode=rw&_pragma=journal_mode(wal)")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxIdleConns(-1)
	good, err := os.ReadFile(s.Path())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	spoil := func(content []byte) {
		file, err := os.OpenFile(s.Path(), os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.Write(content)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	spoil([]byte(strings.Repeat("no database", 100)))
	require.ErrorIs(t, db.PingContext(bg), sqlite3.NOTADB)
	spoil(good)
	require.Eventually(t, func() bool { return db.PingContext(bg) == nil }, soon, time.Millisecond)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A process that starts beside another one, which is making the database, sees no
// database, and a moment later both files.
func TestADatabaseThatIsJustBeingMadeIsNotMissing(t *testing.T) {
	missing.Long(t, "looks all the time")
	t.Parallel()
	dir := t.TempDir()
	for i := range 300 {
		path := filepath.Join(dir, fmt.Sprintf("%d.db", i))
		made := make(chan error, 1)
		go func() {
			made <- errors.Join(os.WriteFile(path, nil, 0o600),
				os.WriteFile(path+"-wal", []byte("w"), 0o600))
		}()
		for ended := false; !ended; {
			select {
			case err := <-made:
				require.NoError(t, err)
				ended = true
			default:
			}
			require.Zero(t, orphanWAL(path), "round %d", i)
		}
	}
}

// SQLite deletes what lies under the name of the -wal file of a new database.
func TestAMissingDatabaseWithAWALFileIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path+"-wal", []byte("committed"), 0o600))
	_, err := Open(t.Context(), path)
	require.ErrorContains(t, err, "with 9 bytes that a new database would delete")
	require.ErrorContains(t, err, path+"-wal away")
	require.NoFileExists(t, path)
	text, err := os.ReadFile(path + "-wal")
	require.NoError(t, err)
	require.Equal(t, "committed", string(text))
}
