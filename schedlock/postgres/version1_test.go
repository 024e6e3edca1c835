package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// The statements of the ledger as code of version 1 has them: it must survive
// the deploy of version 2, and a roll-back.
const (
	v1Jobs = `SELECT job, spec, cursor_at FROM scheduler_jobs ORDER BY job`

	v1Guard = `
WITH settings AS MATERIALIZED (
    SELECT clock_timestamp() AS now,
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
               WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
), held AS MATERIALIZED (
    SELECT s.now FROM settings s CROSS JOIN scheduler_lock l
    WHERE l.id = 1 AND l.token = $1::text AND l.term = $2::bigint
    FOR KEY SHARE OF l
), `

	v1NewJob = `
moved AS (
    INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
    SELECT $3::text, $4::text, $5::timestamptz, h.now FROM held h WHERE $6::timestamptz IS NULL
    ON CONFLICT (job) DO NOTHING
    RETURNING updated_at AS now
), `

	v1MoveCursor = `
moved AS (
    UPDATE scheduler_jobs j SET spec = $4::text, cursor_at = $5::timestamptz, updated_at = h.now
    FROM held h
    WHERE j.job = $3::text AND j.cursor_at = $6::timestamptz AND j.cursor_at <= $5
    RETURNING h.now
), `

	v1Passed = `
skipped AS (
    INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error,
                                until, count)
    SELECT $3, k.first, 'skipped', $2, $7::bigint, $8::text, 0, k.reason,
           CASE WHEN k.count > 1 THEN k.last END, CASE WHEN k.count > 1 THEN k.count END
    FROM moved
    CROSS JOIN unnest($10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[])
        AS k (first, last, count, reason)
    ON CONFLICT (job, scheduled_at) DO NOTHING
), started AS (
    INSERT INTO scheduler_runs (job, scheduled_at, started_at, status, term, pid, hostname, attempt)
    SELECT $3, $9::timestamptz, m.now, 'in_progress', $2, $7, $8, 1
    FROM moved m WHERE $9 IS NOT NULL
    ON CONFLICT (job, scheduled_at) DO NOTHING
    RETURNING id, started_at
)
SELECT EXISTS (SELECT FROM held), EXISTS (SELECT FROM moved),
       (SELECT id FROM started), (SELECT started_at FROM started)`

	v1Finish = `
UPDATE scheduler_runs
SET status = $1::text, finished_at = clock_timestamp(), error = nullif($2::text, '')
WHERE id = $3::bigint AND term = $4::bigint AND attempt = $5::integer AND status = 'in_progress'`

	v1Abandon = `
UPDATE scheduler_runs SET status = 'abandoned', finished_at = clock_timestamp()
WHERE status = 'in_progress' AND term <> $1::bigint
RETURNING ` + v1RunColumns

	v1RunColumns = `id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname,
		attempt, error, until, count`

	v1Runs = `
SELECT ` + v1RunColumns + ` FROM scheduler_runs
ORDER BY scheduled_at DESC, id DESC LIMIT $1::bigint`
)

func TestCodeOfVersion1WorksWithTheTablesOfVersion2(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, conn := open(t, url), session(t, url)
	ref := acquire(t, s, time.Minute)
	decide := func(query string, from any, to time.Time) (id int64) {
		t.Helper()
		var (
			held, moved bool
			at          time.Time
		)
		require.NoError(t, conn.QueryRow(ctx, query, ref.Token.String(), ref.Term, "j", "s", to,
			from, int64(ref.PID), ref.Hostname, to,
			[]time.Time{to.Add(-2 * time.Second)}, []time.Time{to.Add(-time.Second)}, []int64{2},
			[]string{ledger.Missed}).Scan(&held, &moved, &id, &at))
		require.True(t, held && moved)
		return id
	}
	rows := func(query string, args ...any) int {
		t.Helper()
		rows, err := conn.Query(ctx, query, args...)
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowToMap)
		require.NoError(t, err)
		return len(all)
	}
	minute := func(n int) time.Time { return tick.Add(time.Duration(n) * time.Minute) }

	first := decide(v1Guard+v1NewJob+v1Passed, nil, tick)
	exec(t, conn, v1Finish, "failed", "why", first, ref.Term, 1)
	decide(v1Guard+v1MoveCursor+v1Passed, tick, minute(1))

	// Version 2 leads, and leaves a run that is owed an attempt, one in progress,
	// a request and a pause.
	ref = acquire(t, s, time.Minute)
	left, err := s.Abandon(ctx, ref, func(ledger.Run) time.Time { return minute(10) })
	require.NoError(t, err)
	require.Len(t, left, 1)
	_, started, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
		Spec: "s", From: minute(1), To: minute(2), Start: minute(2)})
	require.NoError(t, err)
	require.True(t, started)
	_, err = s.Trigger(ctx, ledger.Action{Job: "j", By: "me"})
	require.NoError(t, err)
	_, err = s.Pause(ctx, ledger.Action{By: "me"})
	require.NoError(t, err)

	// Version 1 again.
	ref = acquire(t, s, time.Minute)
	require.Equal(t, 1, rows(v1Abandon, ref.Term))
	id := decide(v1Guard+v1MoveCursor+v1Passed, minute(2), minute(3))
	exec(t, conn, v1Finish, "done", "", id, ref.Term, 1)
	require.Equal(t, 1, rows(v1Jobs))
	require.Equal(t, 7, rows(v1Runs, 100)) // four ticks, three ranges that were skipped

	// And version 2 takes up what it had left.
	ref = acquire(t, s, time.Minute)
	owed, err := s.Retries(ctx)
	require.NoError(t, err)
	require.Len(t, owed, 1)
	require.Equal(t, left[0], owed[0])
	inbox, err := s.Pending(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"j": 1}, inbox.Backlog)
	require.Len(t, inbox.Pauses, 1)
	jobs, err := s.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, minute(3), jobs[0].Cursor)
	require.EqualValues(t, 1, jobs[0].Failed, "what version 2 has counted")
}
