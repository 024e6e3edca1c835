package tasks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAlarmRingsAtTheTicksOfTheDatabasesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, spec := range []Spec{Every(10 * time.Minute).Offset(0),
			Cron("30 2 * * *", "Europe/Berlin"), Cron("5 * * * *", "Europe/Berlin")} {
			ahead := time.Duration(0)
			a := alarm{spec: spec, now: func() time.Time { return time.Now().Add(ahead) }}
			for _, ahead = range []time.Duration{0, 17 * time.Minute, -time.Hour,
				time.Until(utc("2026-03-28T02:00:00Z")), // the night in which it skips an hour
				time.Until(utc("2026-10-24T02:00:00Z"))} {
				last := time.Now()
				for range 5 { // gocron asks for the next one when one has rung, or before
					next := a.Next(last)
					assert.Equal(t, spec.Next(last.Add(ahead)), next.Add(ahead).UTC())
					last = next
				}
			}
		}
	})
}

// gocron skips a time that reads like the one before.
func TestTicksWithinOneSecondAllRing(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(100 * time.Millisecond).Offset(50 * time.Millisecond)
		w.leader([]Job{d.job("j", spec, 0)})
		sleepUntil(5 * time.Second)
		require.Len(t, d.read(), 50)
	})
}

func TestAlarmThatRangTooEarlyRingsAgain(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.leader([]Job{d.job("j", at(15*time.Second), 0)})
		sleepUntil(9 * time.Second)
		w.setClock(-400 * time.Millisecond) // less than what is taken for a step
		sleepUntil(15*time.Second + 399*time.Millisecond)
		require.Empty(t, d.read())
		sleepUntil(15*time.Second + 400*time.Millisecond)
		require.Len(t, d.read(), 1)
	})
}

func TestAlarmEndsWithItsSpec(t *testing.T) {
	t.Parallel()
	a := alarm{spec: Spec{}, now: time.Now}
	assert.Zero(t, a.Next(time.Now()))
}

func TestAlarmIsStrictlyAfterTheLastAlsoInTheFarFuture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := alarm{spec: Every(200 * 365 * 24 * time.Hour).Offset(0), now: time.Now}
		for last, i := time.Now(), 0; i < 10; i++ {
			next := a.Next(last)
			require.True(t, next.After(last), "%v is not after %v", next, last)
			last = next
		}
	})
}

// gocron loops for ever on a next time that is not after the last.
func TestAlarmIsStrictlyAfterTheLast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		span := rapid.Int64Range(-int64(48*time.Hour), int64(48*time.Hour))
		ahead := time.Duration(span.Draw(t, "database ahead"))
		last := time.Now().Add(time.Duration(span.Draw(t, "last")))
		a := alarm{spec: specGen().Draw(t, "spec"), now: func() time.Time {
			return time.Now().Add(ahead)
		}}
		if next := a.Next(last); !next.IsZero() && !next.After(last) {
			t.Fatalf("next after %v is %v", last, next)
		}
	})
}
