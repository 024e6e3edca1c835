package schedlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// After a fail-over a later acquisition may be lost: nothing that the tables
// or the signs say spares the wait for a TTL.
func TestJudgeWaitsATTLAfterAFailOver(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name string
		view View
		ttl  time.Duration
	}{
		{"never held", View{}, fallbackTTL},
		{"released", View{Newest: endedTerm(tokenA, 5, 60*s)}, 60 * s},
		{"released by one with a short TTL", View{Newest: endedTerm(tokenA, 5, 10*s)}, fallbackTTL},
		{"a leftover of a term that has ended", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: endedTerm(tokenA, 5, 50*s)}, 60 * s},
		{"its holder is proven dead", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, 60 * s},
		{"no row, its holder is proven dead", View{Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, 60 * s},
		{"held", View{Row: rowOf(tokenA, 5, 1, 10*s), Newest: openTerm(tokenA, 5, 10*s)}, fallbackTTL},
		{"a TTL beyond all bounds", View{Newest: endedTerm(tokenA, 5, 1000*time.Hour)}, MaxTTL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.FailedOver = true
			j := judge(tc.view, Term{}, fallbackTTL)
			assert.Equal(t, wait, j.verdict)
			assert.Equal(t, EndExpired, j.reason)
			assert.Equal(t, tc.ttl, j.ttl)
		})
	}
}
