//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// An answer is what a replica said to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

var client = &http.Client{
	Timeout:       patience, // an order may ask to wait for 30 s
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// try makes a request; header is names and values.
func (r *replica) try(method, path string, header ...string) (a answer, err error) {
	req, err := http.NewRequest(method, r.url+path, nil)
	if err != nil {
		return a, err
	}
	for h := range slices.Chunk(header, 2) {
		req.Header.Set(h[0], h[1])
	}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, body}, err
}

func (r *replica) get(path string) answer {
	r.t.Helper()
	a, err := r.try(http.MethodGet, path)
	require.NoError(r.t, err)
	return a
}

// order is what a person asks with curl.
func (r *replica) order(path string, header ...string) answer {
	r.t.Helper()
	a, err := r.try(http.MethodPost, path, header...)
	require.NoError(r.t, err)
	return a
}

// lockAnswer is GET /lock.
type lockAnswer struct {
	Held bool      `json:"held"`
	Lock *lockRow  `json:"lock"`
	Self selfState `json:"self"`
}

type lockRow struct {
	PID              int       `json:"pid"`
	Hostname         string    `json:"hostname"`
	CreatedAt        time.Time `json:"created_at"`
	HeartbeatAt      time.Time `json:"heartbeat_at"`
	TTLSeconds       float64   `json:"ttl_seconds"`
	HeartbeatSeconds float64   `json:"heartbeat_seconds"`
	Term             int64     `json:"term"`
	State            string    `json:"state"`
}

type selfState struct {
	Leader bool   `json:"leader"`
	State  string `json:"state"`
	Term   int64  `json:"term"`
	Reason string `json:"reason"`
}

// termRow is an element of GET /terms.
type termRow struct {
	Term       int64     `json:"term"`
	PID        int       `json:"pid"`
	AcquiredAt time.Time `json:"acquired_at"`
	EndedAt    time.Time `json:"ended_at"`
	EndReason  string    `json:"end_reason"`
}

// runRow is an element of GET /runs.
type runRow struct {
	Job         string    `json:"job"`
	ScheduledAt time.Time `json:"scheduled_at"`
	StartedAt   time.Time `json:"started_at"`
	FinishedAt  time.Time `json:"finished_at"`
	Status      string    `json:"status"`
	Term        int64     `json:"term"`
	PID         int       `json:"pid"`
	Attempt     int       `json:"attempt"`
	Error       string    `json:"error"`
	Until       time.Time `json:"until"`
	Count       int64     `json:"count"`
	RetryAt     time.Time `json:"retry_at"`

	RequestedBy   string `json:"requested_by"`
	RequestReason string `json:"request_reason"`
}

// jobRow is an element of GET /jobs.
type jobRow struct {
	Job        string    `json:"job"`
	Spec       string    `json:"spec"`
	NextTick   time.Time `json:"next_tick"`
	Paused     *pauseRow `json:"paused"`
	LastDone   time.Time `json:"last_done"`
	LastFailed time.Time `json:"last_failed"`
	LastError  string    `json:"last_error"`
	Streak     int64     `json:"failure_streak"`
	Done       int64     `json:"done"`
	Failed     int64     `json:"failed"`
}

type pauseRow struct {
	Job    string    `json:"job"`
	Since  time.Time `json:"since"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// decode reads JSON.
func decode(t *testing.T, body []byte, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(body, v), "%s", body)
}

// read is get for an answer whose status must be 200. A database that can't be read
// is asked again: the machine may be busy, or a pooler that has died starts anew.
func (r *replica) read(path string) (a answer) {
	r.t.Helper()
	eventually(r.t, "the database answers GET "+path, func() error {
		a = r.get(path)
		if a.status == http.StatusServiceUnavailable {
			return fmt.Errorf("%s", a.body)
		}
		return nil
	})
	require.Equal(r.t, http.StatusOK, a.status, "GET %s: %s", path, a.body)
	return a
}

// fetch decodes what read returns.
func fetch[T any](r *replica, path string) (v T) {
	r.t.Helper()
	a := r.read(path)
	require.NoError(r.t, json.Unmarshal(a.body, &v), "GET %s: %s", path, a.body)
	return v
}

func (r *replica) lock() lockAnswer { r.t.Helper(); return fetch[lockAnswer](r, "/lock") }
func (r *replica) terms() []termRow {
	r.t.Helper()
	return fetch[[]termRow](r, "/terms?limit=1000")
}

// runs are those of a job, newest first.
func (r *replica) runs(job string) []runRow {
	r.t.Helper()
	return fetch[[]runRow](r, "/runs?limit=100000&job="+job)
}

// job is that of GET /jobs; empty if it is not there.
func (r *replica) job(name string) jobRow {
	r.t.Helper()
	for _, j := range fetch[[]jobRow](r, "/jobs") {
		if j.Job == name {
			return j
		}
	}
	return jobRow{}
}

// awaitRun waits for the newest run of the job tick to be as wanted.
func (r *replica) awaitRun(what string, wanted func(runRow) bool) (run runRow) {
	r.t.Helper()
	eventually(r.t, what, func() error {
		runs := r.runs("tick")
		for _, run = range runs {
			if wanted(run) {
				return nil
			}
		}
		return fmt.Errorf("runs: %+v", runs[:min(len(runs), 3)])
	})
	return run
}

// awaitStatus waits for a run of the job tick to have that status, in a term or, with 0, in any.
func (r *replica) awaitStatus(status string, term int64) runRow {
	r.t.Helper()
	return r.awaitRun(fmt.Sprintf("a run of term %d is %s", term, status), func(run runRow) bool {
		return run.Status == status && (term == 0 || run.Term == term)
	})
}

// awaitImport waits until the first import is over.
func (r *replica) awaitImport() {
	r.t.Helper()
	eventually(r.t, "the first import is over", func() error {
		runs := r.runs("import")
		if !slices.ContainsFunc(runs, func(run runRow) bool { return run.Status == "done" }) {
			return fmt.Errorf("runs: %+v", runs)
		}
		return nil
	})
}

// awaitBans waits until the page shows a network that the sample lists ban.
func (r *replica) awaitBans() {
	r.t.Helper()
	eventually(r.t, "the page shows the bans", func() error {
		if page := r.get("/"); !page.contains("192.0.2.0/26") {
			return fmt.Errorf("%s", page.body)
		}
		return nil
	})
}

// awaitLeading waits until the replica leads, and returns its term.
func (r *replica) awaitLeading() int64 {
	r.t.Helper()
	var l lockAnswer
	eventually(r.t, fmt.Sprintf("replica %d leads", r.pid()), func() error {
		if l = r.lock(); l.Self.Leader {
			return nil
		}
		return fmt.Errorf("it says: %+v", l.Self)
	})
	return l.Self.Term
}

// startLeader starts a replica and waits until it leads.
func (f *fleet) startLeader(env ...string) (leader *replica, term int64) {
	f.t.Helper()
	leader = f.start(env...)
	return leader, leader.awaitLeading()
}

// awaitOneLeader waits until one of the replicas leads, in a term above after,
// and the others stand by.
func awaitOneLeader(t *testing.T, replicas []*replica, after int64) (leader *replica, term int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("one of %d replicas leads and the others stand by", len(replicas)),
		func() error {
			leader = nil
			for _, r := range replicas {
				self := r.lock().Self
				switch {
				case self.Leader && leader != nil:
					// asked one after the other: need not be at once
					return fmt.Errorf("%d and %d", leader.pid(), r.pid())
				case self.Leader && self.Term > after:
					leader, term = r, self.Term
				case self.State != "standby":
					return fmt.Errorf("replica %d: %+v", r.pid(), self)
				}
			}
			if leader == nil {
				return errors.New("nobody leads")
			}
			return nil
		})
	return leader, term
}

// metrics are all that GET /metrics tells.
func (r *replica) metrics() map[string]*dto.MetricFamily {
	r.t.Helper()
	a := r.read("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(a.body))
	require.NoError(r.t, err)
	return families
}

// metric returns the value of a metric with these labels, or with none; 0 if it
// is not there.
func (r *replica) metric(name string, label ...string) float64 {
	r.t.Helper()
	for _, m := range r.metrics()[name].GetMetric() {
		var has []string
		for _, l := range m.GetLabel() {
			has = append(has, l.GetName(), l.GetValue())
		}
		if slices.Equal(has, label) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}

// heartbeats is the number of heartbeats that have succeeded.
func (r *replica) heartbeats() int {
	r.t.Helper()
	all := r.metrics()
	sent, failed := all["schedlock_heartbeat_duration_seconds"].GetMetric(),
		all["schedlock_heartbeat_failures_total"].GetMetric()
	require.Len(r.t, sent, 1)
	require.Len(r.t, failed, 1)
	return int(sent[0].GetHistogram().GetSampleCount()) - int(failed[0].GetCounter().GetValue())
}

// failedHeartbeats is the number of those that have not.
func (r *replica) failedHeartbeats() int {
	r.t.Helper()
	return int(r.metric("schedlock_heartbeat_failures_total"))
}

// awaitHeartbeats waits until n more heartbeats have succeeded.
func (r *replica) awaitHeartbeats(n int) {
	r.t.Helper()
	before := r.heartbeats()
	eventually(r.t, fmt.Sprintf("%d more heartbeats have succeeded", n), func() error {
		if now := r.heartbeats(); now < before+n {
			return fmt.Errorf("%d have", now-before)
		}
		return nil
	})
}
