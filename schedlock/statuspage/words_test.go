package statuspage

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A length that stands twice on a page looks the same, whatever it is the length of.
func TestALengthLooksTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 s", -time.Second: "0 s", 130 * time.Microsecond: "130 µs",
		51 * time.Millisecond: "51 ms", 300 * time.Millisecond: "300 ms",
		1990 * time.Millisecond: "1.9 s", 10 * time.Second: "10 s",
		12500 * time.Millisecond: "12.5 s", 59990 * time.Millisecond: "59.9 s",
		time.Minute: "1 min", 61 * time.Second: "1 min 1 s", 90 * time.Second: "1 min 30 s",
		time.Hour: "1 h", 3725 * time.Second: "1 h 2 min", 24 * time.Hour: "1 d",
		90 * time.Hour: "3 d 18 h",
	} {
		assert.Equal(t, want, took(d))
		if d%time.Second == 0 {
			assert.Equal(t, want, age(d), "a running age is in whole seconds")
			tag := fillAges(string(agoTag(noon)), noon.Add(d))
			assert.Contains(t, tag, ">"+want+"<")
		}
		if d >= time.Millisecond && d < time.Minute {
			s := &snapshot{self: schedlock.Status{State: schedlock.SelfSuspended,
				Reason: "its session has ended; gives up " + d.String() + " after the end"}}
			whole := took(d)
			if d > time.Second {
				whole = age(d)
			}
			assert.Equal(t, "its session has ended; gives up "+whole+" after the end",
				newHandler(t, newDatabase(), nil).reason(s), "in the words of the lock too")
		}
	}
	assert.Equal(t, "59 s", age(59900*time.Millisecond))
	assert.Equal(t, "every 1h offset 20m", shortSpec.Replace("every 1h0m0s offset 20m0s"))
}

// What this replica saw last may be older than what the page has just read.
func TestAReasonIsNotOlderThanWhoLeads(t *testing.T) {
	t.Parallel()
	row := &driver.Row{Ref: driver.Ref{Owner: other, Term: 7}, State: driver.StateLeading,
		HeartbeatAt: noon, Timing: timing}
	const old = "stands by; it has not looked at the lock since this changed"
	for _, tt := range []struct {
		row          *driver.Row
		reason, want string
	}{
		{row, `pid 41 on host "web-1" leads (term 7), last heartbeat 3s ago; takes over if no ` +
			`heartbeat arrives for 1m57s`, `pid 41 on host "web-1" leads (term 7), last heartbeat 3 s ` +
			`ago; takes over if no heartbeat arrives for 1 min 57 s`},
		{row, `pid 41 on host "web-1" leads (term 6), last heartbeat 3s ago`, old},
		{row, `pid 40 on host "web-1" is gone; about to take over`, old},
		{row, `the database session of pid 41 on host "web-0" (term 6) has ended`, old},
		{row, "the lock is free; about to take it", old},
		{row, "there is no lock row, but term 6 has no end: waits 3s more for its TTL", old},
		{nil, `pid 41 on host "web-1" leads (term 7), last heartbeat 3s ago`, old},
		{nil, "the lock is free; about to take it", "the lock is free; about to take it"},
	} {
		s := &snapshot{now: noon, view: driver.Snapshot{Now: noon, Row: tt.row},
			self: schedlock.Status{State: schedlock.SelfStandby, Reason: tt.reason}}
		h := newHandler(t, newDatabase(), nil)
		assert.Equal(t, tt.want, h.reason(s))
		s.blind = true
		assert.True(t, strings.HasPrefix(h.reason(s), tt.reason[:20]), "nothing newer is known")
	}
}

// A row of a monthly job may be years old.
func TestADayOfAnotherYearHasItsYear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it is the year 2000
		for at, want := range map[string]string{
			"2000-01-01T00:00:00Z": "1 Jan 00:00:00",
			"1999-11-30T23:59:58Z": "30 Nov 23:59:58",
			"1999-01-01T00:00:00Z": "1 Jan 1999 00:00:00",
			"2001-01-02T03:04:05Z": "2 Jan 2001 03:04:05",
		} {
			when, err := time.Parse(time.RFC3339, at)
			require.NoError(t, err)
			assert.Contains(t, string(stamp(when)), ">"+want+"<")
			run := ledger.Run{ScheduledAt: when, Until: when, Count: 2, RetryAt: when}
			assert.Equal(t, 3, strings.Count(describeRun(run), want), "%s", describeRun(run))
			assert.Equal(t, "from "+want+" UTC", runsQuery{since: when}.between())
		}
	})
}

func TestHowATermEndedInWords(t *testing.T) {
	t.Parallel()
	by := schedlock.Revocation{By: "alice", Reason: "deploy"}
	for want, term := range map[string]driver.Term{
		"released": {EndReason: driver.EndReleased},
		"expired, no heartbeat for its TTL of 1 min": {EndReason: driver.EndExpired,
			TTL: time.Minute},
		"proven dead: its process gave no sign in the lease file": {
			EndReason: driver.EndProvenDead},
		"its database session ended": {EndReason: driver.EndSessionEnded},
		"lost, it stepped down":      {EndReason: driver.EndLost},
		"revoked, it was told to leave by alice: deploy": {
			EndReason: driver.EndRevoked, Revoked: by},
		"lost, told to leave by alice: deploy": {EndReason: driver.EndLost, Revoked: by},
	} {
		assert.Equal(t, want, ending(term))
	}
}
