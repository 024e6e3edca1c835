package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
