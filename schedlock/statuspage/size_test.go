package statuspage

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// 1,000 terms and 10 jobs, each with more runs than the page reads, and texts that are as long as
// they get.
func TestAFullDatabaseMakesNoLargePage(t *testing.T) {
	missing.Long(t, "fills a database")
	t.Parallel()
	m := before(t, maxTerms*10*time.Minute)
	for i := range maxTerms {
		m.leads(fmt.Sprint("demoapp-7d9f8b6c5-", i%40), i, driver.EndRevoked)
		if i+1 == maxTerms {
			break
		}
		_, err := m.Revoke(ctx, m.ref.Term, "alice", strings.Repeat("why ", 200))
		require.NoError(t, err)
		m.pass(9 * time.Minute)
		m.ended(t, m.ref, driver.EndRevoked)
		m.pass(time.Minute)
	}
	for i := range 10 * laneMost {
		status := ledger.Done
		if i%3 == 0 {
			status = ledger.Failed
		}
		m.pass(6 * time.Second)
		m.job(fmt.Sprint("job-", i%10), status, time.Second, strings.Repeat("error ", 100))
	}
	h := newHandler(t, m.database, withControl)
	for _, span := range []string{"", "?span=15m", "?span=7d", "?span=all"} {
		w := get(h, "/"+span)
		require.Equal(t, http.StatusOK, w.Code)
		require.Less(t, w.Body.Len(), 300_000, span)
		require.Equal(t, 10*maxStrip, strings.Count(w.Body.String(), `<i class="d" title`)+
			strings.Count(w.Body.String(), `<i class="f" title`), "all squares are there")
		t.Logf("%q: %d bytes", span, w.Body.Len())
	}
}
