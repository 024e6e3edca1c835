package sqlite

import (
	"database/sql"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/missing"
)

// queryPlan is what SQLite says it will do.
func queryPlan(t testing.TB, conn *sql.Conn, query string) string {
	t.Helper()
	var lines []string
	for _, row := range rowsOf(t, conn, "EXPLAIN QUERY PLAN "+query) {
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

func TestNothingALeaderDoesReadsAllRuns(t *testing.T) {
	missing.Long(t, "fills tables")
	s := newStore(t)
	conn := foreign(t, s)
	check := func(t *testing.T) {
		for name, query := range map[string]string{
			"insert job": sqlInsertJob, "move cursor": sqlMoveCursor, "insert skip": sqlInsertSkip,
			"insert run": sqlInsertRun,
			"paused by":  sqlPausedBy, "job exists": sqlJobExists,
			"retry": sqlRetry, "give up": sqlGiveUp, "finish": sqlFinish,
			"count done": sqlCountDone, "count failed": sqlCountFailed,
			"left": sqlLeft, "abandon": sqlAbandon, "retries": sqlRetries, "run": sqlRun,
			"runs of a job":  sqlRunsOfJob,
			"insert request": sqlInsertRequest, "take request": sqlTakeRequest,
			"insert answer": sqlInsertAnswer,
			"requests":      sqlRequests, "pending": sqlPending, "pending of": sqlPendingOf,
			"reset cursor": sqlResetCursor, "pauses": sqlPauses, "prune": sqlPrune,
		} {
			plan := queryPlan(t, conn, query)
			assert.Empty(t, scans(plan), "%s:\n%s", name, plan)
			if strings.Contains(name, "prune") || strings.Contains(name, "runs of a job") {
				assert.NotContains(t, plan, "TEMP B-TREE", "%s sorts:\n%s", name, plan)
			}
		}
		plan := queryPlan(t, conn, sqlRuns)
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
