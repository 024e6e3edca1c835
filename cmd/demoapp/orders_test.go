//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/tasks"
)

// quoted is a pattern for a text as JSON has it.
func quoted(s string) string {
	text, _ := json.Marshal(s)
	return regexp.QuoteMeta(string(text[1 : len(text)-1]))
}

// requested are the runs of the job tick that somebody asked for.
func (r *replica) requested() (runs []runRow) {
	r.t.Helper()
	for _, run := range r.runs("tick") {
		if run.RequestedBy != "" {
			runs = append(runs, run)
		}
	}
	return runs
}

// awaitJob waits until a leader has had the job tick.
func (r *replica) awaitJob() {
	r.t.Helper()
	eventually(r.t, "there is the job", func() error {
		if j := r.job("tick"); j.Next.IsZero() {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
}

func TestARunThatIsRequestedFromAStandbyStartsOnTheLeaderWithinASecond(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		f := newFleet(t, "CONTROL=true", "TICK=1h")
		leader, term := f.startLeader()
		standby := f.start()
		standby.awaitJob()
		var took []time.Duration
		for i := range soakRounds(100) {
			a := standby.order(fmt.Sprintf("/jobs/tick/run?wait=20s&by=ann&reason=round+%d", i))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			var run runRow
			decode(t, a.body, &run)
			require.Equal(t, "done", run.Status)
			require.Equal(t, []any{leader.pid(), term, 1}, []any{run.PID, run.Term, run.Attempt})
			require.Equal(t, []string{"ann", fmt.Sprintf("round %d", i)}, []string{run.RequestedBy, run.RequestReason})
			require.Equal(t, run, standby.requested()[0], "the newest")
			require.Len(t, standby.requested(), i+1, "once each")
			took = append(took, run.StartedAt.Sub(run.ScheduledAt))
		}
		logTimes(t, "from a request to its start", took)
		assert.Less(t, took[len(took)-1], 1500*time.Millisecond, "it is below a second on a machine that does nothing else")
		require.True(t, leader.get("/").contains("asked for by ann"))
	})
}

func TestARunThatTakesLongerThanItIsAwaitedIsAnsweredAsItStands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", "TICK=1h", "JOB_DURATION=1h", "DRAIN=100ms")
	leader, _ := f.startLeader()
	leader.awaitJob()
	asked := shape{"job": `^"tick"$`, "requested_at": stampPattern, "requested_by": `^"web page of .+ pid \d+"$`, "request_reason": noText, "run": null}
	a := leader.order("/jobs/tick/run")
	require.Equal(t, http.StatusAccepted, a.status)
	asked.check(t, a.body)
	leader.awaitRun("it has started", func(r runRow) bool { return r.Status == "in_progress" })

	// The job is busy, and does not overlap.
	a = leader.order("/jobs/tick/run?wait=20s")
	require.Equal(t, http.StatusOK, a.status)
	var skipped runRow
	decode(t, a.body, &skipped)
	require.Equal(t, []string{"skipped", "overlap"}, []string{skipped.Status, skipped.Error})
	leader.stop()

	// A shutdown does not wait for who waits.
	leader, _ = f.startLeader("TICK_OVERLAP=allow")
	a = leader.order("/jobs/tick/run?wait=1s")
	require.Equal(t, http.StatusAccepted, a.status)
	asked.with(shape{"run": `"status":"in_progress"`}).check(t, a.body)
	answered := make(chan answer, 1)
	go func() {
		a, err := leader.try(http.MethodPost, "/jobs/tick/run?wait=30s")
		assert.NoError(t, err)
		answered <- a
	}()
	eventually(t, "it is awaited", func() error {
		if n := len(leader.requested()); n < 4 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	leader.stop()
	a = <-answered
	require.Equal(t, http.StatusAccepted, a.status, "%s", a.body)
}

func TestARequestOutlivesTheLeaderAndRunsOnce(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		f := newFleet(t, "CONTROL=true", "TICK=1h", "JOB_DURATION=300ms", "LOCK_TTL=3s", "LOCK_HEARTBEAT=300ms", everyRun)
		leader, term := f.startLeader()
		standby := f.start()
		standby.awaitJob()
		attempts := map[int]int{}
		for i := range soakRounds(20) {
			a := standby.order("/jobs/tick/run?by=ann")
			require.Equal(t, http.StatusAccepted, a.status, "%s", a.body)
			if i%2 == 1 { // not at once, but in the middle of it
				standby.awaitRun("it has started", func(r runRow) bool { return r.RequestedBy != "" && r.Status == "in_progress" })
			}
			leader.kill()
			leader = standby
			before := term
			term = leader.awaitLeading()
			standby = f.start() // only now: it may be faster than a standby
			var run runRow
			eventually(t, "it is done", func() error {
				if runs := leader.requested(); len(runs) > 0 {
					run = runs[0]
				}
				if run.Status != "done" {
					return fmt.Errorf("%+v", run)
				}
				return nil
			})
			runs := leader.requested()
			require.Len(t, runs, i+1, "each has one run")
			attempts[run.Attempt]++
			switch run.Attempt {
			case 1:
				require.Contains(t, []int64{before, term}, run.Term)
			case 2:
				require.Equal(t, term, run.Term)
			default:
				require.Fail(t, "too many attempts", "%+v", run)
			}
			if i%2 == 1 {
				require.Equal(t, 2, run.Attempt, "it was cut short")
			}
		}
		f.requireStartedOnce(leader.runs("tick"))
		t.Logf("requests by the attempt that was done: %v", attempts)
	})
}

func TestWhileItIsPausedNothingStartsAndEveryReplicaSaysWhy(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		const interval = 200 * time.Millisecond
		f := newFleet(t, "CONTROL=true", "TICK=200ms", everyRun)
		leader, term := f.startLeader()
		standby := f.start()
		leader.awaitRun("a run is done", func(r runRow) bool { return r.Status == "done" })
		for i := range soakRounds(10) {
			everything := i%2 == 1
			path, what := "/jobs/tick", `job "tick"`
			if everything {
				path, what = "", "the scheduler"
			}
			a := standby.order(path + "/pause?by=ann&reason=" + url.QueryEscape("<deploy>"))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			paused := time.Now()
			for _, r := range []*replica{leader, standby} {
				j := r.job("tick")
				require.NotNil(t, j.Paused)
				require.Equal(t, pauseRow{By: "ann", Reason: "<deploy>", Since: j.Paused.Since, Everything: everything}, *j.Paused)
				page := r.get("/")
				require.True(t, page.contains("paused by ann") && page.contains("&lt;deploy&gt;"), "%s", page.body)
				a := r.order("/jobs/tick/run")
				require.Equal(t, http.StatusConflict, a.status)
				shape{"error": "^\"" + quoted(what) + ` is paused by ann since .*deploy`, "paused": `"by":"ann"`}.check(t, a.body)
			}
			require.Equal(t, everything, leader.job("import").Paused != nil)
			a = standby.order(path + "/pause?by=bob")
			require.Contains(t, string(a.body), `"by":"ann"`, "the first one is in force")

			if everything { // also when the leader changes meanwhile
				leader.stop()
				leader = standby
				before := term
				term = leader.awaitLeading()
				require.Greater(t, term, before)
				standby = f.start()
			}
			time.Sleep(time.Until(paused.Add(8 * interval)))
			resumed := time.Now()
			a = standby.order(path + "/resume?by=bob")
			require.Equal(t, http.StatusOK, a.status)
			require.Contains(t, string(a.body), `"resumed":true`)
			answered := time.Now()
			standby.awaitRun("it runs again", func(r runRow) bool { return r.StartedAt.After(resumed) && r.Status == "done" })
			require.Nil(t, standby.job("tick").Paused)
			require.Contains(t, string(standby.order(path+"/resume").body), `"resumed":false`)

			var ranges []runRow
			for _, r := range standby.runs("tick") {
				require.False(t, r.StartedAt.After(paused) && r.StartedAt.Before(resumed), "started during the pause: %+v", r)
				if r.Status == "skipped" && r.Error == "paused" && r.Until.After(paused) {
					ranges = append(ranges, r)
				}
			}
			require.Len(t, ranges, 1, "one range of the pause")
			require.GreaterOrEqual(t, ranges[0].Count, int64(5))
			require.Equal(t, ranges[0].Until, ranges[0].ScheduledAt.Add(time.Duration(ranges[0].Count-1)*interval))
			require.False(t, ranges[0].Until.After(answered))
		}
		f.requireEveryTickOnce(standby, interval)
	})
}

func TestWithoutControlEveryOrderIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "TICK=1h")
	r, _ := f.startLeader()
	r.awaitJob()
	for _, path := range []string{"/jobs/tick/run", "/jobs/tick/pause", "/jobs/tick/resume", "/pause", "/resume", "/jobs/nonsense/run"} {
		a := r.order(path, "Content-Type", "application/x-www-form-urlencoded")
		require.Equal(t, http.StatusForbidden, a.status, path)
		shape{"error": `DEMOAPP_CONTROL=true`}.check(t, a.body)
	}
	for _, path := range []string{"/orders/handover", "/orders/run", "/orders/pause", "/orders/resume"} {
		a := r.order(path)
		require.Equal(t, http.StatusForbidden, a.status, path)
		require.True(t, a.contains("DEMOAPP_CONTROL=true"), "%s: %s", path, a.body)
	}
	require.Nil(t, r.job("tick").Paused)
	require.Empty(t, r.requested())
	page := r.get("/")
	require.True(t, page.contains(">Jobs</h2>"))
	require.False(t, page.contains("<form") || page.contains("<button"))
	require.Contains(t, page.header.Get("Content-Security-Policy"), "form-action 'none'")
}

func TestOrdersAreTakenFromThisSiteOnly(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", "TICK=1h")
	r, _ := f.startLeader()
	r.awaitJob()
	paths := []string{"/jobs/tick/run", "/jobs/tick/pause", "/jobs/tick/resume", "/pause", "/resume"}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site", "Origin", r.url},
	} {
		for _, path := range paths {
			a := r.order(path, header...)
			require.Equal(t, http.StatusForbidden, a.status, "%s %q", path, header)
			shape{"error": "another site"}.check(t, a.body)
		}
	}
	require.Nil(t, r.job("tick").Paused)
	require.Empty(t, r.requested())

	// A program of this site's, and curl with nothing. What a browser does with
	// the page's buttons is in TestThePageInABrowser.
	for i, header := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", r.url}, {}} {
		for _, path := range paths {
			a := r.order(path, header...)
			require.Less(t, a.status, 300, "%s %q: %s", path, header, a.body)
		}
		require.Nil(t, r.job("tick").Paused)
		eventually(t, "it runs", func() error {
			if n := len(r.requested()); n != i+1 {
				return fmt.Errorf("%d runs", n)
			}
			return nil
		})
	}
}

func TestAWrongOrderIsRefusedWithTheReason(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		f := newFleet(t, "CONTROL=true", "TICK=1h")
		r, _ := f.startLeader()
		r.awaitJob()
		for _, tc := range []struct {
			path   string
			status int
			why    string
		}{
			{"/jobs/nonsense/run", 404, "nonsense"},
			{"/jobs/nonsense/pause", 404, "nonsense"},
			{"/jobs/nonsense/resume", 404, "nonsense"},
			{"/jobs/a%2Fb/run", 404, "a/b"},
			{"/jobs/a%00b/run", 404, "a"},
			{"/jobs/a%00b/pause", 404, "a"},
			{"/jobs/a%00b/resume", 404, "a"},
			{"/jobs/%FF/run", 404, "job"},
			{"/jobs/%FF/pause", 404, "job"},
			{"/jobs/%FF/resume", 404, "job"},
			{"/jobs/tick/run?wait=long", 400, "long"},
			{"/jobs/tick/run?wait=-1s", 400, "-1s"},
			{"/jobs/tick/run?wait=5", 400, "not a duration such as 10s"},
			{"/jobs/tick/run?by=%FF", 400, "UTF-8"},
			{"/jobs/tick/pause?reason=%00", 400, "NUL"},
			{"/jobs/tick/resume?by=" + fmt.Sprintf("%0201d", 0), 400, "201 bytes, 200 are allowed"},
			{"/pause?reason=" + fmt.Sprintf("%01001d", 0), 400, "1001 bytes, 1000 are allowed"},
			{"/pause?reason=%zz", 400, "form"},
		} {
			a := r.order(tc.path)
			require.Equal(t, tc.status, a.status, "%.50s: %s", tc.path, a.body)
			shape{"error": quoted(tc.why)}.check(t, a.body)
		}
		require.Empty(t, r.requested())
		require.Nil(t, r.job("tick").Paused)
		wait, err := parseWait("1h")
		require.NoError(t, err)
		require.Equal(t, maxWait, wait)
	})
}

func TestAnOrderThatTheDatabaseDoesNotTakeIsRefusedInTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", "TICK=1h")
	r, _ := f.startLeader()
	r.awaitJob()
	done := f.holdWriteLock()
	for _, path := range []string{"/jobs/tick/run", "/jobs/tick/pause", "/pause"} {
		begun := time.Now()
		a := r.order(path)
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		shape{"error": "^\"the database (cannot be read|did not answer in time)\"$"}.check(t, a.body)
		require.Less(t, time.Since(begun), orderTimeout+5*time.Second)
	}
	done()
	require.Nil(t, r.job("tick").Paused)
	require.Empty(t, r.requested())
}

func TestJobsAndRetriesAnswerAsTheirContractSays(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		f := newFleet(t, "CONTROL=true", "TICK=1h", "TICK_ATTEMPTS=3")
		leader, _ := f.startLeader("TICK_FAIL=2")
		leader.awaitJob()
		require.Equal(t, http.StatusAccepted, leader.order("/jobs/tick/run?by=ann").status)

		// The first attempt fails, the second is due.
		run := shape{
			"job": `^"tick"$`, "scheduled_at": stampPattern, "started_at": stampPattern, "finished_at": stampPattern, "status": `^"failed"$`,
			"term": anyInteger, "pid": anyInteger, "hostname": anyText, "attempt": "^1$", "error": `^"told to fail by DEMOAPP_TICK_FAIL=2"$`,
			"retry_at": stampPattern, "requested_by": `^"ann"$`,
		}
		leader.awaitRun("it has failed", func(r runRow) bool { return r.Status == "failed" && r.Attempt == 1 })
		var list []json.RawMessage
		decode(t, leader.get("/runs?job=tick").body, &list)
		run.check(t, list[0])
		require.True(t, leader.get("/").contains("again at "))
		done := leader.awaitRun("the third is done", func(r runRow) bool { return r.Status == "done" })
		require.Equal(t, 3, done.Attempt)
		decode(t, leader.get("/runs?job=tick").body, &list)
		run.with(shape{"status": `^"done"$`, "attempt": "^3$", "error": noText, "retry_at": ""}).check(t, list[0])
		require.True(t, leader.get("/").contains(", attempt 3"))
		eventually(t, "it is counted", func() error {
			failed := leader.metric("schedlock_runs_total", "job_name", "tick", "status", "failed")
			done := leader.metric("schedlock_runs_total", "job_name", "tick", "status", "done")
			if failed != 2 || done != 1 {
				return fmt.Errorf("%v failed, %v done", failed, done)
			}
			return nil
		})

		job := shape{
			"name": `^"tick"$`, "spec": `^"every 1h0m0s`, "known": "^true$", "next": stampPattern, "paused": null,
			"last_success": stampPattern, "last_failure": stampPattern, "last_error": `^"told to fail`, "streak": "^0$",
			"done": "^1$", "failed": "^2$", "average_seconds": `^\d+(\.\d+)?(e-\d+)?$`, "longest_seconds": `^\d+(\.\d+)?(e-\d+)?$`,
		}
		tick := func(r *replica) json.RawMessage {
			a := r.get("/jobs")
			require.Equal(t, http.StatusOK, a.status)
			decode(t, a.body, &list)
			require.Len(t, list, 3)
			return list[2]
		}
		job.check(t, tick(leader))
		never := shape{"name": `^"expire"$`, "spec": `^"every 5m0s`, "last_success": null, "last_failure": null, "last_error": noText,
			"done": "^0$", "failed": "^0$", "average_seconds": "^0$", "longest_seconds": "^0$"}
		job.with(never).check(t, list[0])
		leader.order("/jobs/tick/pause?by=ann")
		job.with(shape{"paused": `^\{"by":"ann","reason":"","since":"[^"]+","everything":false\}$`}).check(t, tick(leader))
		leader.order("/jobs/tick/resume")
		leader.stop()

		// All attempts fail; and a run takes longer than it may.
		leader, _ = f.startLeader("TICK_FAIL=9", "JOB_DURATION=1h", "TICK_TIMEOUT=100ms", "TICK_ATTEMPTS=1")
		a := leader.order("/jobs/tick/run?wait=20s")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		run.with(shape{"error": `time-out of 100ms`, "retry_at": "", "requested_by": "web page"}).check(t, a.body)
		job.with(shape{"streak": "^1$", "failed": "^3$", "last_error": "time-out of 100ms"}).check(t, tick(leader))
	})
}

func TestARunThatIsCutShortIsTakenUpByTheNextLeader(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet func(t *testing.T, env ...string) *fleet) {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprintf("at most once %v", once), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, "TICK=1s", "TICK_OVERLAP=allow", "LOCK_TTL=3s", "LOCK_HEARTBEAT=300ms", fmt.Sprintf("TICK_AT_MOST_ONCE=%v", once), everyRun)
				leader, term := f.startLeader("JOB_DURATION=1h")
				var took []time.Duration
				for range soakRounds(20) {
					next := f.start("JOB_DURATION=1h")
					cut := leader.awaitRun("a run is under way", func(r runRow) bool { return r.Status == "in_progress" && r.Term == term && r.Attempt == 1 })
					leader.kill()
					before := term
					leader, term = next, next.awaitLeading()
					acquired := leader.terms()[0].AcquiredAt
					var found, again runRow
					eventually(t, "it is abandoned, and what follows", func() error {
						for _, r := range leader.runs("tick") {
							if !r.ScheduledAt.Equal(cut.ScheduledAt) {
								continue
							}
							if r.Status == "abandoned" {
								found = r
							}
							if again = r; r.Attempt == 2 || once && r.Status == "abandoned" {
								return nil
							}
						}
						return fmt.Errorf("%+v", again)
					})
					if found.Attempt == 1 { // else this test has looked too late
						require.Equal(t, before, found.Term)
						took = append(took, found.FinishedAt.Sub(acquired))
						require.Equal(t, once, found.RetryAt.IsZero())
					}
					if !once {
						require.Equal(t, term, again.Term)
						require.GreaterOrEqual(t, again.StartedAt.Sub(acquired), 400*time.Millisecond, "after its backoff")
					}
					j := leader.job("tick")
					require.False(t, j.LastFailure.Before(acquired))
					require.Less(t, j.LastFailure.Sub(acquired), 3*time.Second, "it is milliseconds on a machine that does nothing else")
					leader.awaitLine("run abandoned by its leader", "attempt=1")
					require.Positive(t, leader.metric("schedlock_runs_total", "job_name", "tick", "status", "abandoned"))
					if once {
						leader.awaitLine("run abandoned by its leader: it is not repeated")
						leader.awaitRun("the next tick runs", func(r runRow) bool { return r.ScheduledAt.After(cut.ScheduledAt) && r.Term == term })
						time.Sleep(time.Until(acquired.Add(1500 * time.Millisecond))) // the longest backoff, and more
						kept := leader.awaitRun("it is there", func(r runRow) bool { return r.ScheduledAt.Equal(cut.ScheduledAt) })
						require.Equal(t, found, kept)
					}
				}
				if len(took) > 0 {
					logTimes(t, "from the acquisition until what was cut short is abandoned", took)
				}
				f.requireStartedOnce(leader.runs("tick"))
			})
		}
	})
}

func TestJobsTakeTheirPoliciesFromTheConfiguration(t *testing.T) {
	t.Parallel()
	jobs := func(env ...string) (tick, imports tasks.Job) {
		cfg, err := loadConfig(nil, func(name string) (string, bool) {
			for _, v := range env {
				if value, ok := strings.CutPrefix(v, strings.TrimPrefix(name, envPrefix)+"="); ok {
					return value, true
				}
			}
			return "", false
		}, io.Discard)
		require.NoError(t, err)
		all := (&app{cfg: cfg}).jobs()
		require.Equal(t, []string{"tick", "import", "expire"}, []string{all[0].Name, all[1].Name, all[2].Name})
		all[0].Do, all[1].Do = nil, nil
		return all[0], all[1]
	}
	tick, imports := jobs()
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second), Retry: tasks.Retry{Attempts: 1}}, tick)
	require.Equal(t, tasks.Job{Name: "import", Spec: tasks.Every(importInterval), AtOnce: true, CatchUp: tasks.Latest, Overlap: tasks.OverlapSkip,
		Retry: tasks.Retry{Attempts: 3, Backoff: 5 * time.Second}, Timeout: 5 * time.Minute}, imports)
	tick, _ = jobs("TICK_CATCHUP=7", "TICK_OVERLAP=queue", "TICK_ATTEMPTS=4", "TICK_TIMEOUT=3s")
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second), CatchUp: tasks.All(7), Overlap: tasks.OverlapQueue,
		Retry: tasks.Retry{Attempts: 4}, Timeout: 3 * time.Second}, tick)
	tick, _ = jobs("TICK_CATCHUP=skip", "TICK_OVERLAP=allow", "TICK_AT_MOST_ONCE=true")
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second), CatchUp: tasks.Skip, Overlap: tasks.OverlapAllow,
		Retry: tasks.Retry{Attempts: 1}, AtMostOnce: true}, tick)
	tick, _ = jobs("TICK_CATCHUP=latest", "TICK_OVERLAP=skip")
	require.Equal(t, []any{tasks.Latest, tasks.OverlapSkip}, []any{tick.CatchUp, tick.Overlap})
}
