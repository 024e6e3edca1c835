package sqlite

import (
	"context"
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
	t.Parallel()
	for edit, check := range map[string]func(t *testing.T, r *driver.Row){
		`token = 'mine now'`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, "mine now", r.RawToken)
			assert.Zero(t, r.Token)
		},
		`token = ''`: func(t *testing.T, r *driver.Row) {
			assert.Zero(t, r.Token)
		},
		`token = upper(token)`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, strings.ToUpper(r.RawToken), r.RawToken)
		},
		`token = 'nul' || char(0) || 'x'`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, "nul\x00x", r.RawToken)
		},
		`heartbeat_at = 'noon'`: func(t *testing.T, r *driver.Row) {
			assert.Zero(t, r.HeartbeatAt)
		},
		`heartbeat_at = '', created_at = ''`: func(t *testing.T, r *driver.Row) {
			assert.Zero(t, r.CreatedAt)
		},
		`heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', '2030-01-01')`: func(t *testing.T,
			r *driver.Row) {
			assert.Equal(t, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), r.HeartbeatAt)
		},
		`heartbeat_at = '9999-12-31T23:59:59Z'`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, 9999, r.HeartbeatAt.Year())
		},
		`ttl_ms = 0`: func(t *testing.T, r *driver.Row) {
			assert.Zero(t, r.Timing.TTL)
		},
		`ttl_ms = -5, heartbeat_ms = -1`: func(t *testing.T, r *driver.Row) {
			assert.Zero(t, r.Timing.TTL)
		},
		`ttl_ms = 9223372036854775807`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, driver.MaxTTL, r.Timing.TTL)
		},
		`term = 9223372036854775807`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, int64(1<<63-1), r.Term)
		},
		`term = -1, beat = -9223372036854775808`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, int64(-1<<63), r.Beat)
		},
		`pid = -1, hostname = ''`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, -1, r.PID)
		},
		`pid = 9223372036854775807`: func(t *testing.T, r *driver.Row) {
			assert.NotZero(t, r.PID)
		},
		`state = 'revoked'`: func(t *testing.T, r *driver.Row) {
			assert.Equal(t, driver.StateRevoked, r.State)
		},
		`file_id = 'nonsense'`: func(t *testing.T, r *driver.Row) {},
	} {
		t.Run(edit, func(t *testing.T) {
			s := newStore(t)
			acquire(t, s, nobody)
			run(t, foreign(t, s), `UPDATE scheduler_lock SET `+edit)
			v := look(t, s)
			require.NotNil(t, v.Row)
			check(t, v.Row)
			_, err := schedlock.GetLockInfo(bg, s)
			assert.NoError(t, err)
			if v.Row.Term < 1<<63-1 {
				acquire(t, s, nobody) // whoever has judged this row can replace it
			}
		})
	}
}

func TestAHistoryThatAHandHasEditedIsStillRead(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
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
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
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
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, shell, s.Path(), query).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, want, strings.TrimSpace(string(out)))
}
