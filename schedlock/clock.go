package schedlock

import "time"

// A clock is where the time comes from. Rules never ask it: they get values.
type clock struct {
	now  func() time.Time
	boot func() time.Duration
}

// systemClock is the machine's clock: time.Now for wall and monotonic time,
// and, where the system has one, a clock that goes on while it is suspended.
var systemClock = clock{now: time.Now, boot: bootTime}

// An instant is one reading of both clocks.
type instant struct {
	at   time.Time
	boot time.Duration
}

func (c clock) read() instant { return instant{at: c.now(), boot: c.boot()} }

// after is the time from one instant to a later one, suspend included.
func (i instant) after(from instant) time.Duration {
	return max(i.at.Sub(from.at), i.boot-from.boot, 0)
}

// jumpTolerance is how far wall and monotonic time may drift apart between
// two heartbeats before [clock.since] asks the clock that counts suspend. A
// smaller drift (NTP slews at most 0.5 ms a second) is simply counted as time
// passed.
const jumpTolerance = 100 * time.Millisecond

// since is the time that has passed from an instant until now, suspend
// included. It costs one time.Now() as long as wall and monotonic time agree;
// only when they have come apart (the machine was suspended, or somebody set
// its clock) does it ask the kernel's boot clock.
func (c clock) since(from *instant) time.Duration {
	now := c.now()
	elapsed := now.Sub(from.at)
	jump := time.Duration(now.UnixNano()-from.at.UnixNano()) - elapsed
	if jump < 0 {
		jump = -jump
	}
	if jump > jumpTolerance {
		return max(elapsed, c.boot()-from.boot)
	}
	return elapsed + jump
}
