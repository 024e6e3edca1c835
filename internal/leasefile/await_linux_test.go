package leasefile

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

func TestAwaitWaitsOutWhatWasSeen(t *testing.T) {
	t.Parallel()
	f := newLeaseFile(t)
	token, other := driver.NewToken(), driver.NewToken()
	bounded := func(d time.Duration, seen State) (returned bool, took time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		start := time.Now()
		f.Await(ctx, token, seen)
		return ctx.Err() == nil, time.Since(start)
	}
	free := mustProbe(t, f, token)
	if returned, _ := bounded(200*time.Millisecond, free); returned {
		t.Error("free, as it was seen: await returned")
	}
	if returned, _ := bounded(200*time.Millisecond, State{}); !returned {
		t.Error("it can be told again: await did not return")
	}
	held := mustHold(t, f, other)
	if returned, took := bounded(10*time.Second, free); !returned || took > 5*time.Second {
		t.Errorf("another byte is held now: await did not return (%v)", took)
	}
	if returned, _ := bounded(200*time.Millisecond, mustProbe(t, f, token)); returned {
		t.Error("another byte is held, as it was seen: await returned")
	}
	held.Release()
	os.Remove(f.path)
	if returned, _ := bounded(200*time.Millisecond, free); !returned {
		t.Error("the file is gone: await did not return")
	}
	if returned, _ := bounded(200*time.Millisecond, State{}); returned {
		t.Error("the file is gone, as it was seen: await returned")
	}
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
			f.watch.start = start
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
			if ctx.Err() == nil {
				t.Error("await returned although nothing has changed")
			}
			cancel()
		}
		slices.Sort(late)
		// Half of the time a poll would last: it was not the poll that ended it.
		if late[len(late)/2] > pollWithout/2 {
			t.Errorf("await ends late: %s", describe(late))
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		f.Await(cancelled, token, seen)
	})
}

func TestAwaitNeedsNextToNoProcessor(t *testing.T) {
	withAndWithoutEvents(t, func(t *testing.T, f *File, token driver.Token, seen State) {
		used := func() time.Duration {
			var u unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		before, begin := used(), time.Now()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/4)
			f.Await(ctx, token, seen)
			cancel()
		}
		share := float64(used()-before) / float64(time.Since(begin))
		t.Logf("%.2f %% of a core", 100*share)
		if share > 0.10 {
			t.Errorf("await uses %.0f %% of a core", 100*share)
		}
	})
}

// A process that opens and closes the file for writing all the time must not
// make us spin, nor keep us from seeing the end of the holder.
func TestAwaitSurvivesAStormOfEvents(t *testing.T) {
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
		if ctx.Err() == nil {
			t.Error("await returned although nothing has changed")
		}
	})
	t.Logf("%d probes in 500 ms", probes)
	if probes > 1100 {
		t.Errorf("%d probes in 500 ms of storm", probes)
	}
	time.AfterFunc(20*time.Millisecond, func() { held.Release() })
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
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE); err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			size, err := events.Read(buf)
			if err != nil {
				return
			}
			for at := 0; at+unix.SizeofInotifyEvent <= size; at += unix.SizeofInotifyEvent {
				if mask := uint32(buf[at+4]) | uint32(buf[at+
					5])<<8; mask&unix.IN_CLOSE_NOWRITE != 0 {
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
	if ctx.Err() != nil {
		t.Error("not all of them were woken")
	}
}

func TestCloseEndsAwait(t *testing.T) {
	t.Parallel()
	withAndWithoutEvents(t, func(t *testing.T, f *File, token driver.Token, seen State) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(60*time.Millisecond, func() { f.Close() })
		f.Await(ctx, token, seen)
		if ctx.Err() != nil {
			t.Error("await outlasted close")
		}
		if err := f.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
		if now := mustProbe(t, f, token); !now.Held {
			t.Error("close has released a byte")
		}
		// A caller in a loop must not spin on what is closed.
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		f.Await(short, token, State{})
		if short.Err() == nil {
			t.Error("await returned at once after close")
		}
	})
}
