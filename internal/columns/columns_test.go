package columns

import (
	"database/sql"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/namedlock"
)

func TestATimeIsReadHoweverSomebodyHasWrittenIt(t *testing.T) {
	at := time.Date(2026, 3, 1, 13, 0, 0, 120456000, time.FixedZone("", 3600))
	for text, want := range map[string]time.Time{
		"2026-03-01T12:00:00.120456Z":      at,
		"2026-03-01T12:00:00Z":             at.Truncate(time.Second),
		"2026-03-01T13:00:00.120456+01:00": at,
		"2026-03-01 12:00:00":              at.Truncate(time.Second),
		"2026-03-01 12:00:00.12":           at.Truncate(10 * time.Millisecond),
		"-infinity":                        time.Unix(0, 0),
		"infinity":                         time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	} {
		for _, value := range []any{text, []byte(text)} {
			var got Time
			require.NoError(t, got.Scan(value))
			assert.NoError(t, got.Err)
			assert.True(t, got.Valid)
			assert.Equal(t, want.UTC(), got.Time, text)
			assert.Equal(t, want.UTC(), got.End())
		}
	}
	var got Time
	require.NoError(t, got.Scan(at))
	assert.Equal(t, Time{Time: at.UTC(), Valid: true}, got)
	require.NoError(t, got.Scan(nil))
	assert.Zero(t, got)
	assert.Zero(t, got.End(), "NULL: it has not ended")
}

func TestWhatIsNotATimeHasAnErrorAndEndsWhatItEnds(t *testing.T) {
	for _, value := range []any{"", "yesterday", "2026-13-01T12:00:00Z", strings.Repeat("9", 1000),
		int64(7)} {
		var got Time
		require.NoError(t, got.Scan(value))
		assert.True(t, got.Valid)
		assert.ErrorContains(t, got.Err, "not ")
		assert.Zero(t, got.Time)
		assert.Equal(t, time.Unix(0, 0).UTC(), got.End())
		r := Run{finished: got}
		assert.ErrorContains(t, r.Err(), "finished_at")
	}
}

func TestAnEditedDurationCannotOverflow(t *testing.T) {
	for ms, want := range map[int64]time.Duration{-1: 0, 0: 0, 1: time.Millisecond,
		1 << 62: 24 * time.Hour} {
		assert.Equal(t, want, Millis(ms))
	}
	for ms, want := range map[int64]time.Duration{-1: 0, math.MinInt64: 0, 366 * 86_400_000: 366 *
		24 * time.Hour, math.MaxInt64: math.MaxInt64 / 1_000_000 * time.Millisecond} {
		row := (&Named{TTL: sql.NullInt64{Int64: ms, Valid: true}}).Row(namedlock.Key{})
		assert.Equal(t, want, row.TTL)
	}
	assert.Equal(t, 3*time.Microsecond, Micros(3))
	assert.Zero(t, Micros(-3))
	assert.Positive(t, Micros(math.MaxInt64))
}
