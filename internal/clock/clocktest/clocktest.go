// Package clocktest has clocks and times for tests.
package clocktest

import (
	"sync"
	"time"
	"unsafe"
)

// A Fake is a machine's clock in a synctest bubble, where time.Now has no
// monotonic part and the kernel's boot clock knows nothing of the bubble's
// time. Its wall clock can be set, and the machine suspended.
type Fake struct {
	start time.Time

	mu        sync.Mutex
	stepped   time.Duration // what was added to the wall clock by hand
	suspended time.Duration // what the monotonic clock did not count
}

// New returns a clock of the bubble that calls it.
func New() *Fake { return &Fake{start: time.Now()} }

// Now has the wall and the monotonic time.
func (c *Fake) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Forge(time.Now().Add(c.stepped+c.suspended), time.Since(c.start))
}

// Boot is the time that counts suspend.
func (c *Fake) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.start) + c.suspended
}

// StepWall sets the wall clock.
func (c *Fake) StepWall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stepped += d
}

// Suspend lets the machine sleep: no timer of the bubble moves.
func (c *Fake) Suspend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended += d
}

// Forge makes a time with the wall and the monotonic reading given, which
// package time lets nobody do. TestForgedTimes guards its knowledge of the
// layout of a time.Time.
func Forge(wall time.Time, mono time.Duration) time.Time {
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
