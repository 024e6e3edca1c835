//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		if j := r.job("tick"); j.NextTick.IsZero() {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
}

func TestARunThatIsRequestedFromAStandbyStartsOnTheLeaderWithinASecond(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "CONTROL=true", seldom)
		leader, term := f.startLeader()
		standby := f.start()
		standby.awaitJob()
		var took []time.Duration
		ask := func() time.Duration {
			i := len(took)
			a := standby.order(fmt.Sprintf("/jobs/tick/run?wait=20s&by=ann&reason=round+%d", i))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			var run runRow
			decode(t, a.body, &run)
			require.Equal(t, "done", run.Status)
			require.Equal(t, []any{leader.pid(), term, 1}, []any{run.PID, run.Term, run.Attempt})
			require.Equal(t, []string{"ann", fmt.Sprintf("round %d", i)},
				[]string{run.RequestedBy, run.RequestReason})
			require.Equal(t, run, standby.requested()[0], "the newest")
			require.Len(t, standby.requested(), i+1, "once each")
			took = append(took, run.StartedAt.Sub(run.ScheduledAt))
			return took[i]
		}
		ask()
		requireWithin(t, time.Second, ask)
		for range soakRounds(100) - 2 {
			ask()
		}
		logTimes(t, "from a request to its start", took)
		if *soak {
			assert.Less(t, took[len(took)-1], 1500*time.Millisecond)
		}
		require.True(t, leader.read("/").contains("asked for by ann"))
	})
}

func TestARunThatTakesLongerThanItIsAwaitedIsAnsweredAsItStands(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", seldom, "JOB_DURATION=1h", "DRAIN=100ms")
	leader, _ := f.startLeader()
	leader.awaitJob()
	asked := shape{"job": `^"tick"$`, "requested_at": stampPattern,
		"requested_by": `^"web page of .+ pid \d+"$`, "request_reason": noText, "run": null}
	a := leader.order("/jobs/tick/run")
	require.Equal(t, http.StatusAccepted, a.status)
	asked.check(t, a.body)
	leader.awaitStatus("in_progress", 0)

	// The job is busy, and does not overlap.
	a = leader.order("/jobs/tick/run?wait=20s")
	require.Equal(t, http.StatusOK, a.status)
	var skipped runRow
	decode(t, a.body, &skipped)
	require.Equal(t, []string{"skipped", "overlap"}, []string{skipped.Status, skipped.Error})
	leader.stop()

	// A shutdown does not wait for who waits.
	leader, _ = f.startLeader("TICK_OVERLAP=allow")
	orders := 2
	eventually(t, "a run starts while it is awaited", func() error {
		a = leader.order(fmt.Sprintf("/jobs/tick/run?wait=%ds", orders-1))
		orders++
		require.Equal(t, http.StatusAccepted, a.status)
		if !a.contains(`"in_progress"`) {
			return fmt.Errorf("%s", a.body)
		}
		return nil
	})
	asked.with(shape{"run": `"status":"in_progress"`}).check(t, a.body)
	answered := make(chan answer, 1)
	go func() {
		a, err := leader.try(http.MethodPost, "/jobs/tick/run?wait=30s")
		assert.NoError(t, err)
		answered <- a
	}()
	eventually(t, "it is awaited", func() error {
		if n := len(leader.requested()); n < orders+1 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	leader.stop()
	a = <-answered
	require.Equal(t, http.StatusAccepted, a.status, "%s", a.body)
}

func TestWhileItIsPausedNothingStartsAndEveryReplicaSaysWhy(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		const interval = 200 * time.Millisecond
		f := newFleet(t, "CONTROL=true", "TICK=200ms", everyRun)
		leader, term := f.startLeader()
		standby := f.start()
		leader.awaitStatus("done", 0)
		for i := range soakRounds(10) {
			everything := i%2 == 1
			job, path, what, all := "tick", "/jobs/tick", `job "tick"`, ""
			if everything {
				job, path, what, all = "", "", "the scheduler", "all=true&"
			}
			a := standby.order(path + "/pause?" + all + "by=ann&reason=" +
				url.QueryEscape("<deploy>"))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			paused := time.Now()
			for _, r := range []*replica{leader, standby} {
				j := r.job("tick")
				require.NotNil(t, j.Paused)
				require.Equal(t, pauseRow{job, j.Paused.Since, "ann", "<deploy>"}, *j.Paused)
				page := r.get("/")
				require.True(t, page.contains("paused by ann") &&
					page.contains("&lt;deploy&gt;"), "%s", page.body)
				a := r.order("/jobs/tick/run")
				require.Equal(t, http.StatusConflict, a.status)
				shape{"error": "^\"" + quoted(what) + ` is paused by ann since .*deploy`,
					"paused": `"by":"ann"`}.check(t, a.body)
			}
			require.Equal(t, everything, leader.job("import").Paused != nil)
			a = standby.order(path + "/pause?" + all + "by=bob")
			require.Contains(t, string(a.body), `"by":"ann"`, "the first one is in force")

			if everything { // also when the leader changes meanwhile
				leader.stop()
				leader = standby
				before := term
				term = leader.awaitLeading()
				require.Greater(t, term, before)
				standby = f.start()
			}
			time.Sleep(time.Until(paused.Add(8 * interval))) // the pause: it shows nothing
			resumed := time.Now()
			a = standby.order(path + "/resume?" + all + "by=bob")
			require.Equal(t, http.StatusOK, a.status)
			require.Contains(t, string(a.body), `"resumed":true`)
			answered := time.Now()
			standby.awaitRun("it runs again", func(r runRow) bool {
				return r.StartedAt.After(resumed) && r.Status == "done"
			})
			require.Nil(t, standby.job("tick").Paused)
			require.Contains(t, string(standby.order(path+"/resume?"+all).body), `"resumed":false`)

			var ranges []runRow
			for _, r := range standby.runs("tick") {
				require.False(t, r.StartedAt.After(paused) &&
					r.StartedAt.Before(resumed), "started during the pause: %+v", r)
				if r.Status == "skipped" && r.Error == "paused" && r.Until.After(paused) {
					ranges = append(ranges, r)
				}
			}
			require.Len(t, ranges, 1, "one range of the pause")
			require.GreaterOrEqual(t, ranges[0].Count, int64(5))
			require.Equal(t, ranges[0].Until,
				ranges[0].ScheduledAt.Add(time.Duration(ranges[0].Count-1)*interval))
			require.False(t, ranges[0].Until.After(answered))
		}
		f.requireEveryTickOnce(standby, interval)
	})
}

func TestWithoutControlEveryOrderIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, seldom)
	r, _ := f.startLeader()
	r.awaitJob()
	for _, path := range []string{"/jobs/tick/run", "/jobs/tick/pause", "/jobs/tick/resume",
		"/pause", "/resume", "/jobs/nonsense/run"} {
		a := r.order(path, "Content-Type", "application/x-www-form-urlencoded")
		require.Equal(t, http.StatusForbidden, a.status, path)
		shape{"error": `DEMOAPP_CONTROL=true`}.check(t, a.body)
	}
	for _, path := range []string{"/orders/handover", "/orders/run", "/orders/pause",
		"/orders/resume"} {
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
	f := newFleet(t, "CONTROL=true", seldom)
	r, _ := f.startLeader()
	r.awaitJob()
	paths := []string{"/jobs/tick/run", "/jobs/tick/pause", "/jobs/tick/resume", "/pause?all=true",
		"/resume?all=true"}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site",
			"Origin", r.url},
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
	for i, header := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
		{"Origin", r.url}, {}} {
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
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "CONTROL=true", seldom)
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
			{"/pause", 400, "all=true"},
			{"/resume?all=yes", 400, "all=true"},
			{"/jobs/tick/pause?all=true", 400, "give one of them"},
			{"/jobs/tick/resume?all=true", 400, "give one of them"},
			{"/jobs/tick/run?all=true", 400, "give one of them"},
			{"/pause?all=true&reason=" + fmt.Sprintf("%01001d", 0), 400,
				"1001 bytes, 1000 are allowed"},
			{"/pause?reason=%zz", 400, "form"},
		} {
			a := r.order(tc.path)
			require.Equal(t, tc.status, a.status, "%.50s: %s", tc.path, a.body)
			shape{"error": quoted(tc.why)}.check(t, a.body)
		}
		require.Empty(t, r.requested())
		require.Nil(t, r.job("tick").Paused)
	})
}

func TestAnOrderThatTheDatabaseDoesNotTakeIsRefusedInTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "CONTROL=true", seldom)
	r, _ := f.startLeader()
	r.awaitJob()
	done := f.holdWriteLock()
	require.Equal(t, http.StatusOK, r.get("/readyz").status, "the database can be read")
	for _, path := range []string{"/jobs/tick/run", "/jobs/tick/pause", "/pause?all=true"} {
		begun := time.Now()
		a := r.order(path)
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		shape{"error": "^\"the database (cannot be read|did not answer in time)\"$"}.check(t,
			a.body)
		require.Less(t, time.Since(begun), soon(orderTimeout+5*time.Second))
	}
	done()
	require.Nil(t, r.job("tick").Paused)
	require.Empty(t, r.requested())
}
