package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/schedlock/driver"
)

// What the databases of the other tests do not show.
func TestAssess(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	row := func(age, ttl time.Duration, state driver.State) *driver.Row {
		return &driver.Row{Ref: driver.Ref{Owner: driver.Owner{PID: 7, Hostname: "a"}, Term: 3},
			State: state, CreatedAt: now.Add(-4*time.Minute - 10*time.Second),
			HeartbeatAt: now.Add(-age), Timing: driver.Timing{TTL: ttl}}
	}
	ended := &driver.Term{Ref: driver.Ref{Term: 2}, EndedAt: now.Add(-time.Minute),
		EndReason: driver.EndReleased, TTL: 30 * time.Second}
	watched := row(time.Second, time.Minute, driver.StateLeading)
	watched.Grace = 5 * time.Second
	for _, tc := range []struct {
		name    string
		view    driver.Snapshot
		verdict verdict
		says    string
		atOnce  bool
		most    time.Duration
	}{
		{"at the TTL", driver.Snapshot{Row: row(time.Minute, time.Minute, driver.StateLeading)},
			stale, "holds the lock", false, time.Minute},
		{"a TTL of a year is bounded", driver.Snapshot{Row: row(25*time.Hour, 9000*time.Hour,
			driver.StateLeading)}, stale, "TTL 24h0m0s", false, 24 * time.Hour},
		{"dead", driver.Snapshot{Row: row(0, time.Minute, driver.StateLeading),
			Sign: driver.SignDead}, dead, "proven dead", true, 0},
		{"dead, failed over", driver.Snapshot{Row: row(0, time.Minute, driver.StateLeading),
			Sign: driver.SignDead, FailedOver: true}, dead, "proven dead", false, time.Minute},
		{"session ended", driver.Snapshot{Row: watched, Sign: driver.SignEnded}, stale,
			"the database session of pid 7 on host \"a\" (term 3) has ended", false,
			5 * time.Second},
		{"session ended, failed over", driver.Snapshot{Row: watched, Sign: driver.SignEnded,
			FailedOver: true}, held, "has led", false, time.Minute},
		{"free, failed over", driver.Snapshot{Newest: ended, FailedOver: true}, free,
			"may have lost a later one", false, 30 * time.Second},
		{"never held, failed over", driver.Snapshot{FailedOver: true}, free, "may have lost a term",
			false, time.Minute},
		{"free", driver.Snapshot{Newest: ended}, free, "was released 1m0s ago", true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now = now
			a := judge(tc.view)
			assert.Equal(t, tc.verdict, a.verdict)
			assert.Contains(t, a.summary, tc.says)
			assert.Equal(t, tc.atOnce, a.standby.atOnce)
			assert.Equal(t, tc.most, a.standby.most)
		})
	}
}

func TestAStandbyWaitsForAProofOfDeathOnlyWhereThereIsOne(t *testing.T) {
	v := driver.Snapshot{Now: time.Unix(1e9, 0), Row: &driver.Row{HeartbeatAt: time.Unix(1e9, 0),
		State: driver.StateLeading, Timing: driver.Timing{TTL: time.Minute}}}
	assert.Contains(t, judge(v).standby.text, "for a release; else")
	v.Sign = driver.SignAlive
	assert.Contains(t, judge(v).standby.text, "for a release or a proof of death; else")
}

func TestAStandbyWaitsForWhoKeepsTheRowLocked(t *testing.T) {
	v := driver.Snapshot{Now: time.Unix(1e9, 0), Blocker: "backend 7", Row: &driver.Row{
		HeartbeatAt: time.Unix(1e9-3600, 0), State: driver.StateLeading, Grace: 5 * time.Second,
		Timing: driver.Timing{TTL: time.Minute}}, Sign: driver.SignEnded}
	const end = "for the end of the transaction that keeps its row locked"
	assert.Equal(t, end+", and for the holder to come back, for 5s at most", judge(v).standby.text)
	v.Sign = driver.SignDead
	assert.Equal(t, wait{text: end, most: time.Minute}, judge(v).standby)
}
