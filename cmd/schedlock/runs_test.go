package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// withRuns is a database with runs of job "import": one an hour, the latest an hour ago.
// Each has the status that a letter names: d is done, f failed.
func withRuns(t *testing.T, statuses string) string {
	t.Helper()
	path := withJobs(t, "import")
	var rows []string
	for i, letter := range statuses {
		status, message := "done", "NULL"
		if letter == 'f' {
			status, message = "failed", "'the list at https://lists.example.com/bans is gone'"
		}
		at := time.Now().UTC().Add(-time.Duration(i+1) * time.Hour).Format(stampFormat)
		rows = append(rows, fmt.Sprintf(`('import', '%s', '%[1]s', '%[1]s', '%s', 7, 4242,
			'web-2.example.com', 1, %s)`, at, status, message))
	}
	edit(t, path, `INSERT INTO scheduler_runs (job, scheduled_at, started_at, finished_at, status,
		term, pid, hostname, attempt, error) VALUES `+strings.Join(rows, ", "))
	return path
}

const stampFormat = "2006-01-02T15:04:05.000000Z"

func TestRunsOfOneStatusOrTime(t *testing.T) {
	t.Parallel()
	path := withRuns(t, "df"+strings.Repeat("d", 70)+"f")
	for args, want := range map[string]int{
		"":                                   20,
		"--status failed":                    2, // one is far behind what -n shows
		"--status failed -n 1":               1,
		"--status failed,done -n 100":        73,
		"--status failed --since 24h":        1,
		"--since 150m":                       2,
		"--since 3d":                         71, // all of them, as there is no -n
		"--since 3d -n 5":                    5,
		"--since 2001-02-03":                 73,
		"--since 2001-02-03T04:05:06+01:00":  73,
		"--since 2999-01-01 --status failed": 0,
	} {
		r := call(t, append(strings.Fields(args), "--json", "--db", path, "runs")...)
		if args != "" { // these are flags of the command
			r = call(t, append([]string{"runs", "--json", "--db", path},
				strings.Fields(args)...)...)
		}
		require.Equal(t, exitDone, r.code, r)
		var list []runJSON
		strict(t, r.out, &list)
		assert.Len(t, list, want, args)
	}
	for args, says := range map[string]string{
		"runs --status faild": `--status "faild" is none of in_progress, done, failed, abandoned ` +
			`and skipped; did you mean failed?`,
		"runs --since yesterday": `--since "yesterday" is neither a span such as 90m or 7d, nor a ` +
			`time such as 2026-03-01 or 2026-03-01T02:00:00Z`,
		"history --since -1h": `--since "-1h" is neither a span`,
	} {
		r := call(t, append(strings.Fields(args), "--db", path)...)
		assert.Equal(t, exitUsage, r.code, r)
		assert.Contains(t, r.err, says)
	}
}

func TestHistorySince(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	for i := range 30 { // the newest ended at once, the oldest 30 hours ago
		edit(t, path, fmt.Sprintf(`INSERT INTO scheduler_terms (term, token, pid, hostname,
			acquired_at, ended_at, end_reason, ttl_ms)
			VALUES (%d, 't%[1]d', 1, 'a', '%s', '%s', 'released', 60000)`, i+1,
			time.Now().UTC().Add(-time.Duration(30-i)*time.Hour).Format(stampFormat),
			time.Now().UTC().Add(-time.Duration(30-i)*time.Hour+time.Minute).Format(stampFormat)))
	}
	for since, want := range map[string]int{"90m": 1, "3d": 30} {
		var list []historyJSON
		strict(t, call(t, "history", "--since", since, "--json", "--db", path).out, &list)
		assert.Len(t, list, want, since)
	}
	var list []historyJSON
	strict(t, call(t, "history", "--since", "90m", "--json", "--db", path).out, &list)
	assert.NotNil(t, list[0].GapBeforeSeconds, "the term before it is known, though not shown")
}

// A ledgerOf has runs, newest first.
type ledgerOf struct {
	store
	runs []ledger.Run
}

func (l ledgerOf) Runs(_ context.Context, _ string, limit int) ([]ledger.Run, error) {
	return l.runs[:min(limit, len(l.runs))], nil
}

func TestASearchSaysWhetherItHasLookedAtAllRuns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var runs []ledger.Run
	for i := range 1000 {
		r := ledger.Run{ScheduledAt: now.Add(-time.Duration(i) * time.Minute), Status: ledger.Done}
		if i == 500 {
			r.Status = ledger.Failed
		}
		runs = append(runs, r)
	}
	failed := []ledger.Status{ledger.Failed}
	for _, tc := range []struct {
		n, most int
		from    time.Time
		wanted  []ledger.Status
		found   int
		all     bool
	}{
		{1, 1000, time.Time{}, failed, 1, true},
		{2, 2000, time.Time{}, failed, 1, true},
		{1, 500, time.Time{}, failed, 0, false},
		{1, 500, now.Add(-time.Hour), failed, 0, true},
		{400, 400, time.Time{}, nil, 400, true},
		{600, 400, time.Time{}, nil, 400, false},
	} {
		list, all, err := search(t.Context(), ledgerOf{runs: runs}, "", tc.n, tc.from, tc.wanted,
			tc.most)
		require.NoError(t, err)
		assert.Len(t, list, tc.found, tc)
		assert.Equal(t, tc.all, all, tc)
	}
}
