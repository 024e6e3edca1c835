package sqlite

import (
	"database/sql"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/ledgersql"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
)

// queryPlan is what SQLite says it will do.
func queryPlan(t testing.TB, conn *sql.Conn, query string) string {
	t.Helper()
	var (
		lines []string
		args  []any
	)
	if !strings.Contains(query, "?1") { // those with numbers may be left out
		args = make([]any, strings.Count(query, "?"))
	}
	for _, row := range rowsOf(t, conn, "EXPLAIN QUERY PLAN "+query, args...) {
		lines = append(lines, row[3].(string)) // after id, parent and what is not used
	}
	return strings.Join(lines, "\n")
}

// The partial indexes hold only what has not ended, so reading one of them
// from end to end is cheap.
var (
	scan    = regexp.MustCompile(`SCAN scheduler_runs.*`)
	partial = regexp.MustCompile(`INDEX scheduler_runs_(in_progress|retry_at)\b`)
)

func scans(plan string) (found []string) {
	for _, line := range scan.FindAllString(plan, -1) {
		if !partial.MatchString(line) {
			found = append(found, line)
		}
	}
	return found
}

// everyOperation calls what runs statements of the ledger, so that the store has prepared them.
func everyOperation(t *testing.T, s *Store) {
	t.Helper()
	ref := acquire(t, s)
	d := ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon,
		Skipped: []ledger.Skip{{First: noon.Add(-1), Last: noon, Count: 2, Reason: ledger.Missed}}}
	r, _ := decide(t, s, ref, d)
	finish(t, s, r, ledger.End{Status: ledger.Failed, RetryAt: noon})
	retries(t, s)
	next, _, err := s.Retry(bg, ref, r)
	require.NoError(t, err)
	finish(t, s, next, ledger.End{Status: ledger.Done})
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", From: noon, To: noon.Add(time.Minute),
		Start: noon.Add(time.Minute)})
	_, err = s.GiveUp(bg, ref, r)
	require.NoError(t, err)
	_, _, err = s.Run(bg, "j", noon)
	require.NoError(t, err)
	request, err := s.Trigger(bg, order)
	require.NoError(t, err)
	inbox(t, s)
	_, _, err = s.Answer(bg, ref, request, "")
	require.NoError(t, err)
	_, err = s.Pause(bg, order)
	require.NoError(t, err)
	_, err = s.Resume(bg, "j", "ann")
	require.NoError(t, err)
	_, err = s.ResetCursor(bg, order)
	require.NoError(t, err)
	ref.Term++ // so that all that is in progress was left
	run(t, foreign(t, s), `UPDATE scheduler_lock SET term = term + 1`)
	_, err = s.Abandon(bg, ref, nil)
	require.NoError(t, err)
	_, err = s.Prune(bg, "j", 1000, 1000)
	require.NoError(t, err)
}

func TestNothingALeaderDoesReadsAllRuns(t *testing.T) {
	missing.Long(t, "fills tables")
	s := newStore(t)
	conn := foreign(t, s)
	everyOperation(t, s)
	for _, field := range reflect.ValueOf(statements).Fields() {
		if query := field.String(); query != "" {
			require.Contains(t, s.stmts, query)
		}
	}
	queries := append(slices.Collect(maps.Keys(s.stmts)), ledgersql.SQLRunsOfJob)
	check := func(t *testing.T) {
		for _, query := range queries {
			plan := queryPlan(t, conn, query)
			assert.Empty(t, scans(plan), "%s:\n%s", query, plan)
			if query == sqlPrune || query == ledgersql.SQLRunsOfJob {
				assert.NotContains(t, plan, "TEMP B-TREE", "%s sorts:\n%s", query, plan)
			}
		}
		plan := queryPlan(t, conn, ledgersql.SQLRuns)
		assert.Contains(t, plan, "USING INDEX scheduler_runs_scheduled_at")
		assert.NotContains(t, plan, "TEMP B-TREE", "the newest are read, and no others")
		assert.NotEmpty(t,
			scans(queryPlan(t, conn, `DELETE FROM scheduler_runs WHERE error = 'x'`)),
			"the test sees a scan")
	}
	t.Run("as it begins", check)
	run(t, conn, `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, retry_at)
SELECT 'job ' || (i % 3), printf('2026-03-01T12:%02d:%02d.000000Z', i / 180, i / 3 % 60),
       CASE i WHEN 1 THEN 'in_progress' WHEN 2 THEN 'failed' ELSE 'done' END,
       1, 1, 'h', 1, CASE i WHEN 2 THEN 'x' END FROM n`)
	run(t, conn, `ANALYZE`)
	t.Run("with rows, after ANALYZE", check)
}
