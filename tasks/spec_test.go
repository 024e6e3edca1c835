package tasks

import (
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/missing"
)

// Ticks yields the ticks of (after, upto], oldest first.
func (s Spec) Ticks(after, upto time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for tick := s.Next(after); !tick.IsZero() && !tick.After(upto) && yield(tick); {
			tick = s.Next(tick)
		}
	}
}

func TestSpecTextIsCanonical(t *testing.T) {
	t.Parallel()
	for want, spec := range map[string]Spec{
		"every 1h0m0s offset 12m3.5s": Every(time.Hour).Offset(12*time.Minute +
			3500*time.Millisecond),
		"every 1h0m0s offset 0s":             Every(time.Hour).Offset(0).ForJob("import"),
		"every 1h0m0s offset by job name":    Every(60 * time.Minute),
		"every 100ms offset 1µs":             Every(100 * time.Millisecond).Offset(time.Microsecond),
		"cron 30 2 * * * Europe/Berlin":      Cron("  30\t2 ? * * ", "Europe/Berlin"),
		"cron 0 9 * jan mon-fri UTC":         Cron("0 9 * JAN Mon-Fri", ""),
		"cron 0 * * * * UTC":                 Cron("@Hourly", "UTC").ForJob("import"),
		"cron 0 0 * * 0 UTC":                 Cron("0 0 0 * * 0", ""),
		"cron */5 0 0 1,15 * * Asia/Kolkata": Cron("*/5 0 0 1,15 * *", "Asia/Kolkata"),
	} {
		assert.NoError(t, spec.Validate())
		assert.Equal(t, want, spec.String())
	}
	assert.Equal(t, "invalid schedule every 1ms: the interval must be at least 100ms",
		Every(time.Millisecond).String())
}

func TestSpecErrorsNameValueAndRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec  Spec
		wants string
	}{
		{Spec{}, "schedule is empty: make one with Every or Cron"},
		{Every(0), "schedule every 0s: the interval must be at least 100ms"},
		{Every(-time.Hour), "schedule every -1h0m0s: the interval must be at least 100ms"},
		{Every(99 * time.Millisecond).Offset(0).ForJob("x"),
			"schedule every 99ms: the interval must be at least 100ms"},
		{Every(time.Second + 1),
			"schedule every 1.000000001s: the interval must be a whole number of microseconds"},
		{Every(time.Second).Offset(time.Second),
			"schedule every 1s with offset 1s: the offset must be at least 0 and below the interval"},
		{Every(time.Second).Offset(-1),
			"schedule every 1s with offset -1ns: the offset must be at least 0 and below the interval"},
		{Every(time.Second).Offset(1),
			"schedule every 1s with offset 1ns: the offset must be a whole number of microseconds"},
		{Every(time.Second).ForJob(""),
			`schedule "every 1s offset by job name": the name of the job is empty`},
		{Cron("@daily", "").Offset(0),
			`schedule "cron 0 0 * * * UTC" with offset 0s: only intervals have an offset`},
		{Cron("", "UTC"), "five fields are wanted, or six with seconds in front, and it has 0"},
		{Cron("* * * *", "UTC"), "and it has 4"},
		{Cron("* * * * * * *", "UTC"), "and it has 7"},
		{Cron("60 * * * *", "UTC"), "end of range (60) above maximum (59): 60"},
		{Cron("* * * * 7", "UTC"), "end of range (7) above maximum (6): 7"},
		{Cron("*/0 * * * *", "UTC"), "step of range should be a positive number"},
		{Cron("0 0 *-foo * *", "UTC"), `cannot read "*-foo" in field "*-foo"`},
		{Cron(", 0 * * *", "UTC"), `cannot read "" in field ","`},
		{Cron("+5 0 * * *", "UTC"), `cannot read "+5"`},
		{Cron("1,,2 0 * * *", "UTC"), `cannot read "" in field "1,,2"`},
		{Cron("@every 1h", "UTC"), "@every is refused: use Every"},
		{Cron("@reboot", "UTC"), "unknown descriptor @reboot"},
		{Cron("TZ=Europe/Berlin 0 0 * * *", "UTC"), "a time zone inside the expression is refused"},
		{Cron("CRON_TZ=Europe/Berlin", "UTC"), "a time zone inside the expression is refused"},
		{Cron("0 0 30 2 *", "UTC"), "day 30 never comes in month 2"},
		{Cron("0 0 31 2,4,6,9,11 *", "UTC"), "day 31 never comes in month 2,4,6,9,11"},
		{Cron("@daily", "Local"), "the zone of the machine is refused"},
		{Cron("@daily", "localtime"), "the zone of the machine is refused"},
		{Cron("@daily", "posix/localtime"), "the zone of the machine is refused"},
		{Cron("@daily", "right/Europe/Berlin"), "the zone belongs to the files of one machine"},
		{Cron("@daily", "Europe/Bonn"),
			`schedule cron "@daily" in zone "Europe/Bonn": ` +
				"unknown time zone: use a name such as Europe/Berlin"},
		{Cron("@daily", "CET+1"), "use a name such as Europe/Berlin"},
		{Cron("@daily", "../../etc/passwd"), "unknown time zone: use a name such as"},
	} {
		require.ErrorContains(t, tt.spec.Validate(), tt.wants)
		assert.Equal(t, "invalid "+tt.spec.Validate().Error(), tt.spec.String())
		assertNoTicks(t, tt.spec)
	}
	for _, rare := range []Spec{Cron("0 0 29 2 *", ""), Cron("0 0 30 2 mon", ""),
		Cron("0 0 30 2,3 *", "")} {
		assert.NoError(t, rare.Validate())
	}
}

func TestAnIntervalHasNoTicksBeforeItHasAnOffset(t *testing.T) {
	t.Parallel()
	assert.NoError(t, Every(time.Hour).Validate())
	assertNoTicks(t, Every(time.Hour))
	assert.False(t, Every(time.Hour).ForJob("import").Next(time.Time{}).IsZero())
	assert.False(t, Every(time.Hour).Offset(0).Next(time.Time{}).IsZero())
}

func assertNoTicks(t *testing.T, s Spec) {
	t.Helper()
	after, upto := utc("2000-01-01T00:00:00Z"), utc("2030-01-01T00:00:00Z")
	first, last, n := s.Span(after, upto)
	assert.True(t, s.Next(after).IsZero() && first.IsZero() && last.IsZero() && n == 0, "%v", s)
	assert.Empty(t, slices.Collect(s.Ticks(after, upto)))
	assert.Empty(t, s.LastN(after, upto, 3))
}

// Golden: these offsets hold for ever, a change would move the ticks of running
// fleets. Worked out with: printf NAME | sha256sum | cut -c-16, modulo the
// milliseconds of the interval.
func TestOffsetFollowsFromTheJobName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		every time.Duration
		want  time.Duration
	}{
		{"heartbeat", 10 * time.Second, 4181 * time.Millisecond},
		{"import", time.Hour, 2028423 * time.Millisecond},
		{"tick", time.Second, 195 * time.Millisecond},
		{"expire", 24 * time.Hour, 17135542 * time.Millisecond},
		{"größe", 150500 * time.Microsecond, 39 * time.Millisecond},
	} {
		s := Every(tt.every).ForJob(tt.name)
		assert.Equal(t, Every(tt.every).Offset(tt.want).String(), s.String(), tt.name)
		assert.Equal(t, s, s.ForJob("another name"), "an offset once given stays")
	}
}

func TestIntervalTicksLieOnTheirGrid(t *testing.T) {
	t.Parallel()
	hourly := Every(time.Hour).Offset(5 * time.Minute)
	assert.Equal(t, utc("2026-03-29T01:05:00Z"), hourly.Next(utc("2026-03-29T00:05:00Z")),
		"strictly after")
	assert.Equal(t, utc("2026-03-29T00:05:00Z"), hourly.Next(utc("2026-03-29T00:04:59.999999999Z")))
	assert.Equal(t, utc("2026-03-29T01:05:00Z"), hourly.Next(utc("2026-03-29T00:05:00.000000001Z")))
	assert.Equal(t, utc("1969-12-31T23:05:00Z"), hourly.Next(utc("1969-12-31T22:30:00Z")),
		"before the epoch")
	assert.Equal(t, utc("1970-01-01T00:05:00Z"), hourly.Next(utc("1970-01-01T00:00:00Z")))

	first, last, n := hourly.Span(utc("2026-01-01T00:05:00Z"), utc("2026-01-02T00:05:00Z"))
	assert.Equal(t, utc("2026-01-01T01:05:00Z"), first)
	assert.Equal(t, utc("2026-01-02T00:05:00Z"), last)
	assert.EqualValues(t, 24, n)

	assert.Equal(t, []time.Time{utc("1969-12-31T23:05:00Z"), utc("1970-01-01T00:05:00Z")},
		hourly.LastN(utc("1960-01-01T00:00:00Z"), utc("1970-01-01T01:04:00Z"), 2))

	_, _, n = Every(100*time.Millisecond).Offset(0).Span(utc("1970-01-01T00:00:00Z"),
		utc("2200-01-01T00:00:00Z"))
	assert.EqualValues(t, 84006*86400*10, n, "230 years have 84006 days")

	// An interval longer than most deploys live.
	yearly := Every(365 * 24 * time.Hour).Offset(0)
	assert.Equal(t, utc("2026-12-18T00:00:00Z"), yearly.Next(utc("2025-12-18T00:00:00Z")))
}

func TestTheEndsOfTheCalendar(t *testing.T) {
	missing.Long(t, "counts ticks of ten thousand years")
	t.Parallel()
	for _, s := range []Spec{
		Every(time.Hour).Offset(0),
		Every(time.Duration(math.MaxInt64 / 1000 * 1000)).Offset(0),
		Cron("* * * * * *", ""), Cron("@hourly", "Pacific/Kiritimati"), Cron("@daily",
			"America/Adak"),
	} {
		require.NoError(t, s.Validate())
		assert.True(t, s.Next(utc("9999-12-31T23:59:59.999999Z")).IsZero(), "%v", s)
		assert.True(t, s.Next(time.Unix(1<<40, 0)).IsZero(), "%v", s)
		first, last, n := s.Span(time.Unix(-1<<40, 0), time.Unix(1<<40, 0))
		assert.Equal(t, s.Next(time.Unix(-1<<40, 0)), first)
		assert.Equal(t, s.LastN(time.Time{}, time.Unix(1<<40, 0), 1), []time.Time{last})
		assert.Positive(t, n)
		assert.LessOrEqual(t, 1, first.Year())
		assert.GreaterOrEqual(t, 9999, last.Year())
		assert.Empty(t, s.LastN(time.Unix(-1<<40, 0), utc("0000-12-31T23:59:59.999999Z"), 1))
	}
	first, last, n := Cron("0 0 1 1 *", "").Span(time.Unix(-1<<40, 0), time.Unix(1<<40, 0))
	assert.Equal(t, utc("0001-01-01T00:00:00Z"), first)
	assert.Equal(t, utc("9999-01-01T00:00:00Z"), last)
	assert.EqualValues(t, 9999, n)
}

func TestAnEmptyRangeHasNoTicks(t *testing.T) {
	t.Parallel()
	at := utc("2026-05-01T00:00:00Z")
	for _, s := range []Spec{Every(time.Second).Offset(0), Cron("* * * * * *", "Europe/Berlin")} {
		for _, upto := range []time.Time{at, at.Add(-time.Hour), at.Add(time.Second - 1)} {
			_, _, n := s.Span(at, upto)
			assert.Zero(t, n)
			assert.Empty(t, s.LastN(at, upto, 9))
			assert.Empty(t, slices.Collect(s.Ticks(at, upto)))
		}
		assert.Nil(t, s.LastN(at, at.Add(time.Hour), 0))
		assert.Nil(t, s.LastN(at, at.Add(time.Hour), -1))
		assert.Len(t, s.LastN(at, at.Add(time.Minute), math.MaxInt), 60)
	}
}

// The ticks asked for one after the other with Next are the reference; all other
// questions must agree with them, wherever the range is cut.
func TestAllQuestionsAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := specGen().Draw(t, "spec")
		if err := s.Validate(); err != nil {
			t.Fatalf("%v", err)
		}
		a := timeGen().Draw(t, "a")
		var want []time.Time
		for at := a; len(want) < 40; {
			next := s.Next(at)
			if next.IsZero() {
				t.Skip("the end of the calendar")
			}
			if !next.After(at) || next.Location() != time.UTC || next.Nanosecond()%1000 != 0 {
				t.Fatalf("next after %v is %v", at, next)
			}
			if early := s.Next(next.Add(-1)); !early.Equal(next) {
				t.Fatalf("a moment before %v the next is %v", next, early)
			}
			want = append(want, next)
			at = next
		}
		n := rapid.IntRange(0, len(want)-1).Draw(t, "n")
		c := want[n].Add(-time.Duration(rapid.Int64Range(1, int64(want[n].Sub(a))).Draw(t, "back")))
		if rapid.Bool().Draw(t, "on the tick") {
			c = want[n]
		}
		for len(want) > 0 && want[len(want)-1].After(c) {
			want = want[:len(want)-1]
		}

		got := slices.Collect(s.Ticks(a, c))
		if !slices.EqualFunc(want, got, time.Time.Equal) {
			t.Fatalf("ticks of (%v, %v]: want %v, got %v", a, c, want, got)
		}
		first, last, count := s.Span(a, c)
		if count != int64(len(want)) {
			t.Fatalf("count of (%v, %v]: want %d, got %d", a, c, len(want), count)
		}
		if count > 0 && (!first.Equal(want[0]) || !last.Equal(want[len(want)-1])) {
			t.Fatalf("span: want %v to %v, got %v to %v", want[0], want[len(want)-1], first, last)
		}
		if count > 0 {
			edge := want[0].Add(-time.Microsecond)
			if _, _, n := s.Span(edge, c); n != count || len(s.LastN(edge, c, 99)) != len(want) {
				t.Fatalf("count of (%v, %v]: want %d, got %d", edge, c, count, n)
			}
		}
		k := rapid.IntRange(0, len(want)+1).Draw(t, "k")
		if got := s.LastN(a, c, k); !slices.Equal(got, want[max(len(want)-k, 0):]) {
			t.Fatalf("last %d of (%v, %v]: want %v, got %v", k, a, c, want, got)
		}
		b := a.Add(time.Duration(rapid.Int64Range(0, max(int64(c.Sub(a)), 0)).Draw(t, "b")))
		_, _, left := s.Span(a, b)
		if _, _, right := s.Span(b, c); c.After(a) && left+right != count {
			t.Fatalf("(a, b] has %d, (b, c] %d, (a, c] %d", left, right, count)
		}
	})
}

func TestIntervalTicksAreCongruentToTheOffset(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Int64Range(100_000, 40*365*86400*1e6).Draw(t, "d")
		offset := rapid.Int64Range(0, d-1).Draw(t, "offset")
		after := timeGen().Draw(t, "after")
		s := Every(time.Duration(d) * time.Microsecond).Offset(time.Duration(offset) * time.Microsecond)
		next := s.Next(after)
		if r := (next.UnixMicro() - offset) % d; r != 0 {
			t.Fatalf("%v: %v is off by %d µs", s, next, r)
		}
		if wait := next.Sub(after); wait <= 0 || wait > time.Duration(d)*time.Microsecond {
			t.Fatalf("%v: next after %v is %v", s, after, next)
		}
	})
}

func specGen() *rapid.Generator[Spec] {
	return rapid.Custom(func(t *rapid.T) Spec {
		if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			d := rapid.Int64Range(100_000, 400*86400*1e6).Draw(t, "d")
			s := Every(time.Duration(d) * time.Microsecond)
			return s.ForJob(rapid.StringN(1, 8, 20).Draw(t, "job"))
		}
		return Cron(cronExprGen().Draw(t, "expr"), rapid.SampledFrom(cronTestZones).Draw(t, "zone"))
	})
}

// timeGen draws times between 1900 and 2200, every second one close to a change
// of some clock.
func timeGen() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		at := time.Unix(0,
			0).Add(time.Duration(rapid.Int64Range(-70*365*86400*1e9, 230*365*86400*1e9).Draw(t,
			"at")))
		if rapid.Bool().Draw(t, "near a change") {
			loc, err := time.LoadLocation(rapid.SampledFrom(cronTestZones).Draw(t, "of"))
			if err != nil {
				t.Fatalf("%v", err)
			}
			if start, _ := at.In(loc).ZoneBounds(); !start.IsZero() {
				at = start.Add(time.Duration(rapid.Int64Range(-30*3600*1e9, 6*3600*1e9).Draw(t,
					"by")))
			}
		}
		return at
	})
}

func utc(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func BenchmarkSpan(b *testing.B) {
	after, upto := utc("2025-06-01T00:00:00Z"), utc("2026-06-01T00:00:00Z")
	for _, s := range []Spec{
		Every(time.Second).Offset(0), Cron("* * * * * *", ""), Cron("* * * * * *",
			"Europe/Berlin"), Cron("30 2 * * *", "Europe/Berlin"),
	} {
		b.Run(s.String(), func(b *testing.B) {
			for b.Loop() {
				s.Span(after, upto)
			}
		})
	}
}

func BenchmarkNext(b *testing.B) {
	after := utc("2025-06-01T00:00:00Z")
	for _, s := range []Spec{Every(time.Second).Offset(0), Cron("* * * * * *", ""),
		Cron("30 2 * * *", "Europe/Berlin"), Cron("0 0 29 2 *", "")} {
		b.Run(s.String(), func(b *testing.B) {
			for b.Loop() {
				s.Next(after)
			}
		})
	}
}
