package drivers

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/sqlitetest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/sqlite"
)

var bg = context.Background()

// drivers are how apps open a file: the name they give to sql.Open, and their
// words for a journal mode and a busy time-out. SQLite's writers do not queue, so
// on a busy machine one of four may wait for 5 s (seen), with or without a lock.
var drivers = map[string]struct{ name, params string }{
	"mattn":   {"sqlite3", "_journal_mode=%s&_busy_timeout=30000&_txlock=immediate"},
	"modernc": {"sqlite", "_pragma=journal_mode(%s)&_pragma=busy_timeout(30000)&_txlock=immediate"},
}

// modes are those that apps use: write-ahead log, and rollback journal.
var modes = []string{"wal", "delete"}

func openApp(via, path, mode, more string) (*sql.DB, error) {
	d := drivers[via]
	return sql.Open(d.name, "file:"+(&url.URL{Path: path}).EscapedPath()+
		"?"+fmt.Sprintf(d.params, mode)+more)
}

// app is an app's pool.
func app(t testing.TB, via, path, mode, more string) *sql.DB {
	t.Helper()
	db, err := openApp(via, path, mode, more)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func use(t testing.TB, db *sql.DB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Use(db).Open(bg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// each runs a test on every driver, in every journal mode.
func each(t *testing.T, test func(t *testing.T, via, mode string)) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		for _, mode := range modes {
			t.Run(via+"/"+mode, func(t *testing.T) {
				t.Parallel()
				test(t, via, mode)
			})
		}
	}
}

func run(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(bg, query, args...)
	require.NoError(t, err)
}

// The rules of every Store, on every driver.
func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		if mode != "wal" {
			missing.Long(t, "is not in WAL mode")
		}
		locktest.Run(t, func(t testing.TB) locktest.Database {
			t.(*testing.T).Parallel()
			return database(t, via, mode)
		})
	})
}

func database(t testing.TB, via, mode string) locktest.Database {
	path := filepath.Join(t.TempDir(), "app.db")
	db := app(t, via, path, mode, "")
	first := use(t, db)
	conn, err := db.Conn(bg)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	d := sqlitetest.Database{DB: db, Conn: conn}.Lock()
	d.Open = func(t testing.TB) driver.Store {
		s := use(t, app(t, via, path, mode, ""))
		if mode == "wal" {
			return s
		}
		return patient{s}
	}
	if first.ProofOfDeath() != nil {
		d.Without = []locktest.Feature{locktest.Hints}
	}
	return d
}

// Named locks and queues, on every driver.
func TestConformanceOfNamedLocksAndQueues(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		fresh := func(t testing.TB) (db sqlitetest.Database, open func(testing.TB) *sqlite.Store) {
			path := filepath.Join(t.TempDir(), "app.db")
			db.DB = app(t, via, path, "wal", "")
			use(t, db.DB)
			var err error
			db.Conn, err = db.DB.Conn(bg)
			require.NoError(t, err)
			t.Cleanup(func() { db.Conn.Close() })
			return db, func(t testing.TB) *sqlite.Store {
				return use(t, app(t, via, path, "wal", ""))
			}
		}
		t.Run(via+"/named", func(t *testing.T) {
			t.Parallel()
			locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
				t.(*testing.T).Parallel()
				db, open := fresh(t)
				d := db.Named()
				d.Open = func(t testing.TB) namedlock.Store { return open(t).Named() }
				return d
			})
		})
		t.Run(via+"/queue", func(t *testing.T) {
			t.Parallel()
			locktest.RunQueue(t, func(t testing.TB) locktest.QueueDatabase {
				t.(*testing.T).Parallel()
				db, open := fresh(t)
				d := db.Queue()
				d.Open = func(t testing.TB) taskqueue.Store { return open(t).Queue() }
				return d
			})
		})
	}
}

// A patient store repeats a look, as the lock does: with a rollback journal a
// reader waits for writers, and one that waits for many in turn gives up.
type patient struct{ *sqlite.Store }

func (p patient) Look(ctx context.Context) (driver.Snapshot, error) {
	for {
		v, err := p.Store.Look(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "database is locked") {
			return v, err
		}
	}
}

// With its descriptors closed, Opener's driver would drop the app's locks.
func TestOpenerRefusesAFileThatTheAppHasOpen(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		path := filepath.Join(t.TempDir(), "app.db")
		db := app(t, via, path, mode, "")
		run(t, db, `CREATE TABLE t (x)`)
		_, err := sqlite.Opener(path)(bg)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "sqlite.Use(db)")
		require.NoFileExists(t, path+"-lease")
		use(t, db)
	})
}

// The driver is linked into the app, but has another file open.
func TestOpenerWorksInAnAppWithAnotherDriver(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		run(t, app(t, via, filepath.Join(t.TempDir(), "app.db"), mode, ""), `CREATE TABLE t (x)`)
		store, err := sqlite.Opener(filepath.Join(t.TempDir(), "lock.db")).Open(bg)
		require.NoError(t, err)
		require.NoError(t, store.Close())
	})
}

func TestAPoolOfOneIsRefusedAndOneOfTwoWorks(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		db := app(t, via, filepath.Join(t.TempDir(), "app.db"), mode, "")
		db.SetMaxOpenConns(1)
		_, err := sqlite.Use(db)(bg)
		require.ErrorContains(t, err, "db.SetMaxOpenConns(2)")
		db.SetMaxOpenConns(2)
		conn, err := db.Conn(bg) // the one that the app had before
		require.NoError(t, err)
		defer conn.Close()
		lock, lease := lead(t, use(t, db))
		run(t, conn, `CREATE TABLE t (x)`)
		require.NoError(t, lock.IsLeader(bg))
		require.NoError(t, lease.Release(bg))
	})
}

func lead(t testing.TB, s driver.Store) (*schedlock.Lock, *schedlock.Lease) {
	t.Helper()
	lock, err := schedlock.New(s, schedlock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	lease, err := lock.Wait(ctx)
	require.NoError(t, err)
	return lock, lease
}

// Replicas that do not lock each other out could all lead.
func TestADriverWhoseLocksOthersCannotSeeIsRefused(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		for _, params := range []string{"&nolock=1", "&vfs=unix-none", "&vfs=unix-dotfile"} {
			t.Run(via+params, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "app.db")
				run(t, app(t, via, path, "delete", ""), `CREATE TABLE t (x)`)
				_, err := sqlite.Use(app(t, via, path, "delete", params))(bg)
				require.ErrorContains(t, err, path)
				require.ErrorContains(t, err,
					"without a lock on the file that other processes could see")
			})
		}
		for _, params := range []string{"&mode=memory", "&immutable=1"} {
			t.Run(via+params, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "app.db")
				run(t, app(t, via, path, "delete", ""), `CREATE TABLE t (x)`)
				_, err := sqlite.Use(app(t, via, path, "delete", params))(bg)
				require.Error(t, err)
			})
		}
	}
}

// Until the files are in their place nobody leads, and the driver's own
// connection stays open: closing it could move what is lost over what is there.
func TestALeaderWhoseFilesAreTakenAwayLosesItsLease(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		for _, suffix := range []string{"", "-wal", "-shm", "-lease"} {
			for how, harm := range map[string]func(*testing.T, string){
				"removed": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
				"replaced": func(t *testing.T, path string) {
					require.NoError(t, os.WriteFile(path+".new", nil, 0o600))
					require.NoError(t, os.Rename(path+".new", path))
				},
			} {
				t.Run(via+"/app.db"+suffix+" "+how, func(t *testing.T) {
					t.Parallel()
					s := use(t, app(t, via, filepath.Join(t.TempDir(), "app.db"), "wal", ""))
					if suffix == "-lease" && s.ProofOfDeath() != nil {
						missing.Skip(t, "a proof of death: %v", s.ProofOfDeath())
					}
					_, lease := lead(t, s)
					harm(t, s.Path()+suffix)
					loss := make(chan error, 1)
					go func() { loss <- s.AwaitLoss(bg, lease.Ref()) }()
					select {
					case err := <-loss:
						changed := (*sqlite.FileChangedError)(nil)
						require.ErrorAs(t, err, &changed)
						assert.Equal(t, s.Path()+suffix, changed.Path)
					case <-time.After(30 * time.Second):
						t.Fatal("it was not noticed")
					}
					_, err := s.Heartbeat(bg, lease.Ref(), driver.StateLeading)
					assert.ErrorIs(t, err, schedlock.ErrLost)
				})
			}
		}
	}
}

// The process goes on working on files that nobody else will find.
func TestAPoolThatHasLostFilesOpenIsRefused(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		for _, gone := range []string{"", "-wal", "-shm"} {
			t.Run(via+"/app.db"+gone, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "app.db")
				db := app(t, via, path, "wal", "")
				conn, err := db.Conn(bg)
				require.NoError(t, err)
				defer conn.Close()
				run(t, conn, `CREATE TABLE t (x)`)
				raw, err := os.ReadFile(path + gone)
				require.NoError(t, err)
				require.NoError(t, os.Remove(path+gone))
				if gone == "" {
					require.NoError(t, os.WriteFile(path, raw, 0o600))
				}
				_, err = sqlite.Use(db)(bg)
				require.Error(t, err)
				if gone != "-wal" { // SQLite itself fails then: "disk I/O error"
					require.ErrorContains(t, err, path+gone)
				}
			})
		}
	}
}

// Closed as the last one it would move what is in the removed -wal file over what
// others have written since.
func TestAConnectionToRemovedFilesStaysOpen(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		t.Run(via, func(t *testing.T) {
			t.Parallel()
			db := app(t, via, filepath.Join(t.TempDir(), "app.db"), "wal", "")
			s, err := sqlite.Use(db).Open(bg)
			require.NoError(t, err)
			_, lease := lead(t, s)
			require.NoError(t, os.Remove(s.Path()+"-wal"))
			_, err = s.Heartbeat(bg, lease.Ref(), driver.StateLeading)
			require.ErrorIs(t, err, schedlock.ErrLost)
			require.NoError(t, s.Close())
			require.NoError(t, db.Close())
			open, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				missing.Skip(t, "/proc: %v", err)
			}
			require.True(t, slices.ContainsFunc(open, func(fd os.DirEntry) bool {
				path, _ := os.Readlink("/proc/self/fd/" + fd.Name())
				return path == s.Path()+"-wal (deleted)"
			}))
		})
	}
}

// A rollback journal may be given up for a -wal file while the lock is in use.
func TestAJournalModeThatChangesLaterIsNoticed(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		t.Run(via, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "app.db")
			s := use(t, app(t, via, path, "delete", ""))
			_, lease := lead(t, s)
			run(t, app(t, via, path, "wal", ""), `CREATE TABLE t (x)`)
			_, err := s.Heartbeat(bg, lease.Ref(), driver.StateLeading)
			require.NoError(t, err)
			require.FileExists(t, path+"-wal")
			require.NoError(t, os.Remove(path+"-wal"))
			_, err = s.Heartbeat(bg, lease.Ref(), driver.StateLeading)
			assert.ErrorIs(t, err, schedlock.ErrLost)
		})
	}
}

// The errors of each driver are known by what SQLite says.
func TestErrorsOfEveryDriverAreExplained(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		path := filepath.Join(t.TempDir(), "app.db")
		require.NoError(t, os.WriteFile(path,
			[]byte("this is no database, whatever its name may say"), 0o600))
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		_, err := sqlite.Use(app(t, via, path, mode, ""))(ctx)
		require.ErrorContains(t, err, "file is not a database")
		require.NoError(t, ctx.Err())

		path = filepath.Join(t.TempDir(), "app.db")
		db := app(t, via, path, mode, "")
		s := use(t, db)
		tx, err := db.BeginTx(bg, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		run(t, tx, `CREATE TABLE t (x)`)
		_, err = s.Heartbeat(bg, driver.Ref{Token: driver.NewToken(), Term: 1}, driver.StateLeading)
		require.ErrorContains(t, err, "database is locked")
		require.NotErrorIs(t, err, schedlock.ErrLost)
	})
}

func TestMigrationsOfEveryDriver(t *testing.T) {
	each(t, func(t *testing.T, via, mode string) {
		db := app(t, via, filepath.Join(t.TempDir(), "app.db"), mode, "")
		use(t, db)
		version, err := migrations.Version(bg, db, migrations.SQLite)
		require.NoError(t, err)
		assert.Equal(t, migrations.Latest, version)
		var now string
		require.NoError(t, db.QueryRow(`PRAGMA journal_mode`).Scan(&now))
		assert.Equal(t, mode, now, "the app's journal mode stays")
	})
}
