package schedlock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// theApp makes the holder one of another app.
func theApp(t *testing.T, db *memory.Store, app driver.App) {
	t.Helper()
	require.True(t, db.Edit(func(r *driver.Row) { r.App = app }))
}

func TestTheRowNamesItsApp(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithApp("billing"))
		lease := a.lead()
		info := rowOf(t, db)
		require.Equal(t, a.lock.App(), info.App)
		require.Equal(t, "billing", info.App.Name)
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, info.App, termsOf(t, db, 1)[0].App, "the history keeps it")

		b := newReplica(t, db)
		b.lead()
		require.Equal(t, "example.com/schedlock/schedlock.test", rowOf(t, db).App.Name,
			"the path of the main package")
	})
}

func TestWhichAppsDiffer(t *testing.T) {
	const api, job = "acme.com/cmd/api", "acme.com/cmd/job"
	unnamed := func(program string) driver.App {
		return driver.App{Name: program, Program: program}
	}
	for _, tc := range []struct {
		what string
		a, b driver.App
		want bool
	}{
		{"one program", unnamed(api), unnamed(api), false},
		{"two programs", unnamed(api), unnamed(job), true},
		{"one program that gets a name in the next release", unnamed(api),
			driver.App{Name: "billing", Program: api}, false},
		{"one of two programs has a name", unnamed(api),
			driver.App{Name: "billing", Program: job}, true},
		{"two names", driver.App{Name: "shop", Program: api},
			driver.App{Name: "billing", Program: job}, true},
		{"two names of one program", driver.App{Name: "shop", Program: api},
			driver.App{Name: "billing", Program: api}, true},
		{"one name of two programs", driver.App{Name: "shop", Program: api},
			driver.App{Name: "shop", Program: job}, false},
		{"an older release", driver.App{}, unnamed(api), false},
	} {
		require.Equal(t, tc.want, tc.a.Differs(tc.b), tc.what)
		require.Equal(t, tc.want, tc.b.Differs(tc.a), tc.what)
	}
}

func TestNamesOfAppsThatAreRefused(t *testing.T) {
	for name, rule := range map[string]string{
		"":                       "app name is empty",
		strings.Repeat("a", 201): "app name has 201 bytes, 200 are allowed",
		"a\nb": `app name "a\nb" is not UTF-8, ` +
			`or contains NUL, another control character`,
	} {
		_, err := schedlock.New(memory.New(), schedlock.WithApp(name))
		require.ErrorContains(t, err, rule)
	}
}

func TestAStandbyOfAnotherAppSaysSoOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db)
		a.lead()
		var text logtest.Log
		b := newReplica(t, db, schedlock.WithApp("billing"), logTo(&text))
		theApp(t, db, driver.App{Name: "acme.com/cmd/shop", Program: "acme.com/cmd/shop"})
		b.stand(t.Context())
		time.Sleep(3 * ttl)
		require.Equal(t, 1, text.Count("another app leads with this lock"))
		require.Equal(t, 1, text.Count("level=WARN"))
		require.Equal(t, 1, text.Count(`app=billing holder_app=acme.com/cmd/shop`))
		require.Equal(t, 1,
			text.Count(`to_do="give each app a lock of its own: postgres.WithSchema(`))
		reason := b.lock.Status().Reason
		require.Contains(t, reason, `another app, "acme.com/cmd/shop", leads with this lock (pid `)
		require.Contains(t, reason, `postgres.WithSchema("...")`)
		require.NoError(t, b.lock.CheckApp(ctx), "only one of them was named")
	})
}

func TestTwoAppsThatWereBothNamedRefuseToShareALock(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newRenewing(t, db, schedlock.WithApp("shop"))
		lease := a.lead()
		b := newRenewing(t, db, schedlock.WithApp("billing"))
		refused := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, driver.ErrPermanent)
			require.ErrorContains(t, err, `another app, "shop", leads with this lock`)
			require.ErrorContains(t, err,
				`so no job of this one, "billing", runs: `+
					`give each app a lock of its own: postgres.WithSchema("...")`)
		}
		refused(b.lock.CheckApp(ctx))
		_, err := b.lock.Acquire(ctx)
		refused(err)
		_, err = b.lock.Wait(ctx)
		refused(err)
		refused(b.lock.Run(ctx, func(context.Context, *schedlock.Lease) error { return nil }))
		require.NoError(t, newReplica(t, db, schedlock.WithApp("shop")).lock.CheckApp(ctx),
			"a replica of the same app")

		// In the background it goes on trying: the other may be there by mistake.
		b.lock.Start()
		time.Sleep(3 * ttl)
		require.False(t, b.leads())
		require.NoError(t, lease.Release(ctx))
		time.Sleep(ttl + retry)
		synctest.Wait()
		require.True(t, b.leads())
		require.Equal(t, "billing", rowOf(t, db).App.Name)
	})
}

// A start may have a day: a database that hangs must not keep the app from serving for as long.
func TestCheckAppGivesUpADatabaseThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithApp("shop"))
		a.db.set(fault{kind: hang}, "look")
		day, cancel := context.WithTimeout(ctx, 24*time.Hour)
		defer cancel()
		begin := time.Now()
		require.NoError(t, a.lock.CheckApp(day))
		require.Equal(t, 10*time.Second, time.Since(begin))
	})
}

// An app that is gone for good must not keep others away.
func TestADeadHolderOfAnotherAppIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithApp("shop")) // sends no heartbeat
		a.lead()
		time.Sleep(ttl)
		b := newReplica(t, db, schedlock.WithApp("billing"))
		waiter := b.stand(t.Context())
		time.Sleep(ttl + 2*retry)
		synctest.Wait()
		require.NoError(t, (<-waiter).err)
		require.True(t, b.leads())
	})
}
