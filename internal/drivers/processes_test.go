package drivers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

var starts = flag.Int("starts", 3,
	"how often four processes start at once, for each driver and journal mode")

// The test binary is its own replica: with this variable set it runs one.
const replicaEnv = "DRIVERS_TEST_REPLICA"

func TestMain(m *testing.M) {
	if replica := os.Getenv(replicaEnv); replica != "" {
		via, rest, _ := strings.Cut(replica, " ")
		mode, path, _ := strings.Cut(rest, " ")
		if err := runReplica(via, mode, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	child.InMemory()
	_ = flag.Set("test.parallel", "8") // most tests wait; -parallel overrides it
	os.Exit(m.Run())
}

// writes is how many transactions an app does of its own while it starts, and
// terms how often it leads.
const (
	writes = 30
	terms  = 2
)

// runReplica is an app with data of its own. It writes all the while, becomes
// the leader, writes as such, and gives the lock back. "opener" is one on
// sqlite.Opener, as another program of the same fleet may be.
func runReplica(via, mode, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	open := sqlite.Opener(path)
	if via != "opener" {
		db, err := openApp(via, path, mode, "")
		if err != nil {
			return err
		}
		defer db.Close()
		db.SetMaxOpenConns(4)
		open = sqlite.Use(db)
		// The app works before the lock is there, and at the same time.
		done := make(chan error, 1)
		go func() {
			for range writes {
				began := time.Now()
				if _, err := db.ExecContext(ctx, `INSERT INTO data (text) VALUES (?)`,
					via); err != nil {
					done <- fmt.Errorf("the app's own write, after %v: %w", time.Since(began), err)
					return
				}
				// writers that never pause starve each other, with or without a lock
				time.Sleep(rand.N(10 * time.Millisecond))
			}
			done <- nil
		}()
		defer func() { <-done }()
		if err := leadThrough(ctx, open); err != nil {
			return err
		}
		err = <-done
		done <- nil
		return err
	}
	return leadThrough(ctx, open)
}

func leadThrough(ctx context.Context, open func(context.Context) (driver.Store,
	error)) (err error) {
	store, err := open(ctx)
	if err != nil {
		return err
	}
	s := store.(*sqlite.Store)
	defer func() { err = errors.Join(err, s.Close()) }()
	lock, err := schedlock.New(s, schedlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	for range terms {
		if err := leadOnce(ctx, s, lock); err != nil {
			return err
		}
	}
	return nil
}

func leadOnce(ctx context.Context, s *sqlite.Store, lock *schedlock.Lock) error {
	lease, err := lock.Wait(ctx)
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	for _, step := range []string{
		`UPDATE leaders SET now = now + 1, most = max(most, now + 1), ever = ever + 1`,
		`UPDATE leaders SET now = now - 1`,
	} {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		if err := s.Fence(ctx, tx, lease.Ref()); err != nil {
			return errors.Join(fmt.Errorf("fence: %w", err), tx.Rollback())
		}
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return errors.Join(fmt.Errorf("a leader's write: %w", err), tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("a leader's commit: %w", err)
		}
		if err := insist(ctx, lease.Heartbeat); err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
	}
	if err := lease.Err(); err != nil {
		return fmt.Errorf("the lease was lost: %w", err)
	}
	return insist(ctx, lease.Release)
}

// insist repeats what found the database busy, as tasks.Runner does.
func insist(ctx context.Context, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "database is locked") {
			return err
		}
	}
}

// existing is a database that apps have used for long.
func existing(t *testing.T, via, mode string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "app.db")
	db, err := openApp(via, path, mode, "")
	require.NoError(t, err)
	run(t, db, `CREATE TABLE data (id INTEGER PRIMARY KEY, text TEXT NOT NULL)`)
	run(t, db, `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000)
		INSERT INTO data SELECT n, 'old' FROM c`)
	run(t, db, `CREATE TABLE leaders (now INTEGER, most INTEGER, ever INTEGER)`)
	run(t, db, `INSERT INTO leaders VALUES (0, 0, 0)`)
	require.NoError(t, db.Close())
	return path
}

func startAtOnce(t *testing.T, mode string, drivers ...string) {
	t.Helper()
	writers := 0
	path := existing(t, drivers[0], mode)
	var all sync.WaitGroup
	for _, via := range drivers {
		if via != "opener" {
			writers++
		}
		all.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), replicaEnv+"="+via+" "+mode+" "+path)
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s: %s", via, out)
		})
	}
	all.Wait()
	db := app(t, drivers[0], path, mode, "")
	var now, most, ever, data, ended int
	var integrity string
	require.NoError(t, db.QueryRow(`SELECT now, most, ever FROM leaders`).Scan(&now, &most, &ever))
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM data`).Scan(&data))
	require.NoError(t,
		db.QueryRow(`SELECT count(*) FROM scheduler_terms
			WHERE end_reason = 'released'`).Scan(&ended))
	require.NoError(t, db.QueryRow(`PRAGMA integrity_check`).Scan(&integrity))
	assert.Zero(t, now)
	assert.Equal(t, 1, most, "so many led at once")
	assert.Equal(t, len(drivers)*terms, ever, "every write of a leader is there")
	assert.Equal(t, len(drivers)*terms, ended, "every term was released, none lost")
	assert.Equal(t, 1000+writers*writes, data, "every write of the app is there")
	assert.Equal(t, "ok", integrity)
}

func TestFourProcessesStartAtOnceOnADatabaseThatExists(t *testing.T) {
	for _, via := range slices.Sorted(maps.Keys(drivers)) {
		for _, mode := range modes {
			t.Run(via+"/"+mode, func(t *testing.T) {
				for range *starts {
					if startAtOnce(t, mode, via, via, via, via); t.Failed() {
						return
					}
				}
			})
		}
	}
}

// In a fleet each process may have another driver; in a process all must use one.
func TestProcessesWithDifferentDriversShareAFile(t *testing.T) {
	for range *starts {
		if startAtOnce(t, "wal", "mattn", "modernc", "opener", "opener"); t.Failed() {
			return
		}
	}
}
