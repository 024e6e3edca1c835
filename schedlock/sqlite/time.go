package sqlite

import (
	"database/sql"
	"fmt"
	"math"
	"time"
)

// timeLayout is how times stand in the tables: UTC, of fixed width, so that
// text order is time order and a plain SQL shell shows and compares them
// (strftime('%Y-%m-%dT%H:%M:%fZ') gives the same to the millisecond).
const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// kept is the time as the tables keep it.
func kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// formatOptional is NULL for the zero time.
func formatOptional(t time.Time) sql.NullString {
	if t.IsZero() {
		return sql.NullString{}
	}
	return sql.NullString{String: formatTime(t), Valid: true}
}

// parseTime reads our own layout, and any other RFC 3339 time or SQLite
// timestamp that a hand may have written.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{timeLayout, time.RFC3339Nano, "2006-01-02 15:04:05.999999999"} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("time %.40q is not of the form %s", s, timeLayout)
}

func parseOptional(s sql.NullString) (time.Time, error) {
	if !s.Valid {
		return time.Time{}, nil
	}
	return parseTime(s.String)
}

// stamp reads a time that only informs: one that somebody edited into nonsense
// becomes the zero time, since no stamp decides anything.
func stamp(s string) time.Time {
	if s == "" { // NULL
		return time.Time{}
	}
	t, _ := parseTime(s)
	return t
}

func millis(d time.Duration) int64 { return d.Milliseconds() }

// fromMillis is bounded, so that an edited number cannot overflow.
func fromMillis(ms int64) time.Duration {
	const day = int64(24 * time.Hour / time.Millisecond)
	return time.Duration(min(max(ms, 0), day)) * time.Millisecond
}

// fromMicros is bounded for the same reason.
func fromMicros(us int64) time.Duration {
	return time.Duration(min(max(us, 0), math.MaxInt64/1000)) * time.Microsecond
}
