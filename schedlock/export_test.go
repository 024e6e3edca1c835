package schedlock

import (
	"sync"
	"time"
	"unsafe"
)

// A FakeClock is a machine's clock in a synctest bubble, where time.Now has no
// monotonic part and the kernel's boot clock knows nothing of the bubble's
// time. Its wall clock can be set, and the machine suspended.
type FakeClock struct {
	start time.Time

	mu        sync.Mutex
	stepped   time.Duration // what was added to the wall clock by hand
	suspended time.Duration // what the monotonic clock did not count
}

// UseBubbleClock gives l a clock of its own. Call it before l is used.
func UseBubbleClock(l *Lock) *FakeClock {
	c := &FakeClock{start: time.Now()}
	l.clock = clock{now: c.now, boot: c.boot}
	return c
}

func (c *FakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return forgeTime(time.Now().Add(c.stepped+c.suspended), time.Since(c.start))
}

func (c *FakeClock) boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.start) + c.suspended
}

// StepWall sets the wall clock.
func (c *FakeClock) StepWall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stepped += d
}

// Suspend lets the machine sleep: no timer of the bubble moves.
func (c *FakeClock) Suspend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended += d
}

// Known is the newest term that l has read or held.
func Known(l *Lock) Term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

// forgeTime makes a time with the wall and the monotonic reading given, which
// package time lets nobody do. TestForgedTimes guards its knowledge of the
// layout of a time.Time.
func forgeTime(wall time.Time, mono time.Duration) time.Time {
	const (
		hasMonotonic = 1 << 63
		secondsShift = 30
		from1885     = 2682288000 // seconds from 1885 to 1970
	)
	t := wall.Local()
	raw := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	raw.wall = hasMonotonic | uint64(wall.Unix()+from1885)<<secondsShift | uint64(wall.Nanosecond())
	raw.ext = int64(mono)
	return t
}
