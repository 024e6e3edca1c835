package sqlite

import (
	"database/sql"
	"time"

	"example.com/schedlock/internal/columns"
)

func formatTime(t time.Time) string { return t.UTC().Format(columns.Layout) }

// formatOptional is NULL for the zero time.
func formatOptional(t time.Time) sql.NullString {
	if t.IsZero() {
		return sql.NullString{}
	}
	return sql.NullString{String: formatTime(t), Valid: true}
}

// stamp reads a time that only informs: one that somebody edited into nonsense
// becomes the zero time, since no stamp decides anything.
func stamp(s string) time.Time {
	t, _ := columns.ParseTime(s)
	return t
}

// wallClock stands in for the id of a boot where the wall clock decides. It
// goes on over a restart, so what it has stored stays valid.
const wallClock = "wall clock"

// wallNow is bootNow where there is no better clock.
func wallNow() (ms int64, bootID string) { return time.Now().UnixMilli(), wallClock }
