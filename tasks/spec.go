package tasks

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	// A static binary in an empty container image has no zone files of its own;
	// zone files of the machine, where there are any, still come first.
	_ "time/tzdata"
)

// Spec says when a job is due. It is an immutable value: make one with [Every]
// or [Cron]. The zero value is invalid.
//
// The due times, called ticks, are a pure function of the spec: they depend
// neither on when or where one asks nor on when a process started, so every
// replica of a fleet names the same instants, and a tick that was missed can
// still be named later. Two things must be alike everywhere for that: the spec,
// and for [Cron] the rules of its time zone, that is the time zone database of
// the machine (or of the binary, which carries one for machines without).
//
// Ticks lie on whole microseconds, between the years 1 and 9999, and are
// returned in UTC. A range of ticks is written (after, upto]: after is left
// out, upto is in.
//
// An error of a constructor is kept inside and returned by [Spec.Validate]; an
// invalid spec has no ticks, and neither has an interval that still waits for
// its offset (see [Spec.ForJob]). All methods may be called concurrently.
type Spec struct {
	err   error
	every specInterval
	cron  *cronSpec
}

// specMinInterval is the shortest interval: each tick costs a row in the ledger.
const specMinInterval = 100 * time.Millisecond

var errSpecZero = errors.New("schedule is empty: make one with Every or Cron")

// Every is due at all instants t ≡ offset (mod d), counted from the Unix epoch
// in UTC: Every(time.Hour).Offset(0) is due at each full hour of UTC, whenever
// the process started.
//
// d must be at least 100 ms and a whole number of microseconds. Unless
// [Spec.Offset] is given, [Spec.ForJob] derives the offset from the name of the
// job, so that the jobs of a fleet do not all start at the full hour.
func Every(d time.Duration) Spec {
	switch {
	case d < specMinInterval:
		return specErrorf("schedule every %v: the interval must be at least %v", d, specMinInterval)
	case d%time.Microsecond != 0:
		return specErrorf("schedule every %v: the interval must be a whole number of microseconds", d)
	}
	return Spec{every: specInterval{d: d.Microseconds()}}
}

// Offset returns s with its ticks moved to offset o, a whole number of
// microseconds with 0 ≤ o < interval. Only intervals have an offset.
func (s Spec) Offset(o time.Duration) Spec {
	switch d := s.every.interval(); {
	case s.Validate() != nil:
		return s
	case s.cron != nil:
		return specErrorf("schedule %q with offset %v: only intervals have an offset", s, o)
	case o < 0 || o >= d:
		return specErrorf("schedule every %v with offset %v: the offset must be at least 0 and below "+
			"the interval", d, o)
	case o%time.Microsecond != 0:
		return specErrorf("schedule every %v with offset %v: the offset must be a whole number of "+
			"microseconds", d, o)
	}
	s.every.offset, s.every.placed = o.Microseconds(), true
	return s
}

// ForJob returns the spec of the job with that name: an interval without an
// offset gets a whole number of milliseconds that follows from the name. Every
// other spec is returned as it is.
//
// The offset in milliseconds is the first eight bytes of the name's SHA-256, as
// a big-endian number, modulo the whole milliseconds of the interval. This never
// changes: a change would move the ticks of every running fleet.
func (s Spec) ForJob(name string) Spec {
	switch {
	case s.Validate() != nil || s.cron != nil || s.every.placed:
		return s
	case name == "":
		return specErrorf("schedule %q: the name of the job is empty, and the offset follows from it", s)
	}
	sum := sha256.Sum256([]byte(name))
	ms := binary.BigEndian.Uint64(sum[:8]) % uint64(s.every.d/1000)
	s.every.offset, s.every.placed = int64(ms)*1000, true
	return s
}

// Validate returns the first error made in building s: it names the value and
// the rule.
func (s Spec) Validate() error {
	if s.err == nil && s.every.d == 0 && s.cron == nil {
		return errSpecZero
	}
	return s.err
}

// String is the canonical text of s, as it is kept in scheduler_jobs:
//
//	every 1h0m0s offset 12m3.5s
//	cron 30 2 * * * Europe/Berlin
//
// Two specs with the same text have the same ticks.
func (s Spec) String() string {
	switch {
	case s.Validate() != nil:
		return "invalid " + s.Validate().Error()
	case s.cron != nil:
		return s.cron.String()
	}
	return s.every.String()
}

// ParseSpec is the inverse of [Spec.String]. A text that it cannot read, or one
// of an interval whose offset is not known, makes an invalid spec.
func ParseSpec(text string) Spec {
	fields := strings.Fields(text)
	switch {
	case len(fields) == 4 && fields[0] == "every" && fields[2] == "offset":
		d, err := time.ParseDuration(fields[1])
		o, err2 := time.ParseDuration(fields[3])
		if err := errors.Join(err, err2); err != nil {
			return specErrorf("schedule %q: %w", text, err)
		}
		return Every(d).Offset(o)
	case len(fields) > 2 && fields[0] == "cron":
		zone := len(fields) - 1
		return Cron(strings.Join(fields[1:zone], " "), fields[zone])
	}
	return specErrorf("schedule %q is neither \"every … offset …\" nor \"cron … zone\"", text)
}

// Next returns the first tick after the given time, never that time itself; the
// zero time when there is none.
func (s Spec) Next(after time.Time) time.Time {
	t, ok := s.ticks().next(specMicro(after) + 1)
	return specTime(t, ok)
}

// Span returns the first and the last tick of (after, upto] and how many there
// are; zero times and 0 when there are none.
//
// For an interval this is arithmetic. For a cron schedule the ticks are counted
// by the day, not one by one: a day of the range costs about 30 ns however many
// ticks it has, so a year of a schedule for every second costs ten
// microseconds, and the whole calendar (years 1 to 9999) a tenth of a second.
func (s Spec) Span(after, upto time.Time) (first, last time.Time, n int64) {
	ticks, from, to := s.ticks(), specMicro(after)+1, specMicro(upto)
	a, ok := ticks.next(from)
	if !ok || a > to {
		return time.Time{}, time.Time{}, 0
	}
	b, ok := ticks.prev(to)
	return specTime(a, true), specTime(b, ok), ticks.count(from, to)
}

// LastN returns the newest k ticks of (after, upto], oldest first; fewer when
// there are fewer, none when k ≤ 0. Its cost does not depend on how long the
// range is, only on k.
func (s Spec) LastN(after, upto time.Time, k int) []time.Time {
	var last []time.Time
	ticks, from, at := s.ticks(), specMicro(after)+1, specMicro(upto)
	for len(last) < k {
		t, ok := ticks.prev(at)
		if !ok || t < from {
			break
		}
		last = append(last, specTime(t, true))
		at = t - 1
	}
	slices.Reverse(last)
	return last
}

// specTicks is what a kind of schedule answers, in microseconds since the Unix
// epoch; every argument lies between specMin-1 and specMax+1, and no tick lies
// outside specMin and specMax.
type specTicks interface {
	next(from int64) (int64, bool) // the first tick ≥ from
	prev(upto int64) (int64, bool) // the last tick ≤ upto
	count(from, upto int64) int64  // how many ticks from ≤ t ≤ upto
}

// The first microsecond of the year 1 and the last of the year 9999, the years
// that RFC 3339 and SQL can write.
var (
	specMin = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	specMax = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC).UnixMicro()
)

func (s Spec) ticks() specTicks {
	switch {
	case s.err == nil && s.cron != nil:
		return s.cron
	case s.err == nil && s.every.placed:
		return s.every
	}
	return specNever{}
}

// specNever is the schedule of an invalid spec.
type specNever struct{}

func (specNever) next(int64) (int64, bool) { return 0, false }
func (specNever) prev(int64) (int64, bool) { return 0, false }
func (specNever) count(int64, int64) int64 { return 0 }

// specInterval is due at all t ≡ offset (mod d), in microseconds; the zero value
// is no interval. With |t| below 2^58 and 0 ≤ offset < d below 2^54 no sum here
// overflows.
type specInterval struct {
	d, offset int64
	placed    bool // the offset is known
}

func (e specInterval) next(from int64) (int64, bool) {
	t := e.offset + e.index(from-1)*e.d + e.d
	return t, t <= specMax
}

func (e specInterval) prev(upto int64) (int64, bool) {
	t := e.offset + e.index(upto)*e.d
	return t, t >= specMin
}

func (e specInterval) count(from, upto int64) int64 {
	return max(e.index(upto)-e.index(from-1), 0)
}

// index is the number k of the last tick offset + k·d that is not after t.
func (e specInterval) index(t int64) int64 { return specFloorDiv(t-e.offset, e.d) }

func (e specInterval) interval() time.Duration { return time.Duration(e.d) * time.Microsecond }

func (e specInterval) String() string {
	if !e.placed {
		return fmt.Sprintf("every %v offset by job name", e.interval())
	}
	return fmt.Sprintf("every %v offset %v", e.interval(), time.Duration(e.offset)*time.Microsecond)
}

// specMicro is the microsecond that t lies in, with times outside the years 1 to
// 9999 moved to just before and to the end of them.
func specMicro(t time.Time) int64 {
	switch year := t.UTC().Year(); {
	case year < 1:
		return specMin - 1
	case year > 9999:
		return specMax
	}
	return t.UnixMicro()
}

func specTime(micro int64, ok bool) time.Time {
	if !ok {
		return time.Time{}
	}
	return time.UnixMicro(micro).UTC()
}

// specFloorDiv rounds towards the past, where Go's division rounds towards the
// epoch.
func specFloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func specErrorf(format string, args ...any) Spec {
	return Spec{err: fmt.Errorf(format, args...)}
}
