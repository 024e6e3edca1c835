package tasks

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Worked out by hand from the zones' rules. Berlin 2026: 29 March 01:00 UTC
// (02:00 → 03:00) and 25 October 01:00 UTC (03:00 → 02:00). Lord Howe changes by
// half an hour: 4 April 15:00 UTC (02:00 → 01:30), 3 October 15:30 UTC
// (02:00 → 02:30).
func TestCronAcrossChangesOfTheClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, expr, zone string
		after            string
		want             []string
	}{
		{"daily, the time is skipped", "30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"daily, the time is shown twice", "30 2 * * *", "Europe/Berlin", "2026-10-23T12:00:00Z",
			[]string{"2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"first instant of the repeated hour", "0 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-26T01:00:00Z"}},
		{"first instant after the repeated hour", "0 3 * * *", "Europe/Berlin",
			"2026-10-24T12:00:00Z",
			[]string{"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"}},
		{"asked between the two showings", "30 2 * * *", "Europe/Berlin", "2026-10-25T00:45:00Z",
			[]string{"2026-10-26T01:30:00Z"}},
		{"asked at the end of the gap", "30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z",
			[]string{"2026-03-30T00:30:00Z"}},
		{"two skipped times are one tick", "0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"}},
		{"a skipped time and the end of the gap are one tick", "0 2,3 * * *", "Europe/Berlin",
			"2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"a skipped time and a later one are two", "30 2,3 * * *", "Europe/Berlin",
			"2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"the skipped day of the week", "30 2 * * sun", "Europe/Berlin", "2026-03-23T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-04-05T00:30:00Z"}},
		{"another day of the week", "30 2 * * mon", "Europe/Berlin", "2026-03-24T12:00:00Z",
			[]string{"2026-03-30T00:30:00Z"}},
		{"seconds, skipped", "15 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:15Z"}},
		{"a wildcard minute is not made up", "*/30 2 * * *", "Europe/Berlin",
			"2026-03-28T00:59:00Z",
			[]string{"2026-03-28T01:00:00Z", "2026-03-28T01:30:00Z", "2026-03-30T00:00:00Z"}},
		{"a wildcard minute runs in both hours", "*/30 2 * * *", "Europe/Berlin",
			"2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z",
				"2026-10-25T01:30:00Z", "2026-10-26T01:00:00Z"}},
		{"a wildcard hour with a step", "30 */2 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z",
			[]string{"2026-03-28T23:30:00Z", "2026-03-29T02:30:00Z"}},
		{"hourly in spring", "@hourly", "Europe/Berlin", "2026-03-28T23:30:00Z",
			[]string{"2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		{"hourly in autumn", "0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},

		{"half an hour skipped", "15 2 * * *", "Australia/Lord_Howe", "2026-10-02T00:00:00Z",
			[]string{"2026-10-02T15:45:00Z", "2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"half an hour shown twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z",
			[]string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"half an hour shown twice, wildcard", "*/15 1 * * *", "Australia/Lord_Howe",
			"2026-04-04T12:00:00Z",
			[]string{"2026-04-04T14:00:00Z", "2026-04-04T14:15:00Z", "2026-04-04T14:30:00Z",
				"2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:15:00Z",
				"2026-04-05T14:30:00Z"}},

		{"midnight skipped", "@daily", "America/Sao_Paulo", "2018-11-02T12:00:00Z",
			[]string{"2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"}},
		{"midnight shown twice", "@daily", "America/Havana", "2025-11-01T00:00:00Z",
			[]string{"2025-11-01T04:00:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z"}},
		{"a whole day skipped is not made up", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z",
			[]string{"2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"}},
		{"three hours skipped are not made up", "30 3 * * *", "Antarctica/Casey",
			"2009-10-16T20:00:00Z",
			[]string{"2009-10-18T16:30:00Z"}},
		{"three hours shown twice run twice", "30 1 * * *", "Antarctica/Casey",
			"2010-03-04T12:00:00Z",
			[]string{"2010-03-04T14:30:00Z", "2010-03-04T17:30:00Z", "2010-03-05T17:30:00Z"}},
		{"a zone that never changes", "30 2 * * *", "Asia/Kolkata", "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T21:00:00Z", "2026-03-29T21:00:00Z"}},
		{"changes later than the zone file lists", "30 2 * * *", "Europe/Berlin",
			"2150-03-28T12:00:00Z",
			[]string{"2150-03-29T01:00:00Z", "2150-03-30T00:30:00Z"}},

		{"29 February", "0 0 29 2 *", "UTC", "2023-01-01T00:00:00Z",
			[]string{"2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"}},
		{"29 February around 2100, which has none", "0 0 29 2 *", "UTC", "2096-02-29T00:00:00Z",
			[]string{"2104-02-29T00:00:00Z"}},
		{"both kinds of day: either", "0 0 13 * fri", "UTC", "2026-02-07T00:00:00Z",
			[]string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z", "2026-02-27T00:00:00Z",
				"2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"}},
		{"the 31st", "0 0 31 * *", "UTC", "2026-01-31T00:00:00Z",
			[]string{"2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z"}},
		{"a fraction of a second before and after", "* * * * * *", "UTC",
			"2026-01-01T00:00:00.000001Z",
			[]string{"2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"}},
		{"before the epoch", "0 12 * * *", "UTC", "1969-12-30T12:00:00Z",
			[]string{"1969-12-31T12:00:00Z", "1970-01-01T12:00:00Z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Cron(tt.expr, tt.zone)
			require.NoError(t, s.Validate())
			upto := utc(tt.want[len(tt.want)-1])
			assert.Equal(t, tt.want, texts(slices.Collect(s.Ticks(utc(tt.after), upto))))
			assert.Equal(t, tt.want, texts(s.LastN(utc(tt.after), upto, 99)))
			_, _, n := s.Span(utc(tt.after), upto)
			assert.EqualValues(t, len(tt.want), n)
		})
	}
}

func TestHoursOfTheLongAndTheShortDay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		expr           string
		spring, autumn int64
	}{
		{"0 * * * *", 23, 25}, // every real hour
		// fixed times: 02:00 falls together with 03:00; only the first 02:00
		{"0 0-23 * * *", 23, 24},
		{"*/30 * * * *", 46, 50},
		{"* * * * * *", 23 * 3600, 25 * 3600},
	} {
		s := Cron(tt.expr, "Europe/Berlin")
		_, _, spring := s.Span(utc("2026-03-28T22:59:59Z"), utc("2026-03-29T21:59:59Z"))
		_, _, autumn := s.Span(utc("2026-10-24T21:59:59Z"), utc("2026-10-25T22:59:59Z"))
		assert.Equal(t, tt.spring, spring, tt.expr)
		assert.Equal(t, tt.autumn, autumn, tt.expr)
	}
}

func TestADailyJobRunsOnceOnEveryDay(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe/Berlin", "Europe/Dublin", "America/New_York",
		"America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Auckland", "UTC"} {
		for _, expr := range []string{"30 2 * * *", "0 2 * * *", "59 59 1 * * *", "0 0 * * *",
			"0 3 * * *"} {
			_, _, n := Cron(expr, zone).Span(utc("1950-01-01T08:00:00Z"),
				utc("2150-01-01T08:00:00Z"))
			assert.EqualValues(t, 73049, n, "%s %s: 200 years with 49 leap days", expr, zone)
		}
	}
}

func TestAYearOfEverySecondIsCounted(t *testing.T) {
	t.Parallel()
	first, last, n := Cron("* * * * * *", "Europe/Berlin").Span(utc("2028-01-01T00:00:00Z"),
		utc("2029-01-01T00:00:00Z"))
	assert.Equal(t, utc("2028-01-01T00:00:01Z"), first)
	assert.Equal(t, utc("2029-01-01T00:00:00Z"), last)
	assert.EqualValues(t, 366*86400, n)
}

// Where no clock changes, the library itself is the reference.
func TestWallTimesAreThoseOfTheLibrary(t *testing.T) {
	t.Parallel()
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month |
		cron.Dow)
	rapid.Check(t, func(t *rapid.T) {
		expr := cronExprGen().Draw(t, "expr")
		s := Cron(expr, "UTC")
		lib, err := parser.Parse(expr)
		if err != nil || s.Validate() != nil {
			t.Fatalf("%v, %v", err, s.Validate())
		}
		at := timeGen().Draw(t, "at").UTC()
		for range 20 {
			want, got := lib.Next(at), s.Next(at)
			if want.IsZero() {
				break // the library looks five years ahead
			}
			if !got.Equal(want) {
				t.Fatalf("after %v: want %v, got %v", at, want, got)
			}
			at = got
		}
	})
}

// The rule for changes of the clock once more, second by second, as a daemon
// that watches the clock on the wall would follow it.
func TestCronTicksAreThoseOfAClockWatcher(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expr := cronExprGen().Draw(t, "expr")
		s := Cron(expr, rapid.SampledFrom(cronTestZones).Draw(t, "zone"))
		if s.Validate() != nil {
			t.Fatalf("%v", s.Validate())
		}
		change := timeGen().Draw(t, "at")
		if start, _ := change.In(s.cron.loc).ZoneBounds(); !start.IsZero() {
			change = start
		}
		from := change.Unix() - 3600*rapid.Int64Range(0, 4).Draw(t, "before")
		upto := change.Unix() + 3600*rapid.Int64Range(0, 4).Draw(t, "after")

		want := watchClock(expr, s.cron.loc, from, upto)
		got := slices.Collect(s.Ticks(time.Unix(from-1, 0), time.Unix(upto, 0)))
		if !slices.Equal(want, got) {
			t.Fatalf("%v around %v:\nwant %v\ngot  %v", s, change.UTC(), texts(want), texts(got))
		}
	})
}

func watchClock(expr string, loc *time.Location, from, upto int64) (ticks []time.Time) {
	const threeHours = 3 * 3600
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month |
		cron.Dow)
	lib, err := parser.Parse(expr)
	if err != nil {
		panic(err)
	}
	asked, due := int64(0), int64(-1) // no wall time from the one asked for up to due matches
	matches := func(wall int64) bool {
		if wall < asked || wall > due { // the library is slow, and is asked once a match
			asked, due = wall, math.MaxInt64
			if next := lib.Next(time.Unix(wall-1, 0).UTC()); !next.IsZero() {
				due = next.Unix()
			}
		}
		return due == wall
	}
	fields := strings.Fields(expr)
	fixed := !strings.ContainsAny(strings.Join(fields[:len(fields)-3], " "), "*?")
	wallAt := func(t int64) int64 {
		_, offset := time.Unix(t, 0).In(loc).Zone()
		return t + int64(offset)
	}
	shown := make(map[int64]int64, upto-from+threeHours)
	wall := wallAt(from - threeHours - 1)
	for t := from - threeHours; t <= upto; t++ {
		before := wall
		wall = wallAt(t)
		seen, again := shown[wall]
		shown[wall] = t
		if t < from {
			continue
		}
		tick := matches(wall) && !(fixed && again && t-seen < threeHours)
		if skipped := wall - before - 1; fixed && skipped > 0 && skipped < threeHours {
			for w := before + 1; w < wall && !tick; w++ {
				tick = matches(w)
			}
		}
		if tick {
			ticks = append(ticks, time.Unix(t, 0).UTC())
		}
	}
	return ticks
}

func TestAZoneHasOneSpelling(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe//Berlin", "Europe/Berlin/", "/Europe/Berlin",
		"./Europe/Berlin", "Europe/./Berlin", "Europe\\Berlin", " Europe/Berlin", "Europe/Ber lin",
		"Europe/Berlin\x00", "Europe/Nowhere"} {
		assert.ErrorContains(t, Cron("0 0 * * *", zone).Validate(), "zone", "%q", zone)
	}
	for _, zone := range []string{"", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires",
		"America/Port-au-Prince", "Etc/GMT+1"} {
		assert.NoError(t, Cron("0 0 * * *", zone).Validate(), "%q", zone)
	}
}

// Zones with all kinds of changes: an hour, half an hour, two, three, a day; at
// midnight; negative daylight saving; four changes a year; none.
var cronTestZones = []string{
	"UTC", "Europe/Berlin", "Europe/Dublin", "Europe/London", "America/New_York",
	"America/Sao_Paulo", "America/Havana",
	"Australia/Lord_Howe", "Pacific/Apia", "Pacific/Auckland", "Africa/Casablanca",
	"Antarctica/Troll", "Antarctica/Casey",
	"Asia/Kolkata", "Asia/Gaza", "Africa/Monrovia", "America/Nuuk", "Pacific/Kwajalein",
}

// cronExprGen draws valid expressions, with hours in which clocks change more
// often than others.
func cronExprGen() *rapid.Generator[string] {
	number := func(lo, hi int) *rapid.Generator[string] {
		return rapid.Map(rapid.IntRange(lo, hi), func(i int) string { return fmt.Sprint(i) })
	}
	field := func(lo, hi int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			switch rapid.IntRange(0, 5).Draw(t, "form") {
			case 0:
				return "*"
			case 1:
				return "*/" + number(1, hi).Draw(t, "step")
			case 2:
				a := rapid.IntRange(lo, hi).Draw(t, "from")
				return fmt.Sprintf("%d-%d/%d", a, rapid.IntRange(a, hi).Draw(t, "to"),
					rapid.IntRange(1, 9).Draw(t, "step"))
			case 3:
				return strings.Join(rapid.SliceOfN(number(lo, hi), 1, 4).Draw(t, "list"), ",")
			}
			return number(lo, hi).Draw(t, "number")
		})
	}
	night := rapid.OneOf(field(0, 23), field(0, 3), rapid.Just("*"), rapid.Just("2"))
	day := rapid.OneOf(rapid.Just("*"), rapid.Just("*"), field(1, 28))
	month := rapid.OneOf(rapid.Just("*"), rapid.Just("*"), field(1, 12))
	weekday := rapid.OneOf(rapid.Just("*"), rapid.Just("?"), field(0, 6))
	return rapid.Custom(func(t *rapid.T) string {
		fields := []string{
			field(0, 59).Draw(t, "minute"), night.Draw(t, "hour"), day.Draw(t, "day"), month.Draw(t,
				"month"), weekday.Draw(t, "weekday"),
		}
		if rapid.IntRange(0, 3).Draw(t, "with seconds") == 0 {
			fields = append([]string{field(0, 59).Draw(t, "second")}, fields...)
		}
		return strings.Join(fields, " ")
	})
}

func FuzzCron(f *testing.F) {
	for _, expr := range []string{"30 2 * * *", "*/5 0 0 1,15 * MON-fri", "@daily", "0 0 29 2 *",
		"0 0 30 2 ?", "TZ=UTC", "1,,2 * * * *", "*-5/3 * * * *"} {
		f.Add(expr, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, expr, zone string) {
		s := Cron(expr, zone)
		if s.Validate() != nil {
			assertNoTicks(t, s)
			return
		}
		// The canonical text is itself a spec, and the same one.
		text := strings.TrimPrefix(s.String(), "cron ")
		cut := strings.LastIndex(text, " ")
		again := Cron(text[:cut], text[cut+1:])
		require.Equal(t, s.String(), again.String())

		at := utc("2026-03-28T00:00:00Z")
		for range 5 {
			next := s.Next(at)
			require.True(t, next.After(at), "%v: %v after %v", s, next, at)
			require.Equal(t, next, again.Next(at))
			require.Equal(t, []time.Time{next}, s.LastN(at, next, 2))
			_, _, n := s.Span(at, next)
			require.EqualValues(t, 1, n)
			at = next
		}
	})
}

func texts(times []time.Time) []string {
	var out []string
	for _, t := range times {
		out = append(out, t.Format(time.RFC3339Nano))
	}
	return out
}
