// Package rulestest makes what a look may have seen, for tests.
package rulestest

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"example.com/schedlock/schedlock/driver"
)

// Noon is the time of every stamp that a test does not set.
var Noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// Tokens.
var (
	TokenA = driver.Token{0xa}
	TokenB = driver.Token{0xb}
)

func refOf(token driver.Token, term int64) driver.Ref {
	return driver.Ref{Owner: driver.Owner{PID: 1, Hostname: "h"}, Token: token, Term: term}
}

// RowOf is the row of a holder that leads.
func RowOf(token driver.Token, term, beat int64, ttl time.Duration) *driver.Row {
	return &driver.Row{Ref: refOf(token, term), RawToken: token.String(), Beat: beat,
		State:     driver.StateLeading,
		CreatedAt: Noon, HeartbeatAt: Noon, Timing: driver.Timing{TTL: ttl,
			RenewDeadline: ttl / 4 * 3, HeartbeatInterval: ttl / 6}}
}

// OpenTerm is a term without an end.
func OpenTerm(token driver.Token, term int64, ttl time.Duration) *driver.Term {
	return &driver.Term{Ref: refOf(token, term), AcquiredAt: Noon, TTL: ttl}
}

// EndedTerm is one whose holder has released.
func EndedTerm(token driver.Token, term int64, ttl time.Duration) *driver.Term {
	t := OpenTerm(token, term, ttl)
	t.EndedAt, t.EndReason = Noon, driver.EndReleased
	return t
}

// DrawView is any view, with few enough values that equal ones come up.
func DrawView(t *rapid.T) driver.Snapshot {
	token := rapid.SampledFrom([]driver.Token{{}, TokenA, TokenB})
	term := rapid.Int64Range(0, 4)
	ttl := rapid.SampledFrom([]time.Duration{math.MinInt64, -time.Second, 0, time.Millisecond,
		time.Minute, driver.MaxTTL + 1, math.MaxInt64})
	stamp := rapid.Map(rapid.Int64Range(-7200, 7200), func(s int64) time.Time {
		return Noon.Add(time.Duration(s) * time.Second)
	})
	v := driver.Snapshot{
		Now: stamp.Draw(t, "now"),
		Sign: rapid.SampledFrom([]driver.Sign{driver.SignNone, driver.SignAlive,
			driver.SignDead, driver.SignEnded, driver.SignEnded}).Draw(t, "sign"),
		Incarnation: rapid.SampledFrom([]string{"", "e"}).Draw(t, "epoch"),

		FailedOver: rapid.Bool().Draw(t, "failed over"),
	}
	if rapid.Bool().Draw(t, "row") {
		v.Row = RowOf(token.Draw(t, "token"), term.Draw(t, "term"),
			rapid.Int64Range(0, 2).Draw(t, "beat"), ttl.Draw(t, "ttl"))
		v.Row.Grace = ttl.Draw(t, "grace")
		v.Row.HeartbeatAt, v.Row.CreatedAt = stamp.Draw(t, "heartbeat"), stamp.Draw(t, "created")
	}
	if rapid.Bool().Draw(t, "newest") {
		v.Newest = OpenTerm(token.Draw(t, "newest token"), term.Draw(t, "newest term"),
			ttl.Draw(t, "newest ttl"))
		if rapid.Bool().Draw(t, "ended") {
			v.Newest.EndedAt = stamp.Draw(t, "end")
		}
	}
	return v
}
