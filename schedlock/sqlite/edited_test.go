package sqlite

import (
	"math"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func TestARowThatAHandHasEditedIsStillRead(t *testing.T) {
	missing.Long(t, "makes 16 databases")
	t.Parallel()
	for edit, change := range map[string]func(r *driver.Row){
		`token = 'mine'`:       func(r *driver.Row) { r.RawToken, r.Token = "mine", driver.Token{} },
		`token = ''`:           func(r *driver.Row) { r.RawToken, r.Token = "", driver.Token{} },
		`token = upper(token)`: func(r *driver.Row) { r.RawToken = strings.ToUpper(r.RawToken) },
		`token = 'nul' || char(0) || 'x'`: func(r *driver.Row) {
			r.RawToken, r.Token = "nul\x00x", driver.Token{}
		},
		`heartbeat_at = 'noon', created_at = ''`: func(r *driver.Row) {
			r.HeartbeatAt, r.CreatedAt = time.Time{}, time.Time{}
		},
		`heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', '2030-01-01')`: func(r *driver.Row) {
			r.HeartbeatAt = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		},
		`heartbeat_at = '9999-12-31T23:59:59Z'`: func(r *driver.Row) {
			r.HeartbeatAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		},
		`ttl_ms = 0`: func(r *driver.Row) { r.Timing.TTL = 0 },
		`ttl_ms = -5, heartbeat_ms = -1`: func(r *driver.Row) {
			r.Timing.TTL, r.Timing.HeartbeatInterval = 0, 0
		},
		`ttl_ms = 9223372036854775807`: func(r *driver.Row) { r.Timing.TTL = driver.MaxTTL },
		`term = 9223372036854775807`:   func(r *driver.Row) { r.Term = math.MaxInt64 },
		`term = -1, beat = -9223372036854775808`: func(r *driver.Row) {
			r.Term, r.Beat = -1, math.MinInt64
		},
		`pid = -1, hostname = ''`:   func(r *driver.Row) { r.PID, r.Hostname = -1, "" },
		`pid = 9223372036854775807`: func(r *driver.Row) { r.PID = math.MaxInt },
		`state = 'revoked'`:         func(r *driver.Row) { r.State = driver.StateRevoked },
		`file_id = 'nonsense'`:      func(r *driver.Row) {},
	} {
		t.Run(edit, func(t *testing.T) {
			s := newStore(t)
			acquire(t, s)
			want := look(t, s).Row
			change(want)
			run(t, foreign(t, s), `UPDATE scheduler_lock SET `+edit)
			assert.Equal(t, want, look(t, s).Row)
			_, err := schedlock.GetLockInfo(bg, s)
			assert.NoError(t, err)
			if want.Term < math.MaxInt64 {
				acquire(t, s) // whoever has judged this row can replace it
			}
		})
	}
}

func TestAHistoryThatAHandHasEditedIsStillRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	release(t, s, ref)
	for _, edit := range []string{`ended_at = 'long ago'`, `ended_at = ''`,
		`acquired_at = 'x', token = 'y', ttl_ms = -1`} {
		run(t, foreign(t, s), `UPDATE scheduler_terms SET `+edit)
		v := look(t, s)
		assert.False(t, v.Newest.Open(), "any text ends a term: %s", edit)
		_, err := s.Terms(bg, 10)
		assert.NoError(t, err)
	}
}

func TestAPlainShellCanReadTheTimes(t *testing.T) {
	t.Parallel()
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s)
	clock.add(90 * time.Second)
	beat(t, s, ref)
	const query = `
SELECT heartbeat_at, round((julianday(heartbeat_at) - julianday(created_at)) * 86400),
    strftime('%s', heartbeat_at), heartbeat_at > created_at, datetime(heartbeat_at, '+1 hour')
FROM scheduler_lock`
	const want = "2026-03-01T12:01:30.123456Z|90.0|1772366490|1|2026-03-01 13:01:30"
	var got [5]string
	require.NoError(t, foreign(t, s).QueryRowContext(bg,
		query).Scan(&got[0], &got[1], &got[2], &got[3], &got[4]))
	assert.Equal(t, strings.Replace(want, "90.0", "90", 1),
		strings.Replace(strings.Join(got[:], "|"), "90.0", "90", 1))

	shell, err := exec.LookPath("sqlite3")
	if err != nil {
		missing.Skip(t, "the program sqlite3 (the same query was run through the driver)")
	}
	out, err := exec.CommandContext(lasting(t, time.Minute), shell, s.Path(),
		query).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, want, strings.TrimSpace(string(out)))
}
