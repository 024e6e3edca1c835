package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/cmd/schedlock/internal/doctor"
	"example.com/schedlock/internal/build"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/migrations"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	path, long := migrated(t, folder(t)), strings.Repeat("x", names.Max+1)
	for i, tc := range []struct {
		args string
		says string
	}{
		{"", "there is no command"},
		{"--db x", "there is no command"},
		{"stauts", `command "stauts" is unknown`},
		{"pause --db x", "pause needs the name of a job, or --all for every job"},
		{"resume --db x", "resume needs the name of a job, or --all"},
		{"pause work --all --db x", "pause takes a job or --all, not both"},
		{"run --db x", "run needs the name of a job"},
		{"reset-cursor --db x", "reset-cursor needs the name of a job"},
		{"help stauts", `command "stauts" is unknown`},
		{"help status extra", `help does not take "extra"`},
		{"completion bash extra", `completion does not take "extra"`},
		{"completion tcsh", `completion does not take "tcsh": only bash, zsh, fish, powershell`},
		{"completion", "completion needs the name of a shell: bash, zsh, fish, powershell"},
		{"--nonsense status", "there is no flag --nonsense"},
		{"status --nonsense", "there is no flag --nonsense"},
		{"status", "give --db or set SCHEDLOCK_DATABASE_URL"},
		{"status more --db x", `status does not take "more"`},
		{"run a b --db x", `run does not take "b"`},
		{"status --db x --timeout 5",
			`--timeout "5" is not a duration such as 10s or 1m30s`},
		{"status --db x --timeout 0s", "--timeout 0s is not above 0"},
		{"exec --db x", "the command is missing"},
		{"fence --db x", "SCHEDLOCK_TOKEN has no token"},
		{"lead more --db x", `lead does not take "more"`},
		{"lead --db x --ttl 39ms", "--ttl 39ms is below 40ms"},
		{"lead --db x --ttl 25h", "--ttl 25h0m0s: "},
		{"lead --db x --ttl 4s --valid-for 4s", "--valid-for 4s is above 3s, the renew deadline"},
		{"lead --db x --valid-for 0s", "--valid-for 0s is below 1ms"},
		{"lead --db x --valid-for 500us", "--valid-for 500µs is below 1ms"},
		{"lead --db x --listen=", "--listen is empty"},
		{"lead --db x --listen 7070", `--listen "7070" is neither HOST:PORT, with a port from 0`},
		{"lead --db x --listen :70000", `--listen ":70000" is neither HOST:PORT`},
		{"lead --db x --listen localhost:http", `--listen "localhost:http" is neither HOST:PORT`},
		{"lead --db x --listen unix:", `--listen "unix:" is neither`},
		{"lead --db x --host a/b", `host "a/b" is not a host name or an IP address`},
		{"queue --db x --state failed", "there is no flag --state"},
		{"queue count --db x", `queue does not take "count": only list, requeue, prune`},
		{"queue list --db x", "the name of the queue is missing"},
		{"queue list --db x a b", `queue list does not take "b"`},
		{"queue requeue mail --db x", "the ids of tasks are missing"},
		{"queue prune mail --db x", "queue prune needs --older-than"},
		{"queue prune mail --db x --older-than -1s", "queue prune needs --older-than, not below 0"},
		{"locks --db x --force", "there is no flag --force"},
		{"queue list mail --db x --state faled", `--state "faled" is none of pending, ` +
			`in_progress, done and failed; did you mean failed?`},
		{"queue list mail --db x -n 10001", "-n 10001 is above 10000"},
		{"queue requeue mail a --db x --retries -1", "--retries -1 is not from 0 to 1000000"},
		{"queue requeue mail a --db x --retries 1000001", "--retries 1000001 is not from 0 to"},
		{"queue requeue mail " + long + " --db x", "the id of the task has 201 bytes"},
		{"queue prune " + long + " --older-than 1h --db x", "the name of the queue has 201 bytes"},
		{"locks release lok x --db x --force --reason r",
			`kind "lok" is none of lock, task, timeout and election; did you mean lock?`},
		{"locks release lock " + long + " --db x --force --reason r",
			"the name of the lock has 201 bytes"},
		{"locks release lock x --db x --force --reason r --by " + long, "--by has 201 bytes"},
		{"pause tick --db x --by=", "--by is empty"},
		{"resume tick --db x --by=", "--by is empty"},
		{"run tick --db x --by=", "--by is empty"},
		{"run " + long + " --db x", "the name of the job has 201 bytes"},
		{"run tick --db x --wait -1s", "--wait -1s is below 0"},
		{"run tick --db x --reason " + strings.Repeat("x", 3000), "the reason has 3000 bytes"},
		{"reset-cursor tick --db x --by " + long, "--by has 201 bytes"},
		{"release --db x --reason r --yes", "normally released by stopping the replica"},
		{"release --db x --force --yes", "--reason is required"},
		{"release --db x --force --reason= --yes", "--reason is required"},
		{"release --db x --force --reason r --yes --by=", "--by is empty"},
		{"release --db x --force --reason r", "standard input is no terminal"},
		{"release --db x --force --reason r --wait 0s", "use --no-wait"},
		{"release --db x --force --yes --reason " + strings.Repeat("x", 2000),
			"the reason has 2000 bytes, 1000 are allowed"},
		{"history -n 0 --db x", "-n 0 is not above 0"},
		{"runs -n -1 --db x", "-n -1 is not above 0"},
		{"watch --interval 1ms --db x", "--interval 1ms is below 10ms"},
		{"status --schema billing --db app.db", `--schema "billing": a SQLite file has no schemas`},
		{"status --schema billing --db mysql://app@db/app", "name another database in --db"},
		{"status --schema billing --db app:ge/heim@tcp(db)/app", "name another database in --db"},
		{"status --schema Billing --db postgres://localhost/app",
			`--schema: schema "Billing": only a-z, 0-9 and _ are allowed`},
		{"run app:ge/heim@tcp(db)/app --db x", "looks like the address of a database"},
		{"status --db :memory:", "in memory"},
		{"status --db redis://u:geheim@h/db", "is not a path or a file: URI"},
		{"status --db mysql://u:ge/heim@h/db", "is not a URL such as mysql://"},
		{"status --db postgres://u:geheim@h:port/db", "is not a URL such as postgres://"},
		{"status --db postgres://u:ge/heim@h/db", "is not a URL such as postgres://"},
		{"postgres://u:geheim@h/db", "is unknown"},
		{"status postgres://u:geheim@h/db --db x", "does not take"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			r := call(t, strings.Fields(tc.args)...)
			assert.Equal(t, exitUsage, r.code)
			assert.Contains(t, r.err, tc.says)
			assert.Contains(t, r.err, "(see: schedlock help")
			assert.Empty(t, r.out)
			assert.NotContains(t, r.err, "heim")
			json := []string{"--json", "-o=json"}[i%2]
			r = call(t, append(strings.Fields(tc.args), json)...)
			assert.Equal(t, exitUsage, r.code)
			var e errorJSON
			if tc.args != "" && tc.args != "--db x" { // there is no command to have a flag
				strict(t, r.out, &e)
				assert.Contains(t, e.Error, tc.says)
			}
		})
	}
	r := call(t, "status", "--db", " ")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, `--db " " is blank`)
	r = call(t, "release", "--db", "x", "--force", "--yes", "--reason", " ")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, "--reason is required")
	t.Run("an empty job is not every job", func(t *testing.T) {
		for _, command := range []string{"pause", "resume"} {
			for _, job := range []string{"", " "} {
				r := call(t, command, job, "--db", path)
				assert.Equal(t, exitUsage, r.code)
				assert.Contains(t, r.err, "the name of the job is empty: "+
					command+" every job with --all")
			}
		}
		r := call(t, "resume", "--all", "--db", path)
		assert.Equal(t, exitNothing, r.code, "nothing was paused")
	})
	t.Run("flags stand anywhere", func(t *testing.T) {
		for _, args := range [][]string{{"--db", path, "status"}, {"status", "--db=" + path},
			{"--db", path, "status", "--timeout", "9s"}} {
			assert.Equal(t, exitNothing, call(t, args...).code, args)
		}
		r := call(t, "run", "nightly", "--by", "ann", "--db", path)
		assert.Contains(t, r.err, `no such job: "nightly"`)
		r = call(t, "run", "--by", "ann", "--db", path, "--", "-odd")
		assert.Contains(t, r.err, `no such job: "-odd"`)
		r = call(t, "run", "--db", path, "--", "-odd", "--more")
		assert.Contains(t, r.err, `run does not take "--more"`)
		r = callWith(t, map[string]string{databaseVariable: path}, "status")
		assert.Equal(t, exitNothing, r.code)
	})
}

// What holds for every command stands in one place, and there is one table of exit codes.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}, {"help", "--json"}} {
		assert.Contains(t, expect(t, exitDone, args...), "Commands:")
	}
	everyCommand(func(c command, path string) {
		words := strings.Fields(path)
		out := call(t, append([]string{"help"}, words...)...).out
		for _, flag := range []string{"-h", "--help"} {
			assert.Equal(t, result{out: out}, call(t, append(slices.Clone(words), flag)...))
		}
		assert.Contains(t, out, "Usage:\n  schedlock "+path, path)
		assert.NotContains(t, out, "Exit codes:", path)
		assert.NotContains(t, out, "\n\n\n", path)
		if path != "version" {
			assert.Contains(t, out, "Examples:\n  schedlock ", path)
		}
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
		}
	})
	general, page := call(t, "help").out, call(t, "man").out
	for _, once := range []string{"no-color", "was not paused", "did not have"} {
		assert.Equal(t, 1, strings.Count(general, once), "help: %s", once)
		assert.Equal(t, 1, strings.Count(strings.ReplaceAll(page, "\\-", "-"), once), "man: %s", once)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	said := call(t, "version").out
	assert.Equal(t, fmt.Sprintf("schedlock %s (%s), tables of version %d\n", build.Version(),
		runtime.Version(), migrations.Latest), said)
	for _, args := range [][]string{{"--version"}, {"--db", "x", "--version"}} {
		r := call(t, args...)
		assert.Equal(t, exitDone, r.code, args)
		assert.Equal(t, said, r.out, args)
	}
	assert.Contains(t, expect(t, exitUsage, "--version", "status"), "there is no flag --version")
	var v versionJSON
	strict(t, call(t, "version", "--json").out, &v)
	assert.Equal(t, migrations.Latest, v.SchemaVersion)
	assert.Equal(t, build.Version(), v.Version)
	assert.Equal(t, call(t, "version", "--json").out, call(t, "--json", "--version").out)
}

// What the lists answer while there is nothing to list.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	for _, command := range []string{"history", "runs", "jobs", "audit", "replicas", "locks",
		"queue"} {
		assert.Equal(t, "[]\n", call(t, command, "--json", "--db", path).out)
		r := call(t, command, "--db", path)
		assert.Equal(t, exitDone, r.code)
		assert.NotEmpty(t, r.out)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := migrated(t, dir)
	report := func(args ...string) (r doctor.Report) {
		out := call(t, append(args, "--json", "--db", path)...).out
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		return r
	}
	before := listing(t, dir)
	assert.NotEmpty(t, report("doctor").Findings)
	assert.Equal(t, before, listing(t, dir))
	lead(t, path, 0)
	assert.Equal(t, exitDone, call(t, "doctor", "--db", path).code)
	assert.Equal(t, result{code: exitDone}, call(t, "doctor", "--quiet", "--db", path),
		"a job of cron says something only if somebody must act")
	assert.Equal(t, result{code: exitDone}, call(t, "doctor", "--quiet", "--db", path, "--timeout",
		"500000h"), "as good as none")
	edit(t, path, `DELETE FROM scheduler_lock`)
	for _, args := range [][]string{{"doctor"}, {"doctor", "--quiet"}} {
		r := call(t, append(args, "--db", path)...)
		assert.Equal(t, exitNothing, r.code, r)
		assert.Contains(t, r.out, "[warning] ")
		assert.Contains(t, r.out, "          → ")
		assert.Equal(t, len(args) == 1, strings.Contains(r.out, "[ok]"), r.out)
	}
	quiet := report("doctor", "--quiet").Findings
	require.NotEmpty(t, quiet)
	for _, f := range quiet {
		assert.Equal(t, doctor.Warning, f.Level, f)
	}
	assert.Contains(t, expect(t, exitStale, "doctor", "--db", filepath.Join(dir, "missing.db")),
		"[error]")
}

func TestTextFromADatabaseCannotSteerATerminal(t *testing.T) {
	assert.Equal(t, "a·[31mb·c ü", plain("a\x1b[31mb\nc ü"))
}
