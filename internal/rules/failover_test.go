package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/rules/rulestest"
	"example.com/schedlock/schedlock/driver"
)

// After a fail-over a later acquisition may be lost: nothing that the tables
// or the signs say spares the wait for a TTL.
func TestJudgeWaitsATTLAfterAFailOver(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name string
		view driver.Snapshot
		ttl  time.Duration
	}{
		{"never held", driver.Snapshot{}, fallbackTTL},
		{"released", driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)},
			60 * s},
		{"released by one with a short TTL",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 10*s)}, fallbackTTL},
		{"a leftover of a term that has ended",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 50*s)}, 60 * s},
		{"its holder is proven dead", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1,
			60*s), Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Sign: driver.SignDead},
			60 * s},
		{"no row, its holder is proven dead",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s),
				Sign: driver.SignDead}, 60 * s},
		{"held", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 10*s),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 10*s)}, fallbackTTL},
		{"a TTL beyond all bounds",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 1000*time.Hour)},
			driver.MaxTTL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.FailedOver = true
			j := Judge(tc.view, driver.Term{}, fallbackTTL)
			assert.Equal(t, Wait, j.Verdict)
			assert.Equal(t, driver.EndExpired, j.Reason)
			assert.Equal(t, tc.ttl, j.TTL)
		})
	}
}
