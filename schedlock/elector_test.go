package schedlock_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/sqlite"
)

var electorFor = flag.Duration("elector.for", 0,
	"how long the gocron app is killed and stopped in turn: once each at least")

const (
	appFolder = "SCHEDLOCK_TEST_APP" // the test binary is the app, in this folder
	appTTL    = 6 * time.Second      // so a heartbeat each second
	appTick   = 2 * time.Second
)

// gocronApp is an app that has a scheduler and a job, as it was on one replica.
// What makes it run on one of several is marked, besides the database's opener:
// two lines and an option at the start, and one line at the end.
func gocronApp(folder string) error {
	say := func(what string) {
		f, err := os.OpenFile(filepath.Join(folder, "diary"),
			os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintf(f, "%s %d\n", what, time.Now().UnixMicro())
		}
		if err != nil {
			panic(err)
		}
		_ = f.Close()
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	store, err := sqlite.Opener(filepath.Join(folder, "app.db"))(ctx)
	if err != nil {
		return err
	}
	defer store.(io.Closer).Close()

	tell := func(e schedlock.Event) { // added
		if e.Kind == schedlock.EventElected || e.Kind == schedlock.EventLost {
			say(string(e.Kind))
		}
	}
	lock, err := schedlock.New(store, schedlock.WithTTL(appTTL), schedlock.WithObserver(tell))
	if err != nil {
		return err
	}
	lock.Start() // added

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(lock))
	if err != nil {
		return err
	}
	if _, err := scheduler.NewJob(gocron.CronJob("*/2 * * * * *", true), gocron.NewTask(func() {
		say("tick")
	})); err != nil {
		return err
	}
	scheduler.Start()
	<-ctx.Done()
	if err := scheduler.Shutdown(); err != nil {
		return err
	}
	return lock.Stop(ctx) // added: last
}

// A gocron app as many are: three of them, killed and stopped in turn.
func TestAGocronAppIsMadeSingleLeaderByTwoLines(t *testing.T) {
	missing.Long(t, "takes 10 s")
	t.Parallel()
	folder := t.TempDir()
	begun := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), appFolder+"="+folder)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		return cmd
	}
	var apps []*exec.Cmd
	defer func() {
		for _, a := range apps {
			_ = a.Process.Kill()
			_ = a.Wait()
		}
	}()
	for range 3 {
		apps = append(apps, begun())
	}
	store, err := sqlite.Open(t.Context(), filepath.Join(folder, "app.db"))
	require.NoError(t, err)
	defer store.Close()
	leader := func(not int64) (info *schedlock.LockInfo) {
		require.Eventually(t, func() bool {
			info, err = schedlock.GetLockInfo(t.Context(), store)
			return err == nil && info != nil && info.Term != not
		}, 30*time.Second, 2*time.Millisecond, "nobody leads, or %d for ever", not)
		return info
	}
	leader(0)
	stop := watchRow(t, store)
	begin := time.Now()
	var gaps []gap
	for i := 0; i < 2 || time.Since(begin) < *electorFor; i++ {
		var old *schedlock.LockInfo
		require.Eventually(t, func() bool {
			old = leader(0)
			return old.Beat > 0
		}, 30*time.Second, 2*time.Millisecond, "nobody renews the row")
		// In the middle between two ticks: an elector decides when a tick rings,
		// and of two replicas one rings a little later.
		time.Sleep(time.Until(time.Now().Add(-appTick / 2).Truncate(appTick).Add(appTick +
			appTick/2)))
		for n, a := range apps {
			if a.Process.Pid != old.PID {
				continue
			}
			sent, how := time.Now(), []os.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2]
			require.NoError(t, a.Process.Signal(how))
			next := leader(old.Term)
			gaps = append(gaps, gap{sent, next.CreatedAt})
			err := a.Wait()
			if how == syscall.SIGTERM {
				assert.NoError(t, err, "a clean end")
			}
			apps[n] = begun()
		}
	}
	time.Sleep(appTick)
	stop()
	requireTicks(t, folder, begin, time.Now(), gaps)
}

// A gap is the time in which nobody leads.
type gap struct{ from, to time.Time }

// watchRow looks at the row again and again, until stop: it must not grow old.
func watchRow(t *testing.T, store *sqlite.Store) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if info, err := schedlock.GetLockInfo(ctx, store); err == nil && info != nil {
				assert.Less(t, info.HeartbeatAge, appTTL, "%+v", info)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// requireTicks checks that each tick ran once, but for those of a gap.
func requireTicks(t *testing.T, folder string, from, to time.Time, gaps []gap) {
	t.Helper()
	f, err := os.Open(filepath.Join(folder, "diary"))
	require.NoError(t, err)
	defer f.Close()
	ran, elected := map[int64]int{}, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var what string
		var micros int64
		_, err := fmt.Sscan(lines.Text(), &what, &micros)
		require.NoError(t, err)
		switch what {
		case "tick":
			ran[micros/appTick.Microseconds()]++
		case "elected":
			elected++
		default:
			assert.Fail(t, what, "nobody loses the lock")
		}
	}
	missed := 0
	for n := from.UnixMicro()/appTick.Microseconds() +
		1; n < to.UnixMicro()/appTick.Microseconds(); n++ {
		at := time.UnixMicro(n * appTick.Microseconds())
		inGap := false
		for _, g := range gaps {
			inGap = inGap || !at.Before(g.from) && !at.After(g.to)
		}
		if inGap && ran[n] == 0 {
			missed++
			continue
		}
		assert.Equal(t, 1, ran[n], "runs of the tick at %s", at.Format(time.TimeOnly))
	}
	t.Logf("%d ticks, %d leaders, %d ticks in a gap", len(ran), elected, missed)
	assert.Equal(t, len(gaps)+1, elected)
}

// runAsApp is for TestMain: true if the process is the app.
func runAsApp() bool {
	folder := os.Getenv(appFolder)
	if folder == "" {
		return false
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if err := gocronApp(folder); err != nil {
		fmt.Fprintln(os.Stderr, "the gocron app:", err)
		os.Exit(1)
	}
	return true
}
