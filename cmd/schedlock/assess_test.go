package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/schedlock"
)

// What the databases of the other tests do not show.
func TestAssess(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	row := func(age, ttl time.Duration, state schedlock.State) *schedlock.Row {
		return &schedlock.Row{Ref: schedlock.Ref{Owner: schedlock.Owner{PID: 7, Hostname: "a"}, Term: 3}, State: state,
			HeartbeatAt: now.Add(-age), Timing: schedlock.Timing{TTL: ttl}}
	}
	ended := &schedlock.Term{Ref: schedlock.Ref{Term: 2}, EndedAt: now.Add(-time.Minute), EndReason: schedlock.EndReleased, TTL: 30 * time.Second}
	watched := row(time.Second, time.Minute, schedlock.StateLeading)
	watched.Grace = 5 * time.Second
	for _, tc := range []struct {
		name    string
		view    schedlock.View
		verdict verdict
		says    string
		atOnce  bool
		most    time.Duration
	}{
		{"fresh", schedlock.View{Row: row(time.Second, time.Minute, schedlock.StateLeading)}, held, "pid 7 on host \"a\" leads (term 3), last heartbeat 1s ago", false, time.Minute},
		{"draining", schedlock.View{Row: row(0, time.Minute, schedlock.StateDraining)}, held, "is draining (term 3)", false, time.Minute},
		{"one instant before the TTL", schedlock.View{Row: row(time.Minute-1, time.Minute, schedlock.StateLeading)}, held, "leads", false, time.Minute},
		{"at the TTL", schedlock.View{Row: row(time.Minute, time.Minute, schedlock.StateLeading)}, stale, "holds the lock", false, time.Minute},
		{"a little in the future", schedlock.View{Row: row(-time.Second, time.Minute, schedlock.StateLeading)}, held, "last heartbeat -1s ago", false, time.Minute},
		{"a TTL of a year is bounded", schedlock.View{Row: row(25*time.Hour, 9000*time.Hour, schedlock.StateLeading)}, stale, "TTL 24h0m0s", false, 24 * time.Hour},
		{"dead", schedlock.View{Row: row(0, time.Minute, schedlock.StateLeading), Sign: schedlock.SignDead}, dead, "proven dead", true, 0},
		{"dead, failed over", schedlock.View{Row: row(0, time.Minute, schedlock.StateLeading), Sign: schedlock.SignDead, FailedOver: true}, dead, "proven dead", false, time.Minute},
		{"session ended", schedlock.View{Row: watched, Sign: schedlock.SignEnded}, stale, "the database session of pid 7 on host \"a\" (term 3) has ended", false, 5 * time.Second},
		{"session ended, failed over", schedlock.View{Row: watched, Sign: schedlock.SignEnded, FailedOver: true}, held, "leads", false, time.Minute},
		{"free, failed over", schedlock.View{Newest: ended, FailedOver: true}, free, "may have lost a later one", false, 30 * time.Second},
		{"free", schedlock.View{Newest: ended}, free, "was released 1m0s ago", true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now = now
			a := assess(tc.view)
			assert.Equal(t, tc.verdict, a.verdict)
			assert.Contains(t, a.summary, tc.says)
			assert.Equal(t, tc.atOnce, a.standby.atOnce)
			assert.Equal(t, tc.most, a.standby.most)
		})
	}
}
