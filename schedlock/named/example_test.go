package named_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
)

// Of all replicas, and all goroutines in them, one at a time does the work.
func ExampleLocks_WithLock() {
	ctx := context.Background()
	store := memory.New().Named() // or that of a sqlite.Store or a postgres.Store
	locks, err := named.New(store, named.WithOwner(driver.Owner{PID: 7, Hostname: "web-1"}))
	if err != nil {
		fmt.Println(err)
		return
	}

	err = locks.WithLock(ctx, "import", func(ctx context.Context, lock *named.Lock) error {
		err := locks.TryWithLock(ctx, "import", nil) // not reentrant
		fmt.Println(errors.Is(err, schedlock.ErrHeld))
		if held, ok := errors.AsType[*named.HeldError](err); ok {
			fmt.Printf("held by pid %d on host %q\n", held.Info.PID, held.Info.Hostname)
		}
		return ctx.Err() // the lists are imported, unless the lock was lost
	})
	fmt.Println(err)
	// Output:
	// true
	// held by pid 7 on host "web-1"
	// <nil>
}

// Without a function: take it, extend it while you work, release it.
func ExampleLocks_TryLock() {
	ctx := context.Background()
	locks, err := named.New(memory.New().Named(), named.WithTTL(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	lock, err := locks.TryLock(ctx, "import")
	if err != nil {
		fmt.Println(err) // a *HeldError says who has it
		return
	}
	for range 3 { // lists
		if err := lock.Extend(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(lock.Unlock(ctx), errors.Is(lock.Check(), schedlock.ErrReleased))
	// Output: <nil> true
}

// Work that every replica wakes up for, by clocks that differ by some seconds.
func ExampleLocks_WithTask() {
	ctx := context.Background()
	locks, err := named.New(memory.New().Named())
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // replicas
		ran, err := locks.WithTask(ctx, "report", 30*time.Second, 10*time.Minute,
			func(context.Context, *named.Lock) error {
				fmt.Println("the report is sent")
				return nil
			})
		fmt.Println(ran, err)
	}
	// Output:
	// the report is sent
	// true <nil>
	// false <nil>
}

// At most once a day, whoever comes first and whatever becomes of them.
func ExampleLocks_OncePer() {
	ctx := context.Background()
	locks, err := named.New(memory.New().Named())
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err := locks.OncePer(ctx, "reminder for ann", 24*time.Hour)
		switch {
		case err == nil:
			fmt.Println("reminded")
		case errors.Is(err, schedlock.ErrHeld):
			fmt.Println("was reminded already")
		default:
			fmt.Println(err)
		}
	}
	// Output:
	// reminded
	// was reminded already
}

// A transaction of the app's own commits only if the lock is still held.
func ExampleLock_Fence() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "app")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Opener(filepath.Join(dir, "app.db")).Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	locks, err := named.New(store.Named())
	if err != nil {
		fmt.Println(err)
		return
	}

	err = locks.WithLock(ctx, "import", func(ctx context.Context, lock *named.Lock) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := lock.Fence(ctx, tx); err != nil {
			return err // somebody else may have the lock by now
		}
		if _, err := tx.ExecContext(ctx, `CREATE TABLE bans (address TEXT)`); err != nil {
			return err
		}
		return tx.Commit()
	})
	fmt.Println(err)
	// Output: <nil>
}

// A leader besides the scheduler's. The environment may set its TTL, by
// APP_CHIEF_TTL.
func ExampleElection() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	election, err := named.NewElection(memory.New().Named(), "chief", silent,
		named.FromEnv("APP_CHIEF_", nil))
	if err != nil {
		fmt.Println(err)
		return
	}
	lead := func(ctx context.Context) {
		fmt.Println("leads:", election.IsLeader(ctx) == nil)
		stop() // here, the app is asked to end
	}
	for ctx.Err() == nil {
		lock, err := election.WaitForLeader(ctx)
		if err != nil {
			break
		}
		lead(lock.Context()) // returns when that ends
	}
	fmt.Println(election.Resign(ctx)) // all its work has returned
	fmt.Println("leads:", election.IsLeader(ctx) == nil)
	// Output:
	// leads: true
	// <nil>
	// leads: false
}
