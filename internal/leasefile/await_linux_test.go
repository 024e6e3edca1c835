package leasefile

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

func TestAwaitWaitsOutWhatWasSeen(t *testing.T) {
	missing.Long(t, "waits for what does not happen")
	t.Parallel()
	f := newLeaseFile(t)
	token, other := driver.NewToken(), driver.NewToken()
	returns := func(limit time.Duration, seen State) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		f.Await(ctx, token, seen)
		return ctx.Err() == nil
	}
	free := mustProbe(t, f, token)
	assert.False(t, returns(200*time.Millisecond, free), "free, as it was seen")
	assert.True(t, returns(200*time.Millisecond, State{}), "it can be told again")
	held := mustHold(t, f, other)
	assert.True(t, returns(5*time.Second, free), "another byte is held now")
	assert.False(t, returns(200*time.Millisecond, mustProbe(t, f, token)),
		"another byte is held, as it was seen")
	held.Release()
	os.Remove(f.path)
	assert.True(t, returns(200*time.Millisecond, free), "the file is gone")
	assert.False(t, returns(200*time.Millisecond, State{}), "the file is gone, as it was seen")
}

// withAndWithoutEvents runs a test on a byte that is held, where the kernel tells of
// changes and where Await has to poll.
func withAndWithoutEvents(t *testing.T,
	test func(t *testing.T, f *File, token driver.Token, seen State)) {
	for name, start := range map[string]func(int) (int, error){
		"events":  unix.InotifyInit1,
		"polling": func(int) (int, error) { return -1, unix.EMFILE },
	} {
		t.Run(name, func(t *testing.T) {
			f := newLeaseFile(t)
			f.events.Start = start
			token := driver.NewToken()
			mustHold(t, f, token)
			test(t, f, token, mustProbe(t, f, token))
		})
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	withAndWithoutEvents(t, func(t *testing.T, f *File, token driver.Token, seen State) {
		var late []time.Duration
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan time.Time, 1)
			time.AfterFunc(time.Duration(i)*3*time.Millisecond, func() {
				ended <- time.Now()
				cancel()
			})
			f.Await(ctx, token, seen)
			late = append(late, time.Since(<-ended))
			assert.Error(t, ctx.Err(), "await returned although nothing has changed")
			cancel()
		}
		slices.Sort(late)
		// Half of the time a poll would last: it was not the poll that ended it.
		assert.LessOrEqual(t, late[len(late)/2], pollWithout/2, describe(late))
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		f.Await(cancelled, token, seen)
	})
}

func TestAwaitNeedsNextToNoProcessor(t *testing.T) {
	missing.Long(t, "takes a second")
	withAndWithoutEvents(t, func(t *testing.T, f *File, token driver.Token, seen State) {
		used := func() time.Duration {
			var u unix.Rusage
			require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		before, begin := used(), time.Now()
		probes := countOpens(t, f.path, func() {
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/4)
				f.Await(ctx, token, seen)
				cancel()
			}
		})
		// One at the start of each call and one at its end, and what comes between.
		assert.LessOrEqual(t, probes, 2*(2+int(time.Second/4/pollWithout)))
		share := float64(used()-before) / float64(time.Since(begin))
		t.Logf("%.2f %% of a core", 100*share)
		assert.LessOrEqual(t, share, 0.10, "of a core")
	})
}

// A process that opens and closes the file for writing all the time must not
// make us spin, nor keep us from seeing the end of the holder.
func TestAwaitSurvivesAStormOfEvents(t *testing.T) {
	missing.Long(t, "keeps a core busy")
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if file, err := os.OpenFile(f.path, os.O_WRONLY, 0); err == nil {
					file.Close()
				}
			}
		}
	})
	defer storm.Wait()
	defer close(stop)
	probes := countOpens(t, f.path, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		f.Await(ctx, token, seen)
		assert.Error(t, ctx.Err(), "await returned although nothing has changed")
	})
	t.Logf("%d probes in 500 ms", probes)
	assert.LessOrEqual(t, probes, 1100, "probes in 500 ms of storm")
	time.AfterFunc(20*time.Millisecond, held.Release)
	awaitLong(t, f, token, seen)
}

// countOpens counts how often the file is closed that was open for reading.
func countOpens(t *testing.T, path string, during func()) (n int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		missing.Skip(t, "inotify: %v", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_CLOSE)
	require.NoError(t, err)
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			size, err := events.Read(buf)
			if err != nil {
				return
			}
			for at := 0; at+unix.SizeofInotifyEvent <= size; at += unix.SizeofInotifyEvent {
				mask := uint32(buf[at+4]) | uint32(buf[at+5])<<8
				if mask&unix.IN_CLOSE_NOWRITE != 0 {
					n++
				}
			}
		}
	})
	during()
	events.Close()
	reader.Wait()
	return n
}

func TestManyMayAwaitAtOnce(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	token := driver.NewToken()
	held := mustHold(t, f, token)
	seen := mustProbe(t, f, token)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() { f.Await(ctx, token, seen) })
	}
	time.Sleep(100 * time.Millisecond)
	held.Release()
	waiting.Wait()
	assert.NoError(t, ctx.Err(), "not all of them were woken")
}

func TestCloseEndsAwait(t *testing.T) {
	t.Parallel()
	withAndWithoutEvents(t, func(t *testing.T, f *File, token driver.Token, seen State) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(60*time.Millisecond, func() { f.Close() })
		f.Await(ctx, token, seen)
		assert.NoError(t, ctx.Err(), "await outlasted close")
		f.Close() // again
		assert.True(t, mustProbe(t, f, token).Held, "close has released a byte")
		// A caller in a loop must not spin on what is closed.
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		f.Await(short, token, State{})
		assert.Error(t, short.Err(), "await returned at once after close")
	})
}
