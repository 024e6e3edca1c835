package bans

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

// An import counts what it has written, and no ban twice, on MariaDB too.
func TestImportOnMariaDB(t *testing.T) {
	server := mytest.Start(t) // of its own: its goroutines are gone before those left are looked for
	db := server.Open(t, server.Database(t), "parseTime=true", "time_zone='%2B00:00'",
		"interpolateParams=true")
	s := NewStore(db, MySQL)
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.Migrate(t.Context()))
	lists := folder("a.txt", "192.0.2.1\n2001:db8::/32\n192.0.2.1\n",
		"b.txt", "192.0.2.1\n192.0.2.2\n")
	run := func(at time.Time) (bans, duplicates int) {
		r, err := s.Import(t.Context(), lists, nil, at)
		require.NoError(t, err)
		for _, f := range r.Files {
			require.NoError(t, f.Err)
			bans, duplicates = bans+f.Bans, duplicates+f.Duplicates
		}
		return bans, duplicates
	}
	bans, duplicates := run(t0)
	require.Equal(t, []int{3, 2}, []int{bans, duplicates})
	bans, duplicates = run(t0.Add(time.Minute))
	require.Equal(t, []int{3, 2}, []int{bans, duplicates}, "all are seen again")
	bans, duplicates = run(t0)
	require.Equal(t, []int{0, 5}, []int{bans, duplicates}, "all were seen later")
	latest, err := s.Latest(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, latest, 3)
	require.Equal(t, t0.Truncate(time.Microsecond), latest[0].FirstSeen)
	require.Equal(t, t0.Add(time.Minute+BanDuration).Truncate(time.Microsecond),
		latest[0].ExpiresAt)
	n, err := s.Expire(t.Context(), t0.Add(BanDuration+time.Hour), nil)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Zero(t, count(t, s))
}
