package leasefile

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/schedlock/driver"
)

// How long Await waits from probe to probe. After an event, which can come
// before the unlock, it looks again soon, a few times:
var settle = [...]time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond,
	100 * time.Millisecond, 300 * time.Millisecond}

// Else it looks seldom, in case an event was lost, and more often if there are
// no events to be had. Each look wakes the process, which costs more than the look.
var (
	pollBeside  = time.Second
	pollWithout = 50 * time.Millisecond
)

// Await returns when a probe for t would find something else than seen, what
// the caller's own last probe found: the byte of t became free, another byte
// was taken or given back, the file was replaced. It also returns when ctx
// ends, or f is closed. A byte that became free between that probe and the
// call is noticed too, and a state that stays as it was seen is waited out:
// a caller in a loop does not spin.
//
// One call at a time is woken by events, within a millisecond; others that run
// at the same time poll every 50 ms.
func (f *File) Await(ctx context.Context, t driver.Token, seen State,
	except ...driver.Token) {
	select {
	case <-f.closed:
		<-ctx.Done()
		return
	default:
	}
	var events *os.File
	if f.awaiting.TryLock() {
		defer f.awaiting.Unlock()
		if events = f.watch.add(f.path); events != nil {
			defer interruptRead(ctx, events)()
		}
	}
	for {
		if now, _ := f.read(t, except...); now != seen {
			return
		}
		switch {
		case events == nil:
			sleep(ctx, pollWithout)
		case f.settling == 0:
			// A plain pause, so that a process that opens and closes the file
			// all the time does not keep us spinning.
			sleep(ctx, settle[0])
			f.settling++
		case f.settling < len(settle):
			woken := awaitEvent(ctx, events, settle[f.settling])
			if f.settling++; woken {
				f.settling = 0
			}
		case awaitEvent(ctx, events, pollBeside):
			f.settling = 0
		}
		select {
		case <-f.closed:
			return
		case <-ctx.Done():
			return
		default:
		}
	}
}

// interruptRead ends a read of events when ctx ends. What it returns undoes
// that, and leaves no goroutine behind.
func interruptRead(ctx context.Context, events *os.File) func() {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = events.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	return func() {
		if !stop() {
			<-interrupted
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// awaitEvent reads whatever events there are; which ones does not matter. It
// parks the goroutine, not a thread.
func awaitEvent(ctx context.Context, events *os.File, d time.Duration) bool {
	var buf [512]byte
	_ = events.SetReadDeadline(time.Now().Add(d))
	if ctx.Err() != nil {
		return false // its own deadline may have been set before ours
	}
	n, err := events.Read(buf[:])
	if n <= 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
		sleep(ctx, d) // whatever is wrong with it, do not spin
	}
	return n > 0
}

// A eventWatch is the inotify instance of a File, made when it is first
// needed and kept: there are few of them for each user.
type eventWatch struct {
	start func(flags int) (int, error) // inotify_init1

	mu     sync.Mutex
	closed bool
	events *os.File
	raw    int // the descriptor of events
	wd     int // what is watched; 0: nothing
}

// add watches the file that path leads to now, and returns where its events
// can be read, nil if there are none to be had.
func (w *eventWatch) add(path string) *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if w.events == nil {
		fd, err := w.start(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil
		}
		w.raw, w.events = fd, os.NewFile(uintptr(fd), "inotify")
		if w.events.SetReadDeadline(time.Time{}) != nil { // cannot be waited for with a bound
			w.events.Close()
			w.events = nil
			return nil
		}
	}
	wd, err := unix.InotifyAddWatch(w.raw, path, unix.IN_CLOSE_WRITE|unix.IN_DONT_FOLLOW)
	if w.wd != 0 && wd != w.wd {
		_, _ = unix.InotifyRmWatch(w.raw, uint32(w.wd)) // of a file that is no longer there
	}
	if w.wd = max(wd, 0); err != nil {
		return nil
	}
	return w.events
}

func (w *eventWatch) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.events == nil {
		return nil
	}
	err := w.events.Close()
	w.events = nil
	return err
}
