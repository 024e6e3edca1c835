//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStampsThatAreAnHourOffChangeNoLeaderWhileTheBeatMoves(t *testing.T) {
	t.Parallel()
	for _, off := range []string{"-1 hour", "+1 hour"} {
		t.Run(off, func(t *testing.T) {
			t.Parallel()
			if off == "-1 hour" {
				onlyFull(t, "tries the same with stamps of the past")
			}
			const ttl, heartbeat = 6 * time.Second, 500 * time.Millisecond
			f := newFleet(t, "LOCK_TTL=6s", "LOCK_HEARTBEAT=500ms")
			leader, term := f.startLeader()
			standby := f.start()
			// From now on every heartbeat's stamp is off.
			f.sql(fmt.Sprintf(`
				CREATE TRIGGER stamps_are_off AFTER UPDATE OF heartbeat_at ON scheduler_lock BEGIN
				UPDATE scheduler_lock
				SET heartbeat_at = strftime('%%Y-%%m-%%dT%%H:%%M:%%f000Z', 'now', '%s')
				WHERE id = 1; END`, off))
			leader.awaitHeartbeats(1)
			stamp := leader.lock().Lock.HeartbeatAt
			require.Greater(t, time.Since(stamp).Abs(), 50*time.Minute, "the stamps are off")

			// A strict replica watches for as long as it must, and is refused.
			strict := f.launch("MODE=strict")
			watched := leader.heartbeats() + int(ttl*3/2/heartbeat)
			eventually(t, "one and a half TTL of heartbeats have passed, and strict has ended",
				func() error {
					require.False(t, standby.lock().Self.Leader)
					require.Equal(t, selfState{Leader: true, State: "leading", Term: term},
						leader.lock().Self.withoutReason())
					if n := leader.heartbeats(); n < watched || !strict.hasExited() {
						return fmt.Errorf("%d heartbeats of %d, strict has ended: %v", n, watched,
							strict.hasExited())
					}
					return nil
				})
			require.Equal(t, 3, strict.wait())
			require.Len(t, leader.terms(), 1)
			require.Empty(t, leader.log.with("lost the lock"))
		})
	}
}

func (s selfState) withoutReason() selfState { s.Reason = ""; return s }

func TestLeaderWhoseRowWasEditedStepsDownBeforeAnybodyElseLeads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, edit string }{
		{"deleted", `DELETE FROM scheduler_lock`},
		{"token changed", `UPDATE scheduler_lock SET token = '00000000000000000000000000000000'`},
		{"token made no token", `UPDATE scheduler_lock SET token = 'mine'`},
		{"term changed", `UPDATE scheduler_lock SET term = term - 1`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			const ttl = 20 * time.Second
			f := newFleet(t, "LOCK_TTL=20s", "LOCK_HEARTBEAT=300ms", "TICK=200ms",
				"JOB_DURATION=1h", "TICK_AT_MOST_ONCE=true") // else the next leader repeats the run
			old, term := f.startLeader()
			replicas := []*replica{old, f.start(), f.start()}
			run := old.awaitStatus("in_progress", 0)

			edited := time.Now()
			f.sql(tc.edit)
			leader, next := awaitOneLeader(t, replicas, term) // the old one may win again

			old.awaitLine("lost the lock", fmt.Sprintf("term=%d", term))
			terms := leader.terms()
			require.Len(t, terms, 2, "exactly one has followed")
			require.Equal(t, next, terms[0].Term)
			require.Equal(t, term, terms[1].Term)
			assert.Equal(t, "lost", terms[1].EndReason)
			assert.Empty(t, old.log.with("lost the lock", "renew deadline"),
				"it lost it by its next heartbeat, not at its renew deadline")
			assert.Less(t, terms[0].AcquiredAt.Sub(edited), ttl+soon(2*time.Second))

			// Its job was cancelled, and had returned, before anybody led.
			ended := leader.awaitRun("its run has ended", func(r runRow) bool {
				return r.ScheduledAt.Equal(run.ScheduledAt)
			})
			require.Equal(t, "failed", ended.Status)
			require.Contains(t, ended.Error, "scheduler lock is lost")
			require.False(t, ended.FinishedAt.After(terms[1].EndedAt), "%+v %+v", ended, terms)
			require.False(t, terms[1].EndedAt.After(terms[0].AcquiredAt), "%+v", terms)
			leader.awaitRun("the new leader's runs appear", func(r runRow) bool {
				return r.Term == next
			})
		})
	}
}

func TestLeaderOutlivesAnotherWriterThatHoldsTheDatabaseForHalfATTL(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOCK_TTL=16s", "LOCK_HEARTBEAT=500ms", "TICK=200ms")
	leader, term := f.startLeader()
	standby := f.start()
	leader.awaitImport() // it would wait for the database in vain, and say so
	began, over := len(leader.log.with("database does not answer")),
		len(leader.log.with("database answers again"))
	done := f.holdWriteLock()
	time.Sleep(8 * time.Second) // the fault itself: half a TTL
	self, other := leader.lock(), standby.lock()
	done()
	require.True(t, self.Self.Leader)
	require.Equal(t, "standby", other.Self.State)
	leader.awaitHeartbeats(2)
	require.NotZero(t, leader.failedHeartbeats(), "it was disturbed")
	require.Equal(t, term, leader.lock().Self.Term)
	require.Len(t, leader.terms(), 1)
	require.Equal(t, "standby", standby.lock().Self.State)
	ended := time.Now()
	leader.awaitRun("the runs go on", func(r runRow) bool {
		return r.StartedAt.After(ended) && r.Status == "done"
	})

	// One line says that it began, one that it is over.
	eventually(t, "the log says that it is over", func() error {
		if n := len(leader.log.with("database answers again")); n == over {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	require.Len(t, leader.log.with("database does not answer"), began+1)
	require.Len(t, leader.log.with("database answers again"), over+1)
	require.Empty(t, leader.errorLines())
}

func TestLeaderThatCannotWriteStepsDownAtItsRenewDeadlineAndLeadsAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOCK_TTL=8s", "LOCK_HEARTBEAT=300ms", "TICK=200ms", "JOB_DURATION=1h",
		"TICK_AT_MOST_ONCE=true")
	leader, term := f.startLeader()
	run := leader.awaitStatus("in_progress", 0)
	done := f.holdWriteLock()
	last := leader.lock().Lock.HeartbeatAt
	eventually(t, "it steps down, and serves", func() error {
		l := leader.lock()
		if l.Self.Leader || l.Self.State != "standby" {
			return fmt.Errorf("%+v", l)
		}
		return nil
	})
	require.Greater(t, time.Since(last), 5500*time.Millisecond,
		"not before its renew deadline of 6 s, counted from when it sent the last heartbeat")
	require.Equal(t, http.StatusOK, leader.get("/readyz").status, "the database can be read")
	done()

	next := leader.awaitLeading()
	require.Greater(t, next, term)
	require.Equal(t, "lost", leader.terms()[1].EndReason)
	ended := leader.awaitRun("its run has ended", func(r runRow) bool {
		return r.ScheduledAt.Equal(run.ScheduledAt)
	})
	require.Equal(t, "failed", ended.Status)
	require.Contains(t, ended.Error, "scheduler lock is lost")
	leader.awaitRun("its runs appear again", func(r runRow) bool { return r.Term == next })
	leader.awaitLine("lost the lock", "renew deadline of 6s")
}

func TestDatabaseFileThatWasDeletedIsNeverMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOCK_TTL=6s", "LOCK_HEARTBEAT=300ms", "TICK=200ms")
	leader, _ := f.startLeader()
	standby := f.start()
	leader.awaitImport() // else it fails
	before := f.files()
	require.NoError(t, os.Remove(f.db))

	for _, r := range []*replica{leader, standby} {
		eventually(t, "it says that it does not lead and is not ready", func() error {
			a := r.get("/lock")
			if a.status != http.StatusServiceUnavailable {
				return fmt.Errorf("GET /lock: %d %s", a.status, a.body)
			}
			require.Equal(t, []string{"error", "self"}, a.keys(t))
			var said struct {
				Error string    `json:"error"`
				Self  selfState `json:"self"`
			}
			decode(t, a.body, &said)
			require.NotEmpty(t, said.Error)
			require.NotContains(t, said.Error, f.dir, "a stranger learns no paths")
			if said.Self.Leader || said.Self.State != "standby" {
				return fmt.Errorf("%+v", said.Self)
			}
			return nil
		})
		require.Equal(t, http.StatusServiceUnavailable, r.get("/readyz").status)
		page := r.get("/")
		require.Equal(t, http.StatusServiceUnavailable, page.status)
		require.True(t, page.contains("the database file is not the one that was opened"), "%s",
			page.body)
		require.Equal(t, http.StatusOK, r.get("/healthz").status, "the web app goes on")
	}
	leader.awaitLine("lost the lock", f.db) // it names the file

	for _, r := range []*replica{leader, standby} {
		r.stop()
		for _, line := range r.errorLines() {
			require.Contains(t, line, "scheduler lock is lost", "a run that was under way")
		}
	}
	after := slices.DeleteFunc(f.files(), func(name string) bool {
		return slices.Contains(before, name)
	})
	require.Empty(t, after, "new files")
	_, err := os.Stat(f.db)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDatabaseFileThatWasReplacedDeposesTheLeader(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOCK_TTL=6s", "LOCK_HEARTBEAT=300ms")
	leader, _ := f.startLeader()
	f.sql(fmt.Sprintf(`VACUUM INTO '%s-copy'`, f.db))
	require.NoError(t, os.Rename(f.db+"-copy", f.db))
	leader.awaitLine("lost the lock", f.db, "replaced by another file")
	require.Equal(t, http.StatusServiceUnavailable, leader.get("/readyz").status)
	require.Len(t, leader.log.with("msg=leading"), 1, "it does not lead again")
	leader.stop()
	for _, line := range leader.errorLines() {
		require.Contains(t, line, "scheduler lock is lost", "a run that was under way")
	}
}

// keys are those of the answer, a JSON object, sorted.
func (a answer) keys(t *testing.T) []string {
	t.Helper()
	return objectKeys(t, a.body)
}

func objectKeys(t *testing.T, object []byte) (keys []string) {
	t.Helper()
	var m map[string]json.RawMessage
	decode(t, object, &m)
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (a answer) contains(s string) bool { return strings.Contains(string(a.body), s) }
