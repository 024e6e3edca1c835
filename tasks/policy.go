package tasks

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// CatchUp says what happens with ticks that were missed: nobody led when they
// were due, or the job was paused, or the leader could not reach the database,
// or its clock was set forward. What is not run is recorded as skipped, with
// the reason, as ranges. Make one with Latest, Skip or All.
type CatchUp int

const (
	// Latest runs the newest of them. The default.
	Latest CatchUp = 0

	// Skip runs none that was due before this leader led. A tick that is due
	// in the milliseconds of a hand-over is missed, too.
	Skip CatchUp = -1
)

// All runs the newest max of them, oldest first, and one after the other
// unless the job allows overlaps. 1 ≤ max ≤ 1,000.
func All(max int) CatchUp {
	if max < 1 {
		// So that its error can name it; -1 is taken. max-2 is the larger one if it overflows.
		return CatchUp(min(max, max-2))
	}
	return CatchUp(max)
}

const maxCatchUp = 1000

func (c CatchUp) validate() error {
	max := int(c)
	switch {
	case c == Latest || c == Skip:
		return nil
	case c < Skip:
		max += 2
	}
	if max < 1 || max > maxCatchUp {
		return fmt.Errorf("catch-up All(%d): the number must be between 1 and %d", max, maxCatchUp)
	}
	return nil
}

// count is how many of the newest ticks are run.
func (c CatchUp) count() int {
	if c > 0 {
		return int(c)
	}
	return 1 // of Skip only if it was due since
}

// Overlap says what happens when a run is due while one of the same job has
// not ended.
type Overlap int

const (
	// OverlapSkip records it as skipped: 2 s after the start of that run, again
	// after 4, 8, … s, and when it has ended. The default. A retry waits instead.
	OverlapSkip Overlap = iota

	// OverlapQueue lets it wait until that run has ended. Of several ticks that
	// came meanwhile the newest runs; the others are recorded as skipped.
	OverlapQueue

	// OverlapAllow runs them at the same time.
	OverlapAllow
)

func (o Overlap) validate() error {
	if o < OverlapSkip || o > OverlapAllow {
		return fmt.Errorf("overlap %d: use OverlapSkip, OverlapQueue or OverlapAllow", o)
	}
	return nil
}

// Retry says when a run is tried again. It has the same scheduled time then,
// and the next Attempt.
//
// A run that was cut short, because its leader died, or had to cancel it when
// it drained or lost the lock, is always tried again, up to Attempts or
// 3 attempts, whichever is more: the next leader takes it up. Only a job
// that is AtMostOnce is not.
type Retry struct {
	// Attempts is how often a run that fails is started in all. 0 and 1 mean
	// once: the next tick is its retry. At most 1,000.
	Attempts int

	// Backoff is the time from the end of the first attempt to the second; it
	// doubles with each further one. Default 1 s.
	Backoff time.Duration

	// MaxBackoff is the longest of these times. Default 10 min, or Backoff if
	// that is longer.
	//
	// The actual time is a random one between half of it and all of it ("equal
	// jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
	MaxBackoff time.Duration
}

// cutAttempts is how often a run that is cut short each time is started in
// all. It is bounded because the run itself may be what kills its process.
const cutAttempts = 3

const (
	defaultBackoff    = time.Second
	defaultMaxBackoff = 10 * time.Minute
	maxAttempts       = 1000
)

func (r Retry) validate() (errs []error) {
	if r.Attempts < 0 || r.Attempts > maxAttempts {
		errs = append(errs, fmt.Errorf("retry: %d attempts: the number must be between 0 and %d",
			r.Attempts, maxAttempts))
	}
	if r.Backoff < 0 {
		errs = append(errs, fmt.Errorf("retry: backoff %v is below 0", r.Backoff))
	}
	if r.MaxBackoff < 0 || r.MaxBackoff > 0 && r.MaxBackoff < r.Backoff {
		errs = append(errs, fmt.Errorf("retry: longest backoff %v is below the backoff of %v",
			r.MaxBackoff, r.Backoff))
	}
	return errs
}

// longest is MaxBackoff, or its default.
func (r Retry) longest() time.Duration {
	if r.MaxBackoff > 0 {
		return r.MaxBackoff
	}
	return max(defaultMaxBackoff, r.Backoff)
}

// after is how long after the end of an attempt the next one is due.
func (r Retry) after(attempt int) time.Duration {
	d, longest := r.Backoff, r.longest()
	if d == 0 {
		d = min(defaultBackoff, longest)
	}
	for ; attempt > 1 && d < longest; attempt-- {
		d += min(d, longest-d) // 2*d could overflow
	}
	return d - rand.N(d/2+1)
}

// retryAt is when the next attempt of a run is due, if the attempt of that
// number has failed now, or was cut short; zero: never.
func (j Job) retryAt(now time.Time, attempt int, cut bool) time.Time {
	if attempt >= j.attempts(cut) {
		return time.Time{}
	}
	return now.Add(j.Retry.after(attempt)).UTC().Truncate(time.Microsecond)
}

// attempts is how often a run is started in all.
func (j Job) attempts(cut bool) int {
	switch {
	case j.AtMostOnce:
		return 1
	case cut:
		return max(j.Retry.Attempts, cutAttempts)
	}
	return max(j.Retry.Attempts, 1)
}
