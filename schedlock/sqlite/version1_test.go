package sqlite

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// The statements of code of version 1, which runs beside this code during a
// deploy, and again after a roll-back.
const (
	v1Jobs = `
SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`

	v1InsertJob = `
INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job) DO NOTHING`

	v1MoveCursor = `
UPDATE scheduler_jobs SET spec = ?1, cursor_at = ?2, updated_at = ?3
WHERE job = ?4 AND cursor_at = ?5 AND cursor_at <= ?2`

	v1InsertSkip = `
INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                            until, count)
VALUES (?1, ?2, 'skipped', ?3, ?4, ?5, 0, ?6, ?7, ?8)
ON CONFLICT (job, scheduled_at) DO NOTHING`

	v1InsertRun = `
INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
VALUES (?1, ?2, ?3, 'in_progress', ?4, ?5, ?6, 1)
ON CONFLICT (job, scheduled_at) DO NOTHING
RETURNING id`

	v1Finish = `
UPDATE scheduler_runs SET status = ?1, finished_at = ?2, error = ?3
WHERE id = ?4 AND term = ?5 AND attempt = ?6 AND status = 'in_progress'`

	v1RunColumns = `id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname,
       attempt, error, until, count`

	v1Abandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = ?1
WHERE status = 'in_progress' AND term <> ?2
RETURNING ` + v1RunColumns

	v1Runs = `
SELECT ` + v1RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT ?1`

	v1RunsOfJob = `
SELECT ` + v1RunColumns + ` FROM scheduler_runs WHERE job = ?2
ORDER BY scheduled_at DESC LIMIT ?1`
)

// affected runs one of them, and returns how many rows it gave or changed.
func affected(t testing.TB, conn *sql.Conn, query string, args ...any) (n int64) {
	t.Helper()
	if n = int64(len(rowsOf(t, conn, query, args...))); n == 0 {
		n = ask[int64](t, conn, `SELECT changes()`)
	}
	return n
}

func TestCodeOfVersion1WorksOnTheseTables(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	old := foreign(t, s) // what code of version 1 would do
	ref := acquire(t, s)
	at := func(h int) string { return formatTime(noon.Add(time.Duration(h) * time.Hour)) }

	// What this code has left, and code of version 1 does not know.
	owed, _ := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon})
	finish(t, s, owed, ledger.End{Status: ledger.Failed, Error: "x", RetryAt: noon})
	second, _ := decide(t, s, ref, ledger.Decision{Job: "k", Spec: "s", To: noon, Start: noon})
	finish(t, s, second, ledger.End{Status: ledger.Failed, RetryAt: noon})
	_, started, err := s.Retry(bg, ref, second)
	require.NoError(t, err)
	require.True(t, started)
	request, err := s.Trigger(bg, order)
	require.NoError(t, err)
	stats := job(t, s, "j").Stats

	term := ref.Term + 1
	assert.EqualValues(t, 1, affected(t, old, v1Abandon, at(1), term), "the second attempt")
	assert.EqualValues(t, 2, affected(t, old, v1Jobs))
	assert.EqualValues(t, 1, affected(t, old, v1InsertJob, "new", "s", at(0), at(0)))
	assert.EqualValues(t, 1, affected(t, old, v1MoveCursor, "s2", at(3), at(3), "j", at(0)))
	assert.EqualValues(t, 1, affected(t, old, v1InsertSkip,
		"j", at(1), term, 1, "h", ledger.Missed, at(2), 2))
	assert.EqualValues(t, 1, affected(t, old, v1InsertRun, "j", at(3), at(3), term, 1, "h"))
	third, found, err := s.Run(bg, "j", noon.Add(3*time.Hour))
	require.NoError(t, err)
	require.True(t, found)
	assert.EqualValues(t, 1, affected(t, old, v1Finish, "done", at(4), nil, third.ID, term, 1))
	assert.EqualValues(t, 4, affected(t, old, v1Runs, 10))
	assert.EqualValues(t, 3, affected(t, old, v1RunsOfJob, 10, "j"))

	// This code takes up what is there.
	ref = acquire(t, s)
	left := retries(t, s)
	require.Len(t, left, 1, "what code of version 1 has given up is over")
	assert.Equal(t, owed.ID, left[0].ID)
	_, started, err = s.Retry(bg, ref, left[0])
	require.NoError(t, err)
	assert.True(t, started)
	_, started, err = s.Answer(bg, ref, request, "")
	require.NoError(t, err)
	assert.True(t, started)
	assert.Equal(t, stats, job(t, s, "j").Stats, "code of version 1 does not count")
	assert.Equal(t, "s2", job(t, s, "j").Spec)
	got, _, err := s.Run(bg, "k", noon)
	require.NoError(t, err)
	assert.Equal(t, ledger.Abandoned, got.Status)
	assert.True(t, got.Final())
	assert.Len(t, runs(t, s, ""), 5)
}
