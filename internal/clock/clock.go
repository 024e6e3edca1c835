// Package clock measures how much time has passed, suspend included, whatever
// somebody does to the wall clock.
package clock

import "time"

// A Clock is where the time comes from. Rules never ask it: they get values.
type Clock struct {
	Now  func() time.Time     // wall and monotonic time
	Boot func() time.Duration // a time that goes on while the machine is suspended
}

// System is the machine's clock: time.Now for wall and monotonic time,
// and, where the system has one, a clock that goes on while it is suspended.
var System = Clock{Now: time.Now, Boot: bootTime}

// An Instant is one reading of both clocks.
type Instant struct {
	At   time.Time
	boot time.Duration
}

// Read reads both clocks.
func (c Clock) Read() Instant { return Instant{At: c.Now(), boot: c.Boot()} }

// After is the time from one Instant to a later one, suspend included.
func (i Instant) After(from Instant) time.Duration {
	return max(i.At.Sub(from.At), i.boot-from.boot, 0)
}

// jumpTolerance is how far wall and monotonic time may drift apart between
// two heartbeats before [Clock.Since] asks the clock that counts suspend. A
// smaller drift (NTP slews at most 0.5 ms a second) is simply counted as time
// passed.
const jumpTolerance = 100 * time.Millisecond

// Since is the time that has passed from an instant until now, suspend
// included. It costs one time.Now() as long as wall and monotonic time agree;
// only when they have come apart (the machine was suspended, or somebody set
// its clock) does it ask the kernel's boot clock.
func (c Clock) Since(from *Instant) time.Duration {
	now := c.Now()
	elapsed := now.Sub(from.At)
	jump := time.Duration(now.UnixNano()-from.At.UnixNano()) - elapsed
	if jump < 0 {
		jump = -jump
	}
	if jump > jumpTolerance {
		return max(elapsed, c.Boot()-from.boot)
	}
	return elapsed + jump
}
