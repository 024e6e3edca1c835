package tasks

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Cron is due when the clock on the wall of a time zone shows a time that the
// expression names.
//
// The expression has five fields (minute, hour, day of month, month, day of
// week), or six with seconds in front; or it is one of @yearly, @annually,
// @monthly, @weekly, @daily, @midnight, @hourly. Fields are read as robfig/cron
// and gocron read them: * or ?, numbers, names (mon, jan), ranges, steps, lists;
// Sunday is 0. When both the day of month and the day of week are restricted, a
// day needs to match only one of them. Refused are @every (use [Every]), a zone
// inside the expression (use zone), and a day that never comes (30 February).
//
// zone is a name of the IANA time zone database such as Europe/Berlin; "" is
// UTC. "Local" is refused: two replicas may disagree on it.
//
// # Changes of the clock
//
// Ticks are instants, and the rule for daylight saving time is that of Vixie
// cron, which Debian and most others use (cron(8), "Daylight Saving Time and
// other time changes"):
//
//   - A schedule at fixed times has no * or ? in seconds, minute and hour
//     ("30 2 * * *", "0 0-23 * * *", @daily). Times that the clock skips give one
//     tick, at the first instant after the gap; times that the clock shows twice
//     are ticks only the first time. So a daily job runs once on every day.
//   - Every other schedule ("0 * * * *", "*/15 2 * * *", @hourly) follows the
//     clock: nothing for skipped times, a tick each time a repeated time is
//     shown. So an hourly job runs in every real hour: 23 and 25 times.
//   - A change of three hours or more (Samoa skipped 30 December 2011) is a new
//     clock, not a daylight saving change: both kinds follow it.
//
// Several skipped times of one gap are one tick, where Vixie cron would start
// the job several times in a row: one instant is one run.
func Cron(expr, zone string) Spec {
	c, err := parseCron(expr, zone)
	if err != nil {
		return specErrorf("schedule cron %q in zone %q: %w", expr, zone, err)
	}
	return Spec{cron: c}
}

// cronSpec is a schedule of wall times (cronWall) in a time zone.
//
// The library parses; its Next is not used. In v3.0.1 "30 2 * * *" in
// Europe/Berlin is not due at all on 29 March 2026 and twice on 25 October, a
// schedule at midnight loses the day whose midnight is skipped, 29 February is
// given up for lost in 2096 (the next is more than five years off), and nothing
// can be counted or searched backwards. Here the zone is cut into stretches of
// one UTC offset (cronStretch); inside a stretch wall time is plain arithmetic.
type cronSpec struct {
	expr  string // canonical
	zone  string
	loc   *time.Location
	wall  cronWall
	fixed bool // no * in seconds, minute and hour
}

const cronMaxShift = 3 * 60 * 60 // seconds; see "Changes of the clock"

var (
	cronParser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month |
		cron.Dow)

	// The library would read "*-foo" as "*" and drop empty elements.
	cronElement = regexp.MustCompile(`^(\*|([0-9]+|[a-z]{3})(-([0-9]+|[a-z]{3}))?)(/[0-9]+)?$`)

	cronDescriptors = map[string]string{
		"@yearly":   "0 0 1 1 *",
		"@annually": "0 0 1 1 *",
		"@monthly":  "0 0 1 * *",
		"@weekly":   "0 0 * * 0",
		"@daily":    "0 0 * * *",
		"@midnight": "0 0 * * *",
		"@hourly":   "0 * * * *",
	}
)

// The seconds that can be ticks: cronBegin ≤ t < cronEnd.
var (
	cronBegin = specFloorDiv(specMin, 1e6)
	cronEnd   = specFloorDiv(specMax, 1e6) + 1
)

func parseCron(expr, zone string) (*cronSpec, error) {
	loc, err := cronZone(zone)
	if err != nil {
		return nil, err
	}
	fields, err := cronFields(expr)
	if err != nil {
		return nil, err
	}
	parsed, err := cronParser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, err
	}
	wall := newCronWall(parsed.(*cron.SpecSchedule))
	if !wall.occurs() {
		return nil, fmt.Errorf("day %s never comes in month %s", fields[3], fields[4])
	}
	c := &cronSpec{zone: loc.String(), loc: loc, wall: wall}
	c.fixed = !strings.Contains(strings.Join(fields[:3], " "), "*")
	if fields[0] == "0" {
		fields = fields[1:]
	}
	c.expr = strings.Join(fields, " ")
	return c, nil
}

// cronFields returns the six fields of expr in their canonical form.
func cronFields(expr string) ([]string, error) {
	expr = strings.ToLower(strings.TrimSpace(expr))
	switch {
	case strings.HasPrefix(expr, "tz="), strings.HasPrefix(expr, "cron_tz="):
		return nil, errors.New("a time zone inside the expression is refused: give it as the zone")
	case strings.HasPrefix(expr, "@every"):
		return nil, errors.New("@every is refused: use Every")
	case strings.HasPrefix(expr, "@"):
		full, ok := cronDescriptors[expr]
		if !ok {
			return nil, fmt.Errorf("unknown descriptor %s: use @yearly, @annually, @monthly, @weekly, "+
				"@daily, @midnight or @hourly", expr)
		}
		expr = full
	}
	fields := strings.Fields(strings.ReplaceAll(expr, "?", "*"))
	switch len(fields) {
	case 5:
		fields = append([]string{"0"}, fields...)
	case 6:
	default:
		return nil, fmt.Errorf("five fields are wanted, or six with seconds in front, and it has "+
			"%d", len(fields))
	}
	for _, field := range fields {
		for element := range strings.SplitSeq(field, ",") {
			if !cronElement.MatchString(element) {
				return nil, fmt.Errorf("cannot read %q in field %q: use *, a number, a name, a range a-b, "+
					"with or without a step /n", element, field)
			}
		}
	}
	return fields, nil
}

// cronZoneName is the one way to write a name of the time zone database.
var cronZoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`)

func cronZone(zone string) (*time.Location, error) {
	switch name := strings.ToLower(zone); {
	case name == "local", strings.HasSuffix(name, "localtime"), strings.HasSuffix(name,
		"posixrules"):
		return nil, errors.New("the zone of the machine is refused, two replicas may disagree on it: " +
			"use a name such as Europe/Berlin")
	case strings.HasPrefix(name, "right/"), strings.HasPrefix(name, "posix/"):
		return nil,
			errors.New("the zone belongs to the files of one machine: use a name such as Europe/Berlin")
	}
	loc, err := time.LoadLocation(zone)
	// Europe//Berlin is a path to the same file, but no name.
	if err != nil || zone != "" && !cronZoneName.MatchString(zone) {
		return nil, errors.New("unknown time zone: use a name such as Europe/Berlin")
	}
	return loc, nil
}

func (c *cronSpec) String() string { return "cron " + c.expr + " " + c.zone }

func (c *cronSpec) next(from int64) (int64, bool) {
	for at := -specFloorDiv(-from, 1e6); at < cronEnd; {
		s := c.stretch(at)
		if s.makeUp && s.start >= at {
			return s.start * 1e6, true
		}
		if w, ok := c.wall.next(max(at, s.fresh)+s.offset, s.end-1+s.offset); ok {
			return (w - s.offset) * 1e6, true
		}
		at = s.end
	}
	return 0, false
}

func (c *cronSpec) prev(upto int64) (int64, bool) {
	for at := specFloorDiv(upto, 1e6); at >= cronBegin; {
		s := c.stretch(at)
		if w, ok := c.wall.prev(at+s.offset, s.fresh+s.offset); ok {
			return (w - s.offset) * 1e6, true
		}
		if s.makeUp {
			return s.start * 1e6, true
		}
		at = s.start - 1
	}
	return 0, false
}

func (c *cronSpec) count(from, upto int64) (n int64) {
	at, end := -specFloorDiv(-from, 1e6), specFloorDiv(upto, 1e6)
	for at <= end {
		s := c.stretch(at)
		if s.makeUp && s.start >= at {
			n++
		}
		n += c.wall.count(max(at, s.fresh)+s.offset, min(s.end-1, end)+s.offset)
		at = s.end
	}
	return n
}

// cronStretch is a stretch of time with one UTC offset; all in seconds.
type cronStretch struct {
	start, end int64 // start ≤ t < end
	offset     int64 // wall time − UTC
	// from here on wall times count; later than start where the clock shows times again
	fresh  int64
	makeUp bool // start is a tick, for times that the clock skipped, and not one by itself
}

// stretch returns the stretch that the given second lies in.
func (c *cronSpec) stretch(at int64) cronStretch {
	s := c.plainStretch(at)
	s.fresh = s.start
	if !c.fixed {
		return s
	}
	// Only the change at the start matters: no zone changes its clock twice
	// within three hours.
	before := c.plainStretch(s.start - 1)
	switch shift := s.offset - before.offset; {
	case shift <= -cronMaxShift, shift >= cronMaxShift: // a new clock
	case shift < 0:
		s.fresh = s.start - shift
	case shift > 0:
		s.makeUp = c.wall.count(s.start+before.offset, s.start+s.offset-1) > 0 &&
			c.wall.count(s.start+s.offset, s.start+s.offset) == 0
	}
	return s
}

func (c *cronSpec) plainStretch(at int64) cronStretch {
	t := time.Unix(at, 0).In(c.loc)
	_, offset := t.Zone()
	s := cronStretch{start: cronBegin, end: cronEnd, offset: int64(offset)}
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		s.start = max(s.start, start.Unix())
	}
	if !end.IsZero() {
		s.end = min(s.end, end.Unix())
	}
	if s.end <= at {
		// Go 1.26 gives every year 365 days when it works out an end from a rule:
		// on 31 December of a leap year the end lies behind. Nothing changes
		// before the day is over.
		s.end = (specFloorDiv(at, cronDay) + 1) * cronDay
	}
	return s
}

// cronWall is a set of wall times, with no zone: seconds since the Unix epoch as
// a clock in UTC would show them. The fields are bit sets.
type cronWall struct {
	second, minute, hour, dom, month, dow uint64
	eitherDay                             bool  // both kinds of day are restricted
	perDay                                int64 // how many times of day
}

const cronDay = 24 * 60 * 60

func newCronWall(s *cron.SpecSchedule) cronWall {
	const star = 1 << 63 // the library's mark for "unrestricted"
	w := cronWall{
		second: s.Second &^ star, minute: s.Minute &^ star, hour: s.Hour &^ star,
		dom: s.Dom &^ star, month: s.Month &^ star, dow: s.Dow &^ star,
		eitherDay: s.Dom&star == 0 && s.Dow&star == 0,
	}
	w.perDay = cronSize(w.hour) * cronSize(w.minute) * cronSize(w.second)
	return w
}

// occurs is false when no date ever matches.
func (w cronWall) occurs() bool {
	const leapYear = 2024
	for month := time.January; month <= time.December; month++ {
		days := time.Date(leapYear, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
		if w.month>>month&1 == 1 && (w.eitherDay || cronBelow(w.dom, int64(days)+1) > 0) {
			return true
		}
	}
	return false
}

// next is the first wall time from ≤ t ≤ upto.
func (w cronWall) next(from, upto int64) (int64, bool) {
	for day, sec := cronSplit(from); day*cronDay <= upto; day, sec = day+1, 0 {
		if k := w.rank(sec); k < w.perDay && w.hasDay(day) {
			t := day*cronDay + w.timeOfDay(k)
			return t, t <= upto
		}
	}
	return 0, false
}

// prev is the last wall time from ≤ t ≤ upto.
func (w cronWall) prev(upto, from int64) (int64, bool) {
	for day, sec := cronSplit(upto); (day+1)*cronDay > from; day, sec = day-1, cronDay-1 {
		if k := w.rank(sec + 1); k > 0 && w.hasDay(day) {
			t := day*cronDay + w.timeOfDay(k-1)
			return t, t >= from
		}
	}
	return 0, false
}

// count is the number of wall times from ≤ t ≤ upto.
func (w cronWall) count(from, upto int64) (n int64) {
	for day, _ := cronSplit(from); day*cronDay <= upto && from <= upto; day++ {
		if w.hasDay(day) {
			n += w.rank(min(upto+1-day*cronDay, cronDay)) - w.rank(max(from-day*cronDay, 0))
		}
	}
	return n
}

// hasDay tells whether the day (counted from the Unix epoch, a Thursday) matches.
func (w cronWall) hasDay(day int64) bool {
	_, month, date := time.Unix(day*cronDay, 0).UTC().Date()
	weekday := day + 4 - 7*specFloorDiv(day+4, 7)
	if w.month>>month&1 == 0 {
		return false
	}
	dom, dow := w.dom>>date&1 == 1, w.dow>>weekday&1 == 1
	if w.eitherDay {
		return dom || dow
	}
	return dom && dow
}

// rank is the number of times of day before the given second of the day, which
// may be the end of the day.
func (w cronWall) rank(sec int64) int64 {
	h, m, s := sec/3600, sec/60%60, sec%60
	n := cronBelow(w.hour, h)
	if n *= cronSize(w.minute); w.hour>>h&1 == 1 {
		n += cronBelow(w.minute, m)
	}
	if n *= cronSize(w.second); w.hour>>h&1 == 1 && w.minute>>m&1 == 1 {
		n += cronBelow(w.second, s)
	}
	return n
}

// timeOfDay is the second of the day of rank k, 0 ≤ k < perDay.
func (w cronWall) timeOfDay(k int64) int64 {
	minutes, seconds := cronSize(w.minute), cronSize(w.second)
	h, m, s := k/seconds/minutes, k/seconds%minutes, k%seconds
	return cronNth(w.hour, h)*3600 + cronNth(w.minute, m)*60 + cronNth(w.second, s)
}

func cronSplit(wall int64) (day, sec int64) {
	day = specFloorDiv(wall, cronDay)
	return day, wall - day*cronDay
}

func cronSize(set uint64) int64 { return int64(bits.OnesCount64(set)) }

// cronBelow is the number of members smaller than i.
func cronBelow(set uint64, i int64) int64 { return cronSize(set & (1<<i - 1)) }

// cronNth is the n-th member in ascending order, counted from 0.
func cronNth(set uint64, n int64) int64 {
	for ; n > 0; n-- {
		set &= set - 1
	}
	return int64(bits.TrailingZeros64(set))
}
