// Package columns reads the rows of the tables, in the same way for every store with SQL. A row
// has a list of columns, and Dest has the place for each of them, in the order of the list. All
// may be NULL, because of an outer join; and nothing in a row is trusted, since somebody may have
// edited it.
package columns

import (
	"database/sql"
	"fmt"
	"math"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// A Time is a column with a time, as text or as the driver's own time.
type Time struct {
	time.Time       // in UTC; zero: it is NULL, or not a time
	Valid     bool  // it is not NULL
	Err       error // why it is not a time
}

// Layout is how a database without a type for times keeps them: in UTC and of fixed width, so
// that the order of texts is that of times, and a plain SQL shell shows and compares them.
const Layout = "2006-01-02T15:04:05.000000Z"

// Scan implements sql.Scanner. It never fails, so that no row hides others: see Err.
func (t *Time) Scan(value any) error {
	*t = Time{Valid: value != nil}
	switch v := value.(type) {
	case nil:
	case time.Time:
		t.Time = v.UTC()
	case string:
		t.Time, t.Err = ParseTime(v)
	case []byte:
		t.Time, t.Err = ParseTime(string(v))
	default:
		t.Err = fmt.Errorf("%T %v is not a time", v, v)
	}
	return nil
}

// End is the time at which something has ended. What is not a time ends it too: it must not begin
// again because somebody has edited its end.
func (t *Time) End() time.Time {
	if t.Valid && t.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return t.Time
}

// ParseTime reads [Layout], and any other RFC 3339 time or SQL timestamp that somebody may have
// written. An infinite time of PostgreSQL becomes the first or the last second that Go can show.
func ParseTime(text string) (time.Time, error) {
	for _, layout := range []string{Layout, time.RFC3339Nano, "2006-01-02 15:04:05.999999999"} {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	switch text {
	case "infinity":
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), nil
	case "-infinity":
		return time.Unix(0, 0).UTC(), nil
	}
	return time.Time{}, fmt.Errorf("time %.40q is not of the form %s", text, Layout)
}

// Kept is a time as the tables keep it.
func Kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Millis reads a period in milliseconds: at most driver.MaxTTL, and not below 0.
func Millis(ms int64) time.Duration { return period(ms, time.Millisecond, driver.MaxTTL) }

// Micros reads a sum of durations in microseconds: one that is too long for Go becomes the longest.
func Micros(us int64) time.Duration { return period(us, time.Microsecond, math.MaxInt64) }

// period is n units: at most most, and not below 0.
func period(n int64, unit, most time.Duration) time.Duration {
	return time.Duration(min(max(n, 0), int64(most/unit))) * unit
}

// Each calls row for each row, after it was scanned into dest, and closes rows. It takes what a
// query has returned.
func Each(rows *sql.Rows, err error, dest []any, row func() error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if err := row(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// All returns the value of each row, as Each. With an error it returns none.
func All[T any](rows *sql.Rows, err error, dest []any, value func() T) ([]T, error) {
	all := []T{}
	if err := Each(rows, err, dest, func() error {
		all = append(all, value())
		return nil
	}); err != nil {
		return nil, err
	}
	return all, nil
}
