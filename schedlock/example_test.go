package schedlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/sqlite"
)

var (
	silent   = schedlock.WithLogger(slog.New(slog.DiscardHandler))
	replicaA = schedlock.WithOwner(driver.Owner{PID: 1, Hostname: "a"})
	replicaB = schedlock.WithOwner(driver.Owner{PID: 1, Hostname: "b"})
)

// An operator's tool asks who leads.
func ExampleGetLockInfo() {
	ctx := context.Background()
	store := memory.New() // or sqlite.Open(ctx, "file:app.db")

	info, err := schedlock.GetLockInfo(ctx, store)
	fmt.Println(info, err) // free is not an error

	lock, err := schedlock.New(store, silent, replicaA)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Stop(ctx)
	if _, err := lock.Acquire(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if info, err = schedlock.GetLockInfo(ctx, store); err != nil {
		fmt.Println(err) // "could not read" never looks like "free"
		return
	}
	fmt.Printf("pid %d on host %q is %s; it beats every %v\n",
		info.PID, info.Hostname, info.State, info.Timing.HeartbeatInterval)
	// Output:
	// <nil> <nil>
	// pid 1 on host "a" is leading; it beats every 10s
}

// One try: an app that must not start while another replica leads.
func ExampleLock_Acquire() {
	ctx := context.Background()
	store := memory.New()
	a, err := schedlock.New(store, silent, replicaA)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := schedlock.New(store, silent, replicaB)
	if err != nil {
		fmt.Println(err)
		return
	}

	lease, err := a.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = b.Acquire(ctx)
	fmt.Println(errors.Is(err, schedlock.ErrHeld))
	if held, ok := errors.AsType[*schedlock.HeldError](err); ok {
		fmt.Printf("held by pid %d on host %q\n", held.Info.PID, held.Info.Hostname)
	}

	if err := lease.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	next, err := b.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer next.Release(ctx)
	fmt.Println("terms grow:", next.Term() > lease.Term())
	// Output:
	// true
	// held by pid 1 on host "a"
	// terms grow: true
}

// Only the lock: campaign, lead, campaign again, until the context ends. Here the
// function ends the example once it has led.
func ExampleLock_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lock, err := schedlock.New(memory.New(), silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = lock.Run(ctx, func(ctx context.Context, lease *schedlock.Lease) error {
		fmt.Println("leads:", lock.IsLeader(ctx) == nil)
		cancel()     // as SIGTERM does
		<-ctx.Done() // or the lease was lost, or an operator wants another replica to lead
		return nil
	})
	fmt.Println("stopped:", err)
	// Output:
	// leads: true
	// stopped: <nil>
}

// An app that has a gocron scheduler passes it the lock: of all replicas, only
// the leader's jobs run. It starts the lock first, and stops it last.
func ExampleLock_Start() {
	ctx := context.Background()
	store := memory.New() // or sqlite.Opener("file:app.db").Open(ctx)
	lock, err := schedlock.New(store, silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	lock.Start()

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(lock))
	if err != nil {
		fmt.Println(err)
		return
	}
	ran := make(chan struct{}, 100)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() {
		if len(ran) == 0 {
			fmt.Println("imports the lists")
		}
		ran <- struct{}{}
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	scheduler.Start()
	<-ran // an app waits for SIGTERM

	if err := scheduler.Shutdown(); err != nil { // first: its jobs return
		fmt.Println(err)
	}
	if err := lock.Stop(ctx); err != nil { // last: another replica leads at once
		fmt.Println(err)
	}
	info, err := schedlock.GetLockInfo(ctx, store)
	fmt.Println("held by:", info, err)
	// Output:
	// imports the lists
	// held by: <nil> <nil>
}

// A leader that was paused for so long that another took over wakes up in the
// middle of its work. The fence keeps it from committing.
func ExampleLease_Fence() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "schedlock")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "app.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := store.DB().ExecContext(ctx, `CREATE TABLE bans (ip TEXT)`); err != nil {
		fmt.Println(err)
		return
	}
	importList := func(lease *schedlock.Lease, ip string) error {
		tx, err := store.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := lease.Fence(ctx, tx); err != nil { // the first statement
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO bans VALUES (?)`, ip); err != nil {
			return err
		}
		return tx.Commit()
	}

	lock, err := schedlock.New(store, silent, replicaA)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Stop(ctx)
	old, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the leader imports:", importList(old, "192.0.2.1"))

	// While it is paused, another takes its place, as after a TTL.
	if err := takeOver(ctx, store); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("it still believes:", old.Err() == nil)
	err = importList(old, "192.0.2.2")
	fmt.Println("but is refused:", errors.Is(err, schedlock.ErrLost))

	var n int
	if err := store.DB().QueryRowContext(ctx, `SELECT count(*) FROM bans`).Scan(&n); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("bans:", n)
	// Output:
	// the leader imports: <nil>
	// it still believes: true
	// but is refused: true
	// bans: 1
}

// takeOver does to the lock row what a standby does when its holder has shown
// no sign of life for a TTL.
func takeOver(ctx context.Context, store driver.Store) error {
	judged, err := store.Look(ctx)
	if err != nil {
		return err
	}
	_, err = store.Acquire(ctx, driver.Claim{
		Ref: driver.Ref{Owner: driver.Owner{PID: 1, Hostname: "b"}, Token: driver.NewToken()},
		Timing: driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
			HeartbeatInterval: 10 * time.Second},
		Expected: judged,
		Reason:   driver.EndExpired,
	})
	return err
}
