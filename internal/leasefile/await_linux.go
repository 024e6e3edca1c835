package leasefile

import (
	"context"
	"time"

	"example.com/schedlock/internal/inotify"
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
	events := false
	if f.awaiting.TryLock() {
		defer f.awaiting.Unlock()
		events = f.events.Add(f.path, inotify.Closes, f.stirred)
	}
	for {
		if now, _ := f.read(t, except...); now != seen {
			return
		}
		switch {
		case !events:
			f.wait(ctx, pollWithout, nil)
		case f.settling == 0:
			// A plain pause, so that a process that opens and closes the file
			// all the time does not keep us spinning.
			f.wait(ctx, settle[0], nil)
			f.settling++
		case f.settling < len(settle):
			woken := f.wait(ctx, settle[f.settling], f.stirred)
			if f.settling++; woken {
				f.settling = 0
			}
		case f.wait(ctx, pollBeside, f.stirred):
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

// wait returns true if an event ended it.
func (f *File) wait(ctx context.Context, d time.Duration, stirred <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stirred:
		return true
	case <-timer.C:
	case <-f.closed:
	case <-ctx.Done():
	}
	return false
}
