package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A live leader drains what runs, steps down, and a standby leads; watch and
// history tell who wanted it, and why.
func TestReleaseOfALiveLeader(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	dir := folder(t)
	path, gate := filepath.Join(dir, "app.db"), filepath.Join(dir, "gate")
	first := startReplica(t, path, "20s", replicaGate+"="+gate)
	was := leads(t, path, first)
	second := startReplica(t, path, "20s", replicaGate+"="+gate)
	watching := startWatch(t, path)
	watching.await(t, "start", was.Lock.Term)

	require.Equal(t, exitDone, call(t, "run", "long", "--by",
		"ann", "--reason", "to see", "--db", path).code)
	eventually(t, "the run has started", func() bool {
		return strings.Contains(call(t, "runs", "--job", "long", "--db", path).out, "in_progress")
	})
	order := []string{"release", "--force", "--yes", "--by", "bob", "--reason", "host goes down",
		"--db", path}

	accepted := call(t, append(order, "--no-wait")...)
	assert.Equal(t, exitDone, accepted.code, accepted)
	assert.Contains(t, accepted.out, `running    job "long" of `)
	assert.Contains(t, accepted.out, "is revoked; its holder leaves at its next heartbeat")
	eventually(t, "it drains", func() bool {
		r := call(t, "status", "--db", path)
		return strings.Contains(r.out, "was told to leave") && strings.Contains(r.out, `by "bob"`)
	})
	late := call(t, append(order, "--wait", "300ms")...)
	assert.Equal(t, exitUnknown, late.code, late)
	assert.Contains(t, late.err, "is revoked, but has not ended within 300ms")

	cmd := process(t, append(order, "--wait", patience.String(), "--by", "carol", "--timeout",
		callTimeout.String())...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "is revoked; waiting up to") {
	}
	require.NoError(t, os.WriteFile(gate, nil, 0o600)) // the job returns
	require.True(t, lines.Scan())
	assert.Contains(t, lines.Text(), fmt.Sprintf("term %d has ended (revoked); pid %d on host",
		was.Lock.Term, second.Process.Pid))
	require.NoError(t, cmd.Wait())
	leads(t, path, second)

	var list []historyJSON
	strict(t, call(t, "history", "--json", "--db", path).out, &list)
	require.Len(t, list, 2)
	assert.Equal(t, second.Process.Pid, list[0].PID)
	require.NotNil(t, list[0].GapBeforeSeconds)
	assert.Equal(t, "revoked", *list[1].EndReason)
	assert.Equal(t, revokedJSON{list[1].Revoked.At, "bob", "host goes down"}, *list[1].Revoked)
	assert.Contains(t, call(t, "history", "-o", "wide", "--db", path).out, "by bob: host goes down")

	watching.await(t, "revoked", was.Lock.Term)
	watching.await(t, "ended", was.Lock.Term)
	watching.await(t, "leader", list[0].Term)
	assert.Equal(t, exitDone, watching.stop(t))
}

// Who is dead reads no order, and what has ended is not drained.
func TestReleaseOfADeadLeaderSaysThatItIsNotHeeded(t *testing.T) {
	t.Parallel()
	path := crashed(t, folder(t))
	edit(t, path, `INSERT INTO scheduler_runs
		(job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt)
		SELECT job, '2026-03-01T12:00:00.000000Z', '2026-03-01T12:00:00.000000Z',
			'2026-03-01T12:00:01.000000Z', 'done', (SELECT term FROM scheduler_lock), 1, 'h', 1
		FROM scheduler_jobs`)
	order := []string{"release", "--force", "--yes", "--reason", "r", "--db", path}
	accepted := expect(t, exitDone, append(order, "--no-wait")...)
	assert.Regexp(t, "(?m)^ +note +"+notHeeded, accepted)
	assert.Contains(t, accepted, "(every 1s); "+notHeeded)
	assert.Regexp(t, "(?m)^ +running +nothing$", accepted)
	again := expect(t, exitDone, append(order, "--no-wait")...)
	assert.Regexp(t, "(?m)^ +revoked +already, ", again)
	late := expect(t, exitUnknown, append(order, "--wait", "1ms")...)
	assert.Contains(t, late, "; "+notHeeded)
}

func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	path := migrated(t, folder(t))
	_, lease := lead(t, path, 0)
	t.Run("when another term leads than was shown", func(t *testing.T) {
		tool := &tool{dsn: path, timeout: patience, out: &bytes.Buffer{}, errOut: &bytes.Buffer{}}
		shown, err := tool.toRelease(bg)
		require.NoError(t, err)
		require.NoError(t, lease.Release(bg))
		_, next := lead(t, path, 0)
		s, err := tool.open(bg)
		require.NoError(t, err)
		defer s.Close()
		_, err = tool.revoke(bg, s, releaseOrder{noWait: true,
			insistence: insistence{by: "ann", reason: "old news"}}, shown)
		require.ErrorIs(t, err, driver.ErrConflict)
		now, err := s.Look(bg)
		require.NoError(t, err)
		assert.Equal(t, next.Term(), now.Row.Term)
		assert.Equal(t, driver.StateLeading, now.Row.State)
		require.NoError(t, next.Release(bg))
	})
	t.Run("but not by a spoiled ledger", func(t *testing.T) {
		_, next := lead(t, path, 0)
		edit(t, path, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
			VALUES ('odd', 'x', '2026-01-01T00:00:00.000000Z', 'x')`,
			`INSERT INTO scheduler_runs (job, scheduled_at, status, term, pid, hostname, attempt)
			VALUES ('odd', 'noon', 'skipped', 1, 1, 'a', 0)`)
		r := call(t, "release", "--force", "--yes", "--no-wait", "--reason", "x", "--db", path)
		assert.Equal(t, exitDone, r.code, r)
		assert.Contains(t, r.out, "running    cannot tell all: ")
		require.NoError(t, next.Release(bg))
	})
	t.Run("when it is free", func(t *testing.T) {
		r := call(t, "release", "--force", "--yes", "--reason", "x", "--db", path)
		assert.Equal(t, exitNothing, r.code)
		assert.Contains(t, r.out, "nothing to release: free")
		var j releaseJSON
		strict(t, call(t, "release", "--force", "--yes", "--reason", "x", "--json", "--db",
			path).out, &j)
		assert.Contains(t, j.Message, "nothing to release")
	})
	t.Run("when there is no row, but no end", func(t *testing.T) {
		lead(t, path, 0)
		edit(t, path, `DELETE FROM scheduler_lock`)
		r := call(t, "release", "--force", "--yes", "--reason", "x", "--db", path)
		assert.Equal(t, exitUnknown, r.code)
		assert.Contains(t, r.err, "there is no row that could be revoked")
	})
}

func TestOrders(t *testing.T) {
	t.Parallel()
	path := filepath.Join(folder(t), "app.db")
	leader := startReplica(t, path, "20s")
	leads(t, path, leader)
	tool := expecting(t, "--db", path, "--by", "ann")
	eventually(t, "the jobs have rows", func() bool {
		return strings.Contains(call(t, "jobs", "--db", path).out, "work")
	})

	var asked requestJSON
	strict(t, tool(exitDone, "run", "work", "--wait", patience.String(), "--json", "--reason",
		"why not"), &asked)
	assert.Equal(t, ledger.Done, asked.Run.Status)
	assert.Equal(t, "ann", asked.Run.RequestedBy)
	assert.Equal(t, "why not", asked.Reason)
	assert.Contains(t, tool(exitNothing, "run", "fail", "--wait", patience.String()), "no luck")

	var p pausedJSON
	strict(t, tool(exitDone, "pause", "work", "--reason", "broken", "--json"), &p)
	assert.Equal(t, pausedJSON{pauseJSON{"work", p.Since, "ann", "broken"}, false}, p)
	refused := tool(exitUnknown, "run", "work")
	assert.Contains(t, refused, `job "work" is paused by ann`)
	assert.Contains(t, refused, "; it ends with: schedlock resume work\n")
	assert.Contains(t, call(t, "jobs", "-o", "wide", "--db", path).out, `job "work" is paused by ann`)
	var resumed resumeJSON
	strict(t, tool(exitDone, "resume", "work", "--json"), &resumed)
	assert.Equal(t, resumeJSON{"work", true, "ann", []pauseJSON{}}, resumed)
	tool(exitNothing, "resume", "work")

	edit(t, path,
		`UPDATE scheduler_jobs SET cursor_at = '2999-01-01T00:00:00.000000Z' WHERE job = 'work'`)
	assert.Contains(t, tool(exitDone, "reset-cursor", "work"), `job "work" goes on from `)
	var cursor cursorJSON
	strict(t, tool(exitDone, "reset-cursor", "work", "--json"), &cursor)
	assert.Equal(t, "work", cursor.Job)
	assert.WithinDuration(t, time.Now(), time.Time(cursor.Cursor), time.Hour)
	assert.WithinDuration(t, time.Now(), time.Time(cursor.NextTick), 2*time.Hour)

	kill(leader)
	out := tool(exitUnknown, "run", "work", "--wait", "100ms")
	assert.Contains(t, out, "it starts once somebody leads; dead: ")
	assert.Contains(t, out, "nobody has started it")

	var runs []runJSON
	strict(t, call(t, "runs", "--json", "-n", "2", "--db", path).out, &runs)
	require.Len(t, runs, 2)
	assert.Equal(t, "fail", runs[0].Job)
	assert.Equal(t, "no luck", runs[0].Error)
	strict(t, call(t, "runs", "--json", "--job", "work", "--db", path).out, &runs)
	require.Len(t, runs, 1)
	require.NotNil(t, runs[0].TookSeconds)
	var jobs []jobJSON
	strict(t, call(t, "jobs", "--json", "--db", path).out, &jobs)
	require.Len(t, jobs, 3)
	assert.Equal(t, int64(1), jobs[0].FailureStreak, "%+v", jobs[0])
	assert.Equal(t, 1, jobs[2].Requests)
	assert.False(t, time.Time(jobs[2].NextTick).IsZero())
	assert.Contains(t, call(t, "jobs", "-o", "wide", "--db", path).out, "every 1h0m0s offset")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, "app.db")
	assert.Contains(t, expect(t, exitUnknown, "migrate", "--db", path), "file does not exist")
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	before := listing(t, dir)
	var m migrateJSON
	strict(t, call(t, "migrate", "--dry-run", "--json", "--db", path).out, &m)
	assert.Equal(t, migrateJSON{0, migrations.Latest, true,
		fmt.Sprintf("would migrate from version 0 to %d; nothing was written",
			migrations.Latest)}, m)
	assert.Equal(t, before, listing(t, dir))
	strict(t, call(t, "migrate", "--json", "--db", path).out, &m)
	assert.Equal(t, migrateJSON{0, migrations.Latest, false,
		fmt.Sprintf("migrated from version 0 to %d", migrations.Latest)}, m)
	assert.Contains(t, call(t, "migrate", "--db", path).out,
		fmt.Sprintf("nothing to do: the tables have version %d", migrations.Latest))
	assert.Equal(t, exitNothing, call(t, "status", "--db", path).code)

	edit(t, path, `INSERT INTO scheduler_lock_schema VALUES (99, 1)`)
	for _, args := range [][]string{{"migrate"}, {"migrate", "--dry-run"}} {
		assert.Contains(t, call(t, append(args, "--db", path)...).out,
			fmt.Sprintf("version 99, newer than this tool (%d), which works with them",
				migrations.Latest))
	}
	edit(t, path, `INSERT INTO scheduler_lock_schema VALUES (100, 99)`)
	for _, args := range [][]string{{"migrate"}, {"migrate", "--dry-run"}} {
		assert.Contains(t, expect(t, exitUnknown, append(args, "--db", path)...),
			"needs code of version 99")
	}
}

// A change of large tables takes longer than an answer.
func TestMigrateHasMoreTimeThanOthers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string
		want time.Duration
	}{
		{"status", 5 * time.Second},
		{"migrate", time.Minute},
		{"migrate --dry-run", time.Minute},
		{"--timeout 5s migrate", 5 * time.Second},
		{"migrate --timeout 9s", 9 * time.Second},
		{"--timeout 5s migrate --timeout 9s", 9 * time.Second},
	} {
		none := func(string) (string, bool) { return "", false }
		var said bytes.Buffer
		tool := &tool{lookup: none, out: io.Discard, errOut: &said}
		args := append(strings.Fields(tc.args), "--db", filepath.Join(t.TempDir(), "no.db"))
		assert.Equal(t, exitUnknown, tool.run(bg, args))
		require.Contains(t, said.String(), "file does not exist", tc.args)
		assert.Equal(t, tc.want, tool.timeout, tc.args)
	}
	assert.Contains(t, call(t, "migrate", "--help").out, "has a minute")
}

// What a crash left, with the -shm file lost, is read again after migrate.
func TestMigrateRecoversWhatACrashLeft(t *testing.T) {
	missing.Long(t, "takes a second")
	t.Parallel()
	path := crashed(t, folder(t))
	require.NoError(t, os.Remove(path+"-shm"))
	assert.Equal(t, exitUnknown, call(t, "status", "--db", path).code)
	assert.Equal(t, exitDone, call(t, "migrate", "--db", path).code)
	assert.Equal(t, exitStale, call(t, "status", "--db", path).code)
}

// A watched is a running watch --json.
type watched struct {
	stop func(t *testing.T) int
	mu   sync.Mutex
	seen []change
}

func startWatch(t *testing.T, dsn string) *watched {
	t.Helper()
	cmd := process(t, "watch", "--json", "--interval", "50ms", "--timeout", patience.String(),
		"--db", dsn)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	w, ended := &watched{}, make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var c change
			err := json.Unmarshal(lines.Bytes(), &c)
			if err == nil {
				w.mu.Lock()
				w.seen = append(w.seen, c)
				w.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { kill(cmd) })
	w.stop = func(t *testing.T) int {
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		<-ended
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}
	return w
}

func (w *watched) find(event string, term int64) *change {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.seen {
		if c.Event == event && (term == 0 || c.Term == term) {
			return &c
		}
	}
	return nil
}

func (w *watched) await(t *testing.T, event string, term int64) change {
	t.Helper()
	var found *change
	eventually(t, "watch says "+event+" of term "+strconv.FormatInt(term, 10), func() bool {
		found = w.find(event, term)
		return found != nil
	})
	return *found
}

func TestWatchTellsOfDeathAndOutage(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, "app.db")
	leader := startReplica(t, path, "20s")
	was := leads(t, path, leader)
	w := startWatch(t, path)
	w.await(t, "start", was.Lock.Term)
	kill(leader)
	assert.Equal(t, dead, w.await(t, "verdict", was.Lock.Term).Verdict)
	require.NoError(t, os.Rename(dir, dir+"-away"))
	outage := w.await(t, "outage", 0)
	require.NoError(t, os.Rename(dir+"-away", dir))
	assert.Contains(t, outage.Reason, dir)
	w.await(t, "recovery", was.Lock.Term)
	next := startReplica(t, path, "20s")
	now := leads(t, path, next)
	assert.Equal(t, "proven dead", w.await(t, "ended", was.Lock.Term).Reason)
	assert.Equal(t, next.Process.Pid, w.await(t, "leader", now.Lock.Term).PID)
	require.NoError(t, next.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, "released", w.await(t, "ended", now.Lock.Term).Reason)
	eventually(t, "watch says that it is free", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		last := w.seen[len(w.seen)-1]
		return last.Event == "verdict" && last.Verdict == free
	})
	assert.Equal(t, exitDone, w.stop(t))
}
