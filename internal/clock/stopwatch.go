package clock

import "time"

// A Stopwatch measures how long ago something was, as the holder of a lease
// must: on a clock that nobody can set, suspend included where the system can
// tell (Linux). It is a value that does not change: copies, and calls at the
// same time, are fine.
type Stopwatch struct{ from Instant }

// StartStopwatch returns a Stopwatch that begins now.
func StartStopwatch() Stopwatch { return Stopwatch{System.Read()} }

// Elapsed is how long ago that was. It costs one time.Now() and allocates
// nothing.
func (s *Stopwatch) Elapsed() time.Duration { return System.Since(&s.from) }
