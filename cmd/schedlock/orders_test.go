package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/tasks/queue"
)

// withJobs is a database whose leader has had these jobs.
func withJobs(t *testing.T, names ...string) string {
	t.Helper()
	path := migrated(t, folder(t))
	for _, name := range names {
		edit(t, path, fmt.Sprintf(`INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
			VALUES ('%s', 'every 1h0m0s offset 0s', '2026-01-01T00:00:00.000000Z',
			'2026-01-01T00:00:00.000000Z')`, name))
	}
	return path
}

// A pause does not replace the one before it, and the end of one pause may leave another
// in force: the answer says so.
func TestPauseAndResumeSayWhatTheyDid(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "import", "clean-up")
	says := expecting(t, "--db", path)
	assert.Contains(t, says(exitDone, "pause", "import", "--by", "ann", "--reason", "disk full"),
		"disk full; it ends with: schedlock resume import\n")
	again := says(exitDone, "pause", "import", "--by", "bob")
	assert.Contains(t, again, `nothing has changed: job "import" is paused by ann since `)
	assert.Contains(t, says(exitDone, "pause", "--all", "--by", "bob"),
		"it ends with: schedlock resume --all\n")
	assert.Contains(t, says(exitDone, "resume", "import"),
		`job "import" is resumed, but it does not start yet: the scheduler is paused by bob since `)
	says(exitDone, "pause", "import", "--by", "ann")
	says(exitDone, "pause", "clean-up", "--by", "ann")
	assert.Contains(t, says(exitDone, "resume", "--all"),
		"the scheduler is resumed; still paused by themselves: clean-up, import\n")
	assert.Contains(t, says(exitNothing, "resume", "--all"),
		"the scheduler was not paused; still paused by themselves: clean-up, import\n")

	assert.Contains(t, says(exitDone, "pause", "import", "--by", "bob", "--json"),
		`"already_paused": true`)
	assert.Contains(t, says(exitDone, "resume", "import", "--json"), `"still_paused": []`)
}

func TestAdviceCanBePasted(t *testing.T) {
	t.Parallel()
	for job, quoted := range map[string]string{"nightly import": `'nightly import'`,
		"a'b": `'a'\''b'`, "-odd": `-- '-odd'`, "blocklists/import-2": "blocklists/import-2"} {
		path := withJobs(t, strings.ReplaceAll(job, "'", "''"))
		assert.Contains(t, expect(t, exitDone, "pause", "--db", path, "--", job),
			"; it ends with: schedlock resume "+quoted+"\n")
	}
}

// A slip in the name of a job is an error with the names that there are.
func TestKnownJobsAreOffered(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "clean-up", "import")
	for _, args := range [][]string{{"pause"}, {"resume"}, {"run"}, {"reset-cursor"},
		{"runs", "--job"}} {
		r := call(t, append(args, "imprt", "--db", path)...)
		assert.Equal(t, exitUnknown, r.code, r)
		assert.Contains(t, r.err,
			`no such job: "imprt"; did you mean "import"? Known jobs: clean-up, import`)
		r = call(t, append(args, "nightly", "--db", path)...)
		assert.Contains(t, r.err, `no such job: "nightly"; known jobs: clean-up, import`)
	}
	none := withJobs(t)
	assert.Contains(t, call(t, "runs", "--job", "import", "--db", none).err,
		`no such job: "import"; there are no jobs: no leader has had any yet`)
}

func TestAuditTellsWhoHasOrderedWhatAndWhy(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "import", "clean-up")
	says := expecting(t, "--db", path)
	says(exitDone, "pause", "--all", "--by", "ann", "--reason", "disk full")
	says(exitDone, "pause", "--all", "--by", "bob") // changes nothing
	says(exitUnknown, "run", "import", "--by", "bob")
	says(exitDone, "resume", "--all", "--by", "carol")
	says(exitDone, "reset-cursor", "import", "--by", "dan", "--reason", "bad clock")
	var run requestJSON
	strict(t, says(exitDone, "run", "import", "--by", "eve", "--json"), &run)

	var list []auditJSON
	strict(t, says(exitDone, "audit", "--json"), &list)
	require.Len(t, list, 4)
	assert.Equal(t, run.RequestedAt, list[0].At)
	for i, want := range []auditJSON{
		{What: "run", Job: "import", By: "eve"},
		{What: "reset-cursor", Job: "import", By: "dan", Reason: "bad clock"},
		{What: "resume", By: "carol"},
		{What: "pause", By: "ann", Reason: "disk full"},
	} {
		want.ID, want.At = list[i].ID, list[i].At
		assert.Equal(t, want, list[i])
		assert.NotZero(t, list[i].ID)
	}
	var some []auditJSON
	strict(t, says(exitDone, "audit", "import", "--json"), &some)
	assert.Equal(t, list[:2], some)
	strict(t, says(exitDone, "audit", "-n", "1", "--json"), &some)
	assert.Equal(t, list[:1], some)

	assert.Regexp(t, `(?m)^at +order +job +by +reason\n.* run +import +eve +-\n`+
		`.* reset-cursor +import +dan +bad clock\n.* resume +\(all\) +carol +-\n`+
		`.* pause +\(all\) +ann +disk full\n$`, says(exitDone, "audit"))
	assert.Equal(t, "nobody has given an order for job \"clean-up\"\n",
		says(exitDone, "audit", "clean-up"))
	assert.Contains(t, says(exitUnknown, "audit", "imprt"), `no such job: "imprt"`)
	assert.Contains(t, says(exitUsage, "audit", "-n", "0"), "-n 0 is not above 0")
}

func TestQueueAndLocksOnTheCommandLine(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := migrated(t, folder(t))
	s, err := sqlite.Open(ctx, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	q, err := queue.New(s.Queue())
	require.NoError(t, err)
	_, err = q.Add(ctx, "mail", 0, "a", "b", "c")
	require.NoError(t, err)
	tasks, err := q.Capture(ctx, "mail", 2)
	require.NoError(t, err)
	require.NoError(t, q.Fail(ctx, tasks[0], errors.New("the server is down"), 0))
	require.NoError(t, q.Done(ctx, tasks[1]))
	tool := expecting(t, "--db", path)
	var counts []countJSON
	strict(t, tool(exitDone, "queue", "--json"), &counts)
	require.Equal(t, []countJSON{{Queue: "mail", Pending: 1, Done: 1, Failed: 1}}, counts)
	require.Contains(t, tool(exitDone, "queue"), "mail")
	var list []taskJSON
	strict(t, tool(exitDone, "queue", "list", "mail", "--state", "failed", "--json"), &list)
	require.Len(t, list, 1)
	require.Equal(t, "the server is down", list[0].Error)
	require.Contains(t, tool(exitDone, "queue", "list", "mail"), "the server is down")
	require.Contains(t, tool(exitDone, "queue", "requeue", "mail", "a", "none", "--retries", "2"),
		"1 of 2 tasks")
	tool(exitNothing, "queue", "requeue", "mail", "a")
	require.Contains(t, tool(exitDone, "queue", "prune", "mail", "--older-than", "0s"), "1 tasks")
	for _, args := range [][]string{{"queue", "drop"}, {"queue", "list"},
		{"queue", "prune", "mail"}, {"queue", "requeue", "mail"},
		{"locks", "release", "lock"}, {"locks", "release", "lock", "a", "--reason", "x"}, {"locks",
			"release", "lock", "a", "--force"}} {
		tool(exitUsage, args...)
	}

	locks, err := named.New(s.Named())
	require.NoError(t, err)
	release := []string{"locks", "release", "lock", "import", "--force", "--by", "ann", "--reason",
		"it hangs"}
	tool(exitNothing, release...)
	lock, err := locks.Lock(ctx, "import")
	require.NoError(t, err)
	require.Contains(t, tool(exitDone, "locks"), "held")
	require.Contains(t, tool(exitDone, release...), "revoked by ann: it hangs")
	require.ErrorContains(t, lock.Extend(ctx), "it was revoked by ann: it hangs")
	var held []namedLockJSON
	strict(t, tool(exitDone, "locks", "--json"), &held)
	require.Equal(t, &named.Revocation{By: "ann", Reason: "it hangs"}, held[0].Revoked)
	require.Contains(t, tool(exitDone, "locks", "-o", "wide"), "revoked by ann: it hangs")
	require.Error(t, lock.Unlock(ctx))
	_, err = locks.OncePer(ctx, "report", time.Hour)
	require.NoError(t, err)
	require.Regexp(t, "timeout +report .* rests", tool(exitDone, "locks"))
}

// Who takes an error for "not asked" asks again, and the job runs twice.
func TestARunThatWasAskedForIsNoErrorThoughNobodyKnowsWhoLeads(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		tool := &tool{out: &out, json: asJSON, timeout: time.Minute}
		code, err := tool.trigger(t.Context(), unseen{}, ledger.Action{Job: "import", By: "ann"}, 0)
		require.NoError(t, err)
		require.Equal(t, exitDone, code)
		if asJSON {
			var answer requestJSON
			strict(t, out.String(), &answer)
			require.Equal(t, "import", answer.Job)
			continue
		}
		require.Contains(t, out.String(), `job "import" is asked to run, at `)
		require.Contains(t, out.String(), "whether anybody leads is not known: it went away")
	}
}

// unseen is a store that takes an order, and cannot be read then.
type unseen struct{ store }

func (unseen) Trigger(context.Context, ledger.Action) (ledger.Request, error) {
	return ledger.Request{At: time.Now()}, nil
}

func (unseen) LookAtSession(context.Context) (driver.Snapshot, error) {
	return driver.Snapshot{}, errors.New("it went away")
}
