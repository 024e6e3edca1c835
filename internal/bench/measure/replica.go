//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/mysql"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// replicaEnv holds the settings of a replica, as JSON.
const replicaEnv = "SCHEDLOCK_MEASURE_REPLICA"

// settings are what a replica is told.
type settings struct {
	Name  string
	DSN   string
	TTL   time.Duration // 0: the default
	Grace time.Duration // 0: the default
	Sign  bool          // on MariaDB: the end of the session is a sign of death
}

// What a replica says, each with a stamp, on its standard output.
const (
	saysMain      = "main"      // the Go runtime has started it
	saysOpened    = "opened"    // the database is open, its tables are up to date
	saysStandby   = "standby"   // has seen the holder of that term
	saysElected   = "elected"   // IsLeader answers yes
	saysRun       = "run"       // the first run of this replica has begun
	saysReleasing = "releasing" // the release is about to be sent
	saysReleased  = "released"  // the release was answered
	saysLooks     = "looks"     // how often it has looked at the lock row
)

// askLooks on its standard input makes it say saysLooks.
const askLooks = "looks"

// serveReplica must be called first. In a process that this program has started
// as a replica it is the whole program, and never returns.
func serveReplica() {
	text, ok := os.LookupEnv(replicaEnv)
	if !ok {
		return
	}
	say(saysMain, 0)
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = runReplica(s)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "replica %s: %v\n", s.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runReplica is an app as a user has it, with one job that no other has: so it
// has a run to start as soon as it leads, and no other within the hour.
func runReplica(s settings) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	seen := meter{stamps: true}
	go seen.answer(os.Stdin)
	lock := []schedlock.Option{schedlock.WithObserver(tell)}
	if s.TTL != 0 {
		lock = append(lock, schedlock.WithTTL(s.TTL))
	}
	if s.Grace != 0 {
		lock = append(lock, schedlock.WithSessionGrace(s.Grace))
	}
	app, err := startup.NewApp(startup.Config{
		Open: func(ctx context.Context) (driver.Store, error) {
			store, err := openStore(ctx, s.DSN, &seen, s.Sign)
			say(saysOpened, 0)
			return store, err
		},
		Jobs: []tasks.Job{{Name: fmt.Sprint("first run of ", s.Name, " at ", clock.System.Boot()),
			Spec: tasks.Every(time.Hour), AtOnce: true,
			Do: func(_ context.Context, run tasks.Run) error {
				say(saysRun, run.Term)
				return nil
			}}},
		Lock: lock,
		Log: slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	return app.Run(ctx)
}

// tell observes the lock.
func tell(e schedlock.Event) {
	switch e.Kind {
	case schedlock.EventStandby:
		say(saysStandby, e.Holder.Term)
	case schedlock.EventElected:
		say(saysElected, e.Term)
	case schedlock.EventReleased:
		say(saysReleased, e.Term)
	}
}

var saying sync.Mutex

// say writes one line. number is a term, or a count.
func say(what string, number int64) {
	at := clock.System.Boot()
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintln(os.Stdout, what, int64(at), number)
}

// A meter counts what a store is asked.
type meter struct {
	looks   atomic.Int64
	waiting atomic.Int64 // now, for a hint
	stamps  bool         // say when a release is sent
}

// answer answers the questions of the measuring program, and ends the process
// when that is gone.
func (m *meter) answer(questions io.Reader) {
	lines := bufio.NewScanner(questions)
	for lines.Scan() {
		if lines.Text() == askLooks {
			say(saysLooks, m.looks.Load())
		}
	}
	os.Exit(1)
}

// A fullStore is what each store has.
type fullStore interface {
	driver.Store
	ledger.Store
	io.Closer
}

// metered is a store with a meter.
type metered struct {
	fullStore
	seen *meter
}

func (m metered) Look(ctx context.Context) (driver.Snapshot, error) {
	m.seen.looks.Add(1)
	return m.fullStore.Look(ctx)
}

func (m metered) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	m.seen.looks.Add(1)
	return assess.LookAtSession(ctx, m.fullStore)
}

func (m metered) AwaitHint(ctx context.Context, view driver.Snapshot) driver.Release {
	m.seen.waiting.Add(1)
	defer m.seen.waiting.Add(-1)
	return m.fullStore.AwaitHint(ctx, view)
}

func (m metered) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (bool, error) {
	if m.seen.stamps {
		say(saysReleasing, ref.Term)
	}
	return m.fullStore.Release(ctx, ref, reason)
}

func isPostgres(dsn string) bool { return strings.HasPrefix(dsn, "postgres://") }

func isMariaDB(dsn string) bool { return strings.HasPrefix(dsn, "mysql://") }

// openStore opens a store with its tables up to date. sign is for MariaDB.
func openStore(ctx context.Context, dsn string, seen *meter, sign bool) (metered, error) {
	var open func(context.Context) (driver.Store, error) = sqlite.Opener(dsn)
	switch {
	case isPostgres(dsn):
		open = postgres.Opener(dsn, postgres.WithLogger(quiet))
	case isMariaDB(dsn):
		options := []mysql.Option{mysql.WithLogger(quiet)}
		if sign {
			options = append(options, mysql.WithSessionSign())
		}
		open = mysql.Opener(dsn, options...)
	}
	store, err := open(ctx)
	if err != nil {
		return metered{}, err
	}
	return metered{store.(fullStore), seen}, nil
}

var quiet = slog.New(slog.DiscardHandler)
