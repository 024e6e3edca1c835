package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
)

func TestTheFormOfTheAnswer(t *testing.T) {
	t.Parallel()
	path := withRuns(t, "df")
	for _, command := range []string{"runs", "jobs", "history", "audit", "version", "locks"} {
		want := call(t, command, "--json", "--db", path).out
		for _, args := range [][]string{{command, "-o", "json"}, {"-o=json", command}} {
			assert.Equal(t, want, call(t, append(args, "--db", path)...).out, args)
		}
	}
	assert.Contains(t, expect(t, exitUsage, "runs", "-o", "xml", "--db", path),
		`-o "xml" is none of json and wide`)
	var e errorJSON
	strict(t, call(t, "runs", "-o", "json", "--nonsense", "--db", path).out, &e)
	assert.Contains(t, e.Error, "--nonsense")
}

// A terminal beside another window, or on a phone, has no more room.
func TestTablesFitSixtyColumns(t *testing.T) {
	t.Parallel()
	path := withRuns(t, "dffd")
	const long = "import-of-all-block-lists-of-the-whole-world"
	edit(t, path, `UPDATE scheduler_runs SET job = '`+long+`' WHERE status = 'failed'`,
		`UPDATE scheduler_jobs SET job = '`+long+`', failure_streak = 150,
			last_done_at = '2001-02-03T04:05:06.000000Z'`,
		`INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason)
			VALUES ('`+long+`', '2026-01-01T00:00:00.000000Z', 'ann.of.the.night@shift', 'why')`,
		`INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at,
			end_reason, ttl_ms, revoked_at, revoked_by, revoke_reason) VALUES (123456, 't',
			4194304, 'web-2.of.a.long.domain.example.com', '2001-02-03T04:05:06.000000Z',
			'2026-02-03T04:05:06.000000Z', 'revoked', 60000,
			'2026-02-03T04:05:06.000000Z', 'ann', 'a long reason for a hand-over')`,
		`INSERT INTO scheduler_audit (at, what, job, by, reason) VALUES
			('2026-01-01T00:00:00.000000Z', 'reset-cursor', '`+long+`', 'ann.of.the.night@shift',
			'the clock was a year ahead, says bob')`,
		`INSERT INTO scheduler_replicas (instance, pid, hostname, version, state, reason, seen_at)
			VALUES ('i', 4194304, '`+long+`', 'v0.0.0-20260101000000-abcdefabcdef', 'standby', 'r',
			'2026-01-01T00:00:00.000000Z')`,
		`INSERT INTO queue_tasks (queue, id, state, retries_left, attempts, last_error, created_at,
			updated_at) VALUES ('`+long+`', 'a-task-with-a-long-name-of-its-own', 'failed', 0, 12,
			'no route to the host that was asked', '2026-01-01T00:00:00.000000Z',
			'2026-01-01T00:00:00.000000Z')`,
	)
	store, err := sqlite.Open(bg, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	locks, err := named.New(store.Named())
	require.NoError(t, err)
	_, err = locks.Lock(bg, long)
	require.NoError(t, err)
	for _, command := range []string{"runs", "runs --attempts", "jobs", "history", "audit",
		"replicas", "locks", "queue",
		"queue list " + long} {
		args := append(strings.Fields(command), "--db", path)
		r := call(t, args...)
		require.Equal(t, exitDone, r.code, r)
		require.Greater(t, strings.Count(r.out, "\n"), 1, command)
		for line := range strings.Lines(r.out) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 60,
				"%s: %s", command, r.out)
		}
		assert.Contains(t, r.out, "…", command)
		wide := call(t, append(args, "-o", "wide")...)
		require.Equal(t, exitDone, wide.code, wide)
		if !strings.HasPrefix(command, "queue list") && command != "history" {
			assert.Contains(t, wide.out, long, command)
		}
		assert.NotContains(t, wide.out, "…", command)
	}
}

func TestTimesInTheLocalZone(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "import")
	edit(t, path, `UPDATE scheduler_jobs SET last_done_at = '2026-01-31T23:05:06.000000Z'`,
		`INSERT INTO scheduler_pauses (job, paused_at, paused_by, reason)
			VALUES ('', '2026-01-31T23:06:07.000000Z', 'ann', 'why')`)
	in := func(zone string, args ...string) string {
		cmd := process(t, append(args, "--db", path, "--timeout", callTimeout.String())...)
		cmd.Env = append(cmd.Env, "TZ="+zone)
		return finish(t, cmd).out
	}
	list := in("Asia/Kolkata", "jobs", "-o", "wide", "--local")
	assert.Contains(t, list, "2026-02-01 04:35:06+05:30")
	assert.Contains(t, list, "since 2026-02-01 04:36:07+05:30: why")
	assert.Contains(t, in("Asia/Kolkata", "status", "--local"), "since 2026-02-01 04:36:07+05:30")
	assert.Contains(t, in("Asia/Kolkata", "jobs", "-o", "wide"), "2026-01-31 23:05:06Z")
	assert.Contains(t, in("Asia/Kolkata", "jobs", "--json", "--local"),
		`"last_done": "2026-01-31T23:05:06.000000Z"`, "programs read UTC")
	assert.Contains(t, in("Asia/Kolkata", "runs", "--local", "--since", "2026-02-01"),
		"there are no runs")

	watching := process(t, "watch", "--local", "--db", path)
	watching.Env = append(watching.Env, "TZ=Asia/Kolkata")
	out, err := watching.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watching.Start())
	first, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	assert.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+05:30  `, first)
	require.NoError(t, watching.Process.Kill())
	_ = watching.Wait()
}

// At New Year the times of last night are still times, and no day can be mistaken for that
// of another year.
func TestATimeInATableHasItsYearWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC)
	for want, when := range map[string]time.Time{
		"12-31 23:50:00Z":     now.Add(-20 * time.Minute),
		"01-01 00:20:00Z":     now.Add(10 * time.Minute),
		"01-01 05:50:00+0530": now.Add(10 * time.Minute).In(time.FixedZone("", 19800)),
		"2025-01-01":          now.AddDate(-1, 0, 0),
		"2025-06-30":          now.AddDate(0, 0, -185),
		"2999-01-01":          now.AddDate(973, 0, 0),
	} {
		assert.Equal(t, want, short(when, now))
	}
}

// The first line alone answers a telephone call.
func TestTheFirstLineOfStatus(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "clean-up", "import")
	lead(t, path, 0)
	edit(t, path, `UPDATE scheduler_lock SET created_at = `+
		`strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-250 seconds'), hostname = 'web-2'`)
	first := func() string {
		t.Helper()
		r := call(t, "status", "--db", path)
		require.Equal(t, exitDone, r.code, r)
		line, _, _ := strings.Cut(r.out, "\n")
		return line
	}
	assert.Regexp(t, `^held: web-2 has led for 4 min \(pid \d+, term \d+\); `+
		`its last heartbeat was \S+ ago$`, first())
	edit(t, path, `UPDATE scheduler_jobs SET failure_streak = 150 WHERE job = 'import'`)
	assert.Contains(t, first(), " ago; import has failed 150 times in a row")
	edit(t, path, `UPDATE scheduler_jobs SET failure_streak = 1 WHERE job = 'clean-up'`)
	assert.Contains(t, first(), " ago; import has failed 150 times in a row; failing besides it: 1",
		"the worst is not hidden by another")
	edit(t, path, `UPDATE scheduler_jobs SET failure_streak = 1`)
	assert.Contains(t, first(), " ago; 2 jobs have failed the last time")
	require.Equal(t, exitDone, call(t, "pause", "import", "--by", "ann", "--db", path).code)
	assert.Contains(t, first(), "; import is paused")
	require.Equal(t, exitDone, call(t, "pause", "--all", "--by", "ann", "--db", path).code)
	assert.Contains(t, first(), "; everything is paused by ann")
	var s statusJSON
	strict(t, call(t, "status", "--json", "--db", path).out, &s)
	assert.Contains(t, s.Summary, "; everything is paused by ann")
}

// Two heartbeats that do not come are told long before the TTL has passed.
func TestWatchSaysLate(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(beat, now time.Duration) sight {
		row := driver.Row{Ref: driver.Ref{Owner: driver.Owner{PID: 7, Hostname: "a"}, Term: 3},
			State: driver.StateLeading, CreatedAt: start, HeartbeatAt: start.Add(beat),
			Timing: driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
				HeartbeatInterval: 10 * time.Second}}
		view := driver.Snapshot{Row: &row, Now: start.Add(now),
			Newest: &driver.Term{Ref: row.Ref, AcquiredAt: start}}
		return sight{situation: situation{view: view, judged: judge(view)},
			terms: []driver.Term{*view.Newest}}
	}
	tool := &tool{}
	last := at(0, 0)
	var events []string
	for _, now := range []sight{at(0, 10*time.Second), at(0, 19*time.Second),
		at(0, 26*time.Second), at(0, 30*time.Second), at(0, 46*time.Second),
		at(47*time.Second, 48*time.Second), at(47*time.Second, 60*time.Second)} {
		for _, c := range tool.changes(last, now) {
			events = append(events, c.Event+" "+c.Message)
		}
		last = now
	}
	require.Equal(t, []string{
		`late late: pid 7 on host "a" (term 3) is late: it has missed 2 heartbeats; ` +
			`its last was 26s ago, and one is due every 10s`,
		`late late: pid 7 on host "a" (term 3) is past its renew deadline of 45s, ` +
			`so it must have stopped its jobs; its last heartbeat was 46s ago`,
		`on time on time: pid 7 on host "a" (term 3) sends heartbeats again`,
	}, events)
	assert.Contains(t, at(0, 26*time.Second).judged.summary, " is late: ")
	assert.NotContains(t, fmt.Sprint(judge(at(0, 21*time.Second).view)), "late")
}

// A fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatIsLostIsNoSuccess(t *testing.T) {
	t.Parallel()
	path := withRuns(t, "df")
	for _, args := range []string{"status", "watch", "history", "runs", "runs --json", "jobs", "audit",
		"replicas", "locks", "queue", "doctor", "completion bash", "man", "version"} {
		var said bytes.Buffer
		tool := &tool{out: fullDisk{}, errOut: &said,
			lookup: func(string) (string, bool) { return "", false }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of watch
		code := tool.run(ctx, append(strings.Fields(args), "--db", path))
		cancel()
		assert.Equal(t, exitUnknown, code, "%s: %s", args, &said)
		assert.Contains(t, said.String(), "could not be written: no space left on device", args)
	}
}

// Nobody reads, then somebody does: what there was no room for is counted.
func TestAnAsideNeverWaitsAndSaysWhatItLeftOut(t *testing.T) {
	read, write := io.Pipe()
	tool := &tool{errOut: write}
	tool.stepAside()
	drain := func() { // flush, however long it takes
		ack := make(chan struct{})
		tool.errOut.(*aside).queue <- saying{ack: ack}
		<-ack
	}
	const lines = 3000
	for i := range lines {
		fmt.Fprintf(tool.errOut, "line %d\n", i)
	}
	said := make(chan string)
	go func() {
		all, _ := io.ReadAll(read)
		said <- string(all)
	}()
	drain()
	fmt.Fprintln(tool.errOut, "the last one")
	drain()
	write.Close()
	all := <-said
	left := 0
	for _, note := range strings.Split(all, "schedlock: left out, as nobody read it: ")[1:] {
		n := 0
		_, err := fmt.Sscanf(note, "%d lines", &n)
		require.NoError(t, err)
		left += n
	}
	require.Positive(t, left)
	require.Equal(t, lines, strings.Count(all, "line ")+left)
	require.True(t, strings.HasSuffix(all, "the last one\n"))
}
