package assess

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/rules"
	"example.com/schedlock/internal/rules/rulestest"
	"example.com/schedlock/schedlock/driver"
)

func TestAssessSaysWhatAStandbyGoesBy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rulestest.DrawView(t)
		a, j := Of(v), rules.Judge(v, driver.Term{}, 40*time.Second)
		if a.AtOnce != (j.Verdict != rules.Wait) {
			t.Fatalf("%+v, but a standby judges %+v", a, j)
		}
		if a.TTL <= 0 || a.TTL > driver.MaxTTL || a.Grace < 0 || a.Grace > a.TTL ||
			(a.Grace > 0) != (j.Grace > 0) {
			t.Fatalf("%+v, but a standby judges %+v", a, j)
		}
		switch a.Verdict {
		case Free:
			if v.Row != nil || a.AtOnce == v.FailedOver {
				t.Fatalf("%+v", a)
			}
		case Dead:
			if a.AtOnce == v.FailedOver {
				t.Fatalf("%+v", a)
			}
		case Held, Stale:
			if v.Row == nil || a.AtOnce {
				t.Fatalf("%+v", a)
			}
		case Unfinished:
			if v.Row != nil || a.AtOnce {
				t.Fatalf("%+v", a)
			}
		default:
			t.Fatalf("%+v", a)
		}
	})
}

func TestAssessTellsALateLeader(t *testing.T) {
	const s = time.Second
	timing := func(every, deadline time.Duration) driver.Timing {
		return driver.Timing{TTL: time.Minute, RenewDeadline: deadline, HeartbeatInterval: every}
	}
	usual, short := timing(10*s, 45*s), timing(s/10, 45*s)
	for _, tc := range []struct {
		name   string
		timing driver.Timing
		age    time.Duration
		want   Lateness
	}{
		{"the second heartbeat may be under way", usual, 25*s - 1, OnTime},
		{"two are missing", usual, 25 * s, Late},
		{"a short interval", short, 1200*time.Millisecond - 1, OnTime},
		{"two of them are missing", short, 1200 * time.Millisecond, Late},
		{"one instant before the deadline", usual, 45*s - 1, Late},
		{"at the deadline", usual, 45 * s, PastDeadline},
		{"the row knows no deadline", timing(10*s, 0), 59 * s, Late},
		{"the row knows no interval", timing(0, 45*s), 59 * s, OnTime},
		{"a heartbeat ahead of the clock", usual, -s, OnTime},
		{"at the TTL the lease has run out", usual, time.Minute, OnTime},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, time.Minute),
				Now: rulestest.Noon.Add(tc.age)}
			v.Row.Timing = tc.timing
			assert.Equal(t, tc.want, Of(v).Lateness)
		})
	}
}

func TestAssessTellsALeaderFromASilentOne(t *testing.T) {
	for _, tc := range []struct {
		name   string
		age    time.Duration
		sign   driver.Sign
		want   Verdict
		change func(*driver.Snapshot)
	}{
		{"a fresh heartbeat", 0, driver.SignNone, Held, nil},
		{"one instant before the TTL", time.Minute - 1, driver.SignNone, Held, nil},
		{"at the TTL", time.Minute, driver.SignNone, Stale, nil},
		{"within a longer TTL", 90 * time.Second, driver.SignNone, Held,
			func(v *driver.Snapshot) { v.Row.Timing.TTL = 2 * time.Minute }},
		{"at the TTL, and it lives", time.Minute, driver.SignAlive, Stale, nil},
		{"a little in the future", 1 - time.Minute, driver.SignNone, Held, nil},
		{"a TTL in the future", -time.Minute, driver.SignNone, Stale, nil},
		{"its session has ended", 0, driver.SignEnded, Stale, nil},
		{"its session has ended, which is no sign", 0, driver.SignEnded, Held,
			func(v *driver.Snapshot) { v.Row.Grace = 0 }},
		{"its session has ended, after a fail-over", 0, driver.SignEnded, Held,
			func(v *driver.Snapshot) { v.FailedOver = true }},
		{"the row's TTL was edited down: the history's counts", 30 * time.Second,
			driver.SignNone, Held,
			func(v *driver.Snapshot) {
				v.Row.Timing.TTL, v.Newest = time.Second, rulestest.OpenTerm(rulestest.TokenA, 5,
					time.Minute)
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, time.Minute),
				Now: rulestest.Noon.Add(tc.age), Sign: tc.sign}
			v.Row.Grace = 5 * time.Second
			if tc.change != nil {
				tc.change(&v)
			}
			assert.Equal(t, tc.want, Of(v).Verdict)
		})
	}
}
