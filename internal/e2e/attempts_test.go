//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJobsAndRetriesAnswerAsTheirContractSays(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "CONTROL=true", seldom, "TICK_ATTEMPTS=3")
		leader, _ := f.startLeader("TICK_FAIL=2")
		leader.awaitJob()
		require.Equal(t, http.StatusAccepted, leader.order("/jobs/tick/run?by=ann").status)

		// The first attempt fails, the second is due.
		run := shape{
			"job": `^"tick"$`, "scheduled_at": stampPattern, "started_at": stampPattern,
			"finished_at": stampPattern, "status": `^"failed"$`,
			"term": anyInteger, "pid": anyInteger, "hostname": anyText, "attempt": "^1$",
			"error":    `^"told to fail by DEMOAPP_TICK_FAIL=2"$`,
			"retry_at": stampPattern, "requested_by": `^"ann"$`,
		}
		var list []json.RawMessage
		eventually(t, "it has failed, and the page says when it is tried again", func() error {
			a := leader.get("/runs?job=tick")
			if !a.contains(`"failed"`) || !leader.get("/").contains("again at ") {
				return fmt.Errorf("%s", a.body)
			}
			decode(t, a.body, &list)
			run.with(shape{"attempt": "^[12]$"}).check(t, list[0]) // a busy test looks too late
			return nil
		})
		done := leader.awaitStatus("done", 0)
		require.Equal(t, 3, done.Attempt)
		decode(t, leader.read("/runs?job=tick").body, &list)
		run.with(shape{"status": `^"done"$`, "attempt": "^3$", "error": noText,
			"retry_at": ""}).check(t, list[0])
		require.True(t, leader.read("/").contains(", attempt 3"))
		eventually(t, "it is counted", func() error {
			failed := leader.metric("schedlock_runs_total", "job_name", "tick", "status", "failed")
			done := leader.metric("schedlock_runs_total", "job_name", "tick", "status", "done")
			if failed != 2 || done != 1 {
				return fmt.Errorf("%v failed, %v done", failed, done)
			}
			return nil
		})

		job := shape{
			"job": `^"tick"$`, "spec": `^"every 1000h0m0s`, "known": "^true$",
			"next_tick": stampPattern, "paused": null,
			"last_done": stampPattern, "last_failed": stampPattern,
			"last_error": `^"told to fail`, "failure_streak": "^0$",
			"done": "^1$", "failed": "^2$", "average_seconds": `^\d+(\.\d+)?(e-\d+)?$`,
			"longest_seconds": `^\d+(\.\d+)?(e-\d+)?$`,
		}
		tick := func(r *replica) json.RawMessage {
			a := r.read("/jobs")
			decode(t, a.body, &list)
			require.Len(t, list, 3)
			return list[2]
		}
		job.check(t, tick(leader))
		expire := shape{"job": `^"expire"$`, "spec": `^"every 5m0s`, "last_failed": null,
			"last_error": noText, "failed": "^0$"}
		never := shape{"last_done": null, "done": "^0$", "average_seconds": "^0$",
			"longest_seconds": "^0$"}
		if !bytes.Contains(list[0], []byte(`"done":0,`)) { // its tick fell into this test
			never = shape{"done": "^1$"}
		}
		job.with(expire).with(never).check(t, list[0])
		leader.order("/jobs/tick/pause?by=ann")
		paused := shape{"paused": `^\{"job":"tick","since":"[^"]+","by":"ann","reason":""\}$`}
		job.with(paused).check(t, tick(leader))
		leader.order("/jobs/tick/resume")
		leader.stop()

		// All attempts fail; and a run takes longer than it may.
		leader, _ = f.startLeader("TICK_FAIL=9", "JOB_DURATION=1h", "TICK_TIMEOUT=100ms",
			"TICK_ATTEMPTS=1")
		a := leader.order("/jobs/tick/run?wait=20s")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		run.with(shape{"error": `time-out of 100ms`, "retry_at": "",
			"requested_by": "web page"}).check(t, a.body)
		job.with(shape{"failure_streak": "^1$", "failed": "^3$",
			"last_error": "time-out of 100ms"}).check(t, tick(leader))
	})
}
