package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/sqlite"
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
		var list []runJSON
		strict(t, expect(t, exitDone, append([]string{"runs", "--json", "--db", path},
			strings.Fields(args)...)...), &list)
		assert.Len(t, list, want, args)
	}
	none := call(t, "runs", "--status", "abandoned", "--db", path)
	assert.Equal(t, "there are no runs that match\n", none.out, "there are others")
	for args, says := range map[string]string{
		"runs --status faild": `--status "faild" is none of in_progress, done, failed, abandoned ` +
			`and skipped; did you mean failed?`,
		"runs --since yesterday": `--since "yesterday" is neither a span such as 90m or 7d, nor a ` +
			`time such as 2026-03-01 or 2026-03-01T02:00:00Z`,
		"history --since -1h": `--since "-1h" is neither a span`,
	} {
		assert.Contains(t, expect(t, exitUsage, append(strings.Fields(args), "--db", path)...),
			says)
	}
}

func TestRunsWithTheirAttempts(t *testing.T) {
	t.Parallel()
	path := withRuns(t, "fd")
	edit(t, path, `UPDATE scheduler_runs SET attempt = 3 WHERE status = 'failed'`,
		`INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term,
			pid, hostname, error)
			SELECT id, 1, '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:02.500000Z', 'failed',
			5, 41, 'web-1', 'no space' FROM scheduler_runs WHERE attempt = 3`,
		`INSERT INTO scheduler_attempts (run_id, attempt, started_at, finished_at, status, term,
			pid, hostname)
			SELECT id, 2, '2026-01-01T00:01:00.000000Z', '2026-01-01T00:02:00.000000Z',
			'abandoned', 6, 42, 'web-3' FROM scheduler_runs WHERE attempt = 3`,
		`INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt, error)
			VALUES ('import', '2026-01-01T00:00:00.000000Z', 'skipped', 5, 41, 'web-1', 0, 'missed')`)
	var list []runJSON
	strict(t, call(t, "runs", "--json", "--db", path).out, &list)
	require.Len(t, list, 3)
	for _, r := range list {
		assert.Nil(t, r.Attempts, "they were not asked for")
	}
	strict(t, call(t, "runs", "--json", "--attempts", "--db", path).out, &list)
	require.Len(t, list[0].Attempts, 3)
	latest := list[0].Attempts[0]
	assert.Equal(t, attemptJSON{Attempt: 3, StartedAt: list[0].StartedAt,
		FinishedAt: list[0].FinishedAt, Status: ledger.Failed, TookSeconds: new(0.0), Term: 7,
		PID: 4242, Hostname: "web-2.example.com", Error: list[0].Error}, latest)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	assert.Equal(t, []attemptJSON{
		{Attempt: 2, StartedAt: timestamp(at.Add(time.Minute)),
			FinishedAt: timestamp(at.Add(2 * time.Minute)), Status: ledger.Abandoned,
			TookSeconds: new(60.0), Term: 6, PID: 42, Hostname: "web-3"},
		{Attempt: 1, StartedAt: timestamp(at), FinishedAt: timestamp(at.Add(2500 * time.Millisecond)),
			Status: ledger.Failed, TookSeconds: new(2.5), Term: 5, PID: 41, Hostname: "web-1",
			Error: "no space"},
	}, list[0].Attempts[1:])
	assert.Len(t, list[1].Attempts, 1)
	assert.Equal(t, []attemptJSON{}, list[2].Attempts, "of a skipped run")
	lines := strings.Split(call(t, "runs", "--attempts", "-o", "wide", "--db", path).out, "\n")
	require.Len(t, lines, 7)
	assert.Regexp(t, `^import +\S+ \S+ +3 +failed .* web-2.example.com +the list at `, lines[1])
	assert.Regexp(t, `^import +\S+ \S+ +2 +abandoned +\S+ \S+ +1m0s +6 +web-3 +-$`, lines[2])
	assert.Regexp(t, `^import +\S+ \S+ +1 +failed +\S+ \S+ +2.5s +5 +web-1 +no space$`, lines[3])
	assert.Regexp(t, `^import +\S+ \S+ +1 +done `, lines[4])
	assert.Regexp(t, `^import +\S+ \S+ +- +skipped [- ]+ missed$`, lines[5])
}

// A search reads a few runs first. A -n alone is a limit of its own.
func TestASearchReadsNoMoreThanItNeeds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &runsOnly{runs: make([]ledger.Run, 5000)}
	for i := range s.runs {
		s.runs[i] = ledger.Run{Status: ledger.Done,
			ScheduledAt: now.Add(-time.Duration(i) * time.Minute)}
	}
	s.runs[4000].Status = ledger.Failed
	for _, c := range []struct {
		name  string
		n     int
		from  time.Time
		want  []ledger.Status
		found int
		reads []int
	}{
		{"no search", 200_000, time.Time{}, nil, 5000, []int{200_000}},
		{"the last hour", math.MaxInt, now.Add(-time.Hour), nil, 61, []int{100}},
		{"the last four hours", math.MaxInt, now.Add(-4 * time.Hour), nil, 241, []int{100, 400}},
		{"a status", 1, time.Time{}, []ledger.Status{ledger.Failed}, 1,
			[]int{100, 400, 1600, 6400}},
		{"a status of the last hour", 1, now.Add(-time.Hour), []ledger.Status{ledger.Failed}, 0,
			[]int{100}},
	} {
		s.reads = nil
		list, err := search(t.Context(), s, "", c.n, c.from, c.want)
		require.NoError(t, err)
		assert.Len(t, list, c.found, c.name)
		assert.Equal(t, c.reads, s.reads, c.name)
	}
}

// runsOnly is a store of runs, which notes how many were asked for.
type runsOnly struct {
	store
	runs  []ledger.Run
	reads []int
}

func (s *runsOnly) Runs(_ context.Context, _ string, limit int) ([]ledger.Run, error) {
	s.reads = append(s.reads, limit)
	return slices.Clone(s.runs[:min(limit, len(s.runs))]), nil
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
	for _, n := range []int{30, math.MaxInt} {
		strict(t, call(t, "history", "-n", fmt.Sprint(n), "--json", "--db", path).out, &list)
		assert.Len(t, list, 30, n)
	}
}

// Two apps that share a lock by mistake are told apart in its history.
func TestHistoryNamesTheAppsIfThereAreSeveral(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	store, err := sqlite.Opener("file:" + path)(bg)
	require.NoError(t, err)
	lead := func(app string) {
		require.NoError(t, acquired(t, store, schedlock.WithApp(app)).Release(bg))
	}
	lead("billing")
	assert.NotContains(t, call(t, "history", "--db", path).out, "billing", "all are of one app")
	lead("shop")
	require.NoError(t, store.(*sqlite.Store).Close())
	out := call(t, "history", "--db", path).out
	assert.Contains(t, out, "  billing  ")
	assert.Contains(t, out, "  shop  ")
	var list []historyJSON
	strict(t, call(t, "history", "--json", "--db", path).out, &list)
	require.Len(t, list, 2)
	assert.Equal(t, "shop", list[0].App)
	assert.Equal(t, "billing", list[1].App)
}

func TestReplicasThatTellOfThemselvesAreListed(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	r := call(t, "replicas", "--db", path)
	assert.Equal(t, "no replica tells of itself (startup.Config.Presence)\n", r.out)

	store, err := sqlite.Open(bg, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for _, replica := range []ledger.Replica{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1.2.3", State: "leading",
			Reason: "holds the lock"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
	} {
		require.NoError(t, store.Present(bg, replica, false))
	}
	edit(t, path, `UPDATE scheduler_replicas SET seen_at = '2026-01-01T00:00:00.000000Z'
		WHERE instance = 'c'`)
	var list []replicaJSON
	strict(t, call(t, "replicas", "--json", "--db", path).out, &list)
	require.Len(t, list, 3)
	for i, want := range []replicaJSON{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1.2.3", State: "leading",
			Reason: "holds the lock"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby", Reason: "pid 12 leads",
			Ready: true},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby", Reason: "pid 12 leads"},
	} {
		want.SeenAt, want.SilentSeconds = list[i].SeenAt, list[i].SilentSeconds
		assert.Equal(t, want, list[i])
	}
	assert.Greater(t, list[2].SilentSeconds, 90.0)
	assert.Regexp(t, `(?m)^host +pid +version +state +silent for\nweb-1 +12 +v1.2.3 +leading .*\n`+
		`web-2 +7 +- +standby .*\nweb-2 +8 +- +standby .*\n$`,
		call(t, "replicas", "--db", path).out)
	assert.Contains(t, call(t, "replicas", "-o", "wide", "--db", path).out, "pid 12 leads")
}
