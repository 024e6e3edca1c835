package statuspage

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/sqlite"
)

// fullStore is a SQLite file with 1,000 terms and 10 jobs, each with more runs than
// the page reads, and errors that are as long as they get.
func fullStore(t testing.TB) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Opener(filepath.Join(t.TempDir(), "app.db")).Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	const stamp = `strftime('%Y-%m-%dT%H:%M:%S.000000Z', `
	for _, text := range []string{
		`WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
			next_term, ttl_ms, revoked_at, revoked_by, revoke_reason)
		SELECT i, printf('%032x', i), i, 'demoapp-7d9f8b6c5-' || (i % 40),
			` + stamp + `'now', printf('-%d seconds', (1001 - i) * 600)),
			` + stamp + `'now', printf('-%d seconds', (1000 - i) * 600 + 60)),
			'revoked', i + 1, 60000,
			` + stamp + `'now'), 'alice', '` + strings.Repeat("why ", 200) + `' FROM n`,
		`WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 5000)
		INSERT INTO scheduler_runs (job, scheduled_at, started_at, finished_at, status, term, pid,
			hostname, attempt, error)
		SELECT 'job-' || (i % 10), ` + stamp + `'now', printf('-%d seconds', i * 6)),
			` + stamp + `'now', printf('-%d seconds', i * 6)), ` + stamp + `'now'),
			CASE WHEN i % 3 THEN 'done' ELSE 'failed' END, 1, 1, 'web-1', 1,
			CASE WHEN i % 3 THEN NULL ELSE '` + strings.Repeat("error ", 100) + `' END FROM n`,
		`INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at, done_count, failed_count,
			failure_streak, last_done_at, last_failed_at, last_error, done_us, longest_us)
		SELECT DISTINCT job, 'interval 1m0s', ` + stamp + `'now'), ` + stamp + `'now'), 1, 1,
			1, ` + stamp + `'now'), ` + stamp + `'now'), '` + strings.Repeat("error ", 100) + `',
			1000, 1000 FROM scheduler_runs`,
	} {
		_, err := store.DB().ExecContext(ctx, text)
		require.NoError(t, err)
	}
	return store
}

func TestAFullDatabaseMakesNoLargePage(t *testing.T) {
	missing.Long(t, "fills a database")
	t.Parallel()
	h := newHandler(t, fullStore(t), withControl)
	for _, span := range []string{"", "?span=15m", "?span=7d", "?span=all"} {
		w := get(h, "/"+span)
		require.Equal(t, http.StatusOK, w.Code)
		require.Less(t, w.Body.Len(), 300_000, span)
		require.Equal(t, 10*maxStrip, strings.Count(w.Body.String(), `<i class="d" title`)+
			strings.Count(w.Body.String(), `<i class="f" title`), "all squares are there")
		t.Logf("%q: %d bytes", span, w.Body.Len())
	}
}
