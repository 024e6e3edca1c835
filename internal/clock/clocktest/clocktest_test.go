package clocktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var year2026 = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func TestForgedTimes(t *testing.T) {
	a := Forge(year2026, time.Hour)
	b := Forge(year2026.Add(time.Minute), time.Hour+time.Second)
	require.Equal(t, year2026.UnixNano(), a.UnixNano(), "the wall reading")
	require.Equal(t, time.Second, b.Sub(a), "Sub counts by the monotonic reading")
	require.Equal(t, time.Minute, b.Round(0).Sub(a.Round(0)), "without it by the wall")
}
