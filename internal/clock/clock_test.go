package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/clock/clocktest"
)

var year2026 = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func TestForgedTimes(t *testing.T) {
	a := clocktest.Forge(year2026, time.Hour)
	b := clocktest.Forge(year2026.Add(time.Minute), time.Hour+time.Second)
	assert.Equal(t, year2026.UnixNano(), a.UnixNano(), "the wall reading")
	assert.Equal(t, time.Second, b.Sub(a), "Sub counts by the monotonic reading")
	assert.Equal(t, time.Minute, b.Round(0).Sub(a.Round(0)), "without it by the wall")
}

// fixedClock reads the same for ever.
func fixedClock(wall time.Time, mono, boot time.Duration) Clock {
	return Clock{
		Now:  func() time.Time { return clocktest.Forge(wall, mono) },
		Boot: func() time.Duration { return boot },
	}
}

func TestSinceCountsTheTimeThatReallyPassed(t *testing.T) {
	const s, h = time.Second, time.Hour
	for _, tc := range []struct {
		name             string
		wall, mono, boot time.Duration // what each clock moved
		want             time.Duration
	}{
		{"nothing", 0, 0, 0, 0},
		{"all agree", 5 * s, 5 * s, 5 * s, 5 * s},
		{"suspended for an hour", h + 5*s, 5 * s, h + 5*s, h + 5*s},
		{"suspended, and the wall was set back a little after", h - s, 5 * s, h + 5*s, h + 5*s},
		{"wall set an hour ahead", h + 5*s, 5 * s, 5 * s, 5 * s},
		{"wall set an hour back", 5*s - h, 5 * s, 5 * s, 5 * s},
		{"wall set back, and the machine has no boot clock", 5*s - h, 5 * s, 0, 5 * s},
		{"wall a little ahead: counted", 5*s + 50*time.Millisecond, 5 * s, 5 * s,
			5*s + 50*time.Millisecond},
		{"wall a little behind: counted too", 5*s - 50*time.Millisecond, 5 * s, 5 * s,
			5*s + 50*time.Millisecond},
		{"wall at the tolerance", 5*s + jumpTolerance, 5 * s, 99 * s, 5*s + jumpTolerance},
		{"wall just past it", 5*s + jumpTolerance + 1, 5 * s, 99 * s, 99 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			from := fixedClock(year2026, h, 2*h).Read()
			now := fixedClock(year2026.Add(tc.wall), h+tc.mono, 2*h+tc.boot)
			assert.Equal(t, tc.want, now.Since(&from))
		})
	}
}

func TestSinceAsksTheBootClockOnlyAfterAJump(t *testing.T) {
	asked := 0
	from := fixedClock(year2026, 0, 0).Read()
	now := fixedClock(year2026.Add(time.Minute), time.Minute, 0)
	now.Boot = func() time.Duration { asked++; return time.Minute }
	now.Since(&from)
	assert.Zero(t, asked, "the clocks agree: the system call is not needed")
	now.Now = fixedClock(year2026.Add(2*time.Minute), time.Minute, 0).Now
	now.Since(&from)
	assert.Equal(t, 1, asked)
}

func TestSinceNeverRunsBehindTheMonotonicClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := rapid.Int64Range(0, int64(48*time.Hour))
		mono := time.Duration(span.Draw(t, "mono"))
		asleep := time.Duration(span.Draw(t, "asleep"))
		step := time.Duration(rapid.Int64Range(-int64(24*time.Hour), int64(24*time.Hour)).Draw(t,
			"step"))
		from := fixedClock(year2026, 0, 0).Read()
		now := fixedClock(year2026.Add(mono+asleep+step), mono, mono+asleep)
		got := now.Since(&from)
		if got < mono {
			t.Fatalf("%v have passed, but since says %v", mono, got)
		}
		if jump := asleep + step; jump > jumpTolerance || jump < -jumpTolerance {
			if got != mono+asleep {
				t.Fatalf("%v have passed with suspend, but since says %v", mono+asleep, got)
			}
		} else if got > mono+jumpTolerance {
			t.Fatalf("%v have passed, but since says %v", mono, got)
		}
	})
}

func TestSystemClock(t *testing.T) {
	from := System.Read()
	time.Sleep(time.Millisecond)
	passed := System.Since(&from)
	assert.Positive(t, passed)
	assert.Greater(t, System.Boot(), from.boot)
}

func TestAStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := StartStopwatch()
		assert.Zero(t, watch.Elapsed())
		time.Sleep(time.Hour)
		assert.Equal(t, time.Hour, watch.Elapsed())
		other := watch
		time.Sleep(time.Hour)
		assert.Equal(t, 2*time.Hour, watch.Elapsed())
		assert.Equal(t, 2*time.Hour, other.Elapsed(), "a copy")
	})
	watch := StartStopwatch()
	require.Zero(t, testing.AllocsPerRun(1000, func() { watch.Elapsed() }))
	require.Positive(t, watch.Elapsed())
}
