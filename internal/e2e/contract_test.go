//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

const stampPattern = `^"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"$`

// A shape is what a JSON object must look like: all its keys, and a pattern
// for each value as it was written.
type shape map[string]string

const (
	anyNumber  = `^\d+(\.\d+)?$`
	anyInteger = `^[1-9]\d*$`
	anyText    = `^".*"$`
	noText     = `^""$`
	null       = `^null$`
)

func (s shape) check(t *testing.T, object []byte) {
	t.Helper()
	var values map[string]json.RawMessage
	decode(t, object, &values)
	keys := make([]string, 0, len(s))
	for k := range s {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	require.Equal(t, keys, objectKeys(t, object))
	for k, pattern := range s {
		require.Regexp(t, pattern, string(values[k]), "%s in %s", k, object)
	}
}

// with returns a copy in which some patterns are others, "" for keys that are
// not there.
func (s shape) with(other shape) shape {
	c := shape{}
	for _, m := range []shape{s, other} {
		for k, v := range m {
			c[k] = v
			if v == "" {
				delete(c, k)
			}
		}
	}
	return c
}

// appPattern is the path of the main package; in these tests it is their own.
const appPattern = `^"example.com/schedlock/internal/e2e.test"$`

func TestLockAnswersAsItsContractSays(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		// Heartbeats and ticks are too seldom to notice what the test does to the row.
		f := newFleet(t, "LOCK_TTL=1h", "LOCK_HEARTBEAT=10m", seldom)
		leader, term := f.startLeader()
		standby := f.start()
		awaitOneLeader(t, []*replica{leader, standby}, 0) // the standby has looked
		lockShape := shape{
			"pid": fmt.Sprintf("^%d$", leader.pid()), "hostname": anyText,
			"created_at": stampPattern, "heartbeat_at": stampPattern,
			"age_seconds": anyNumber, "heartbeat_age_seconds": anyNumber, "ttl_seconds": "^3600$",
			"heartbeat_seconds": "^600$", "term": fmt.Sprintf("^%d$", term),
			"state": `^"leading"$`, "app": appPattern,
		}
		leads := shape{"leader": "^true$", "state": `^"leading"$`,
			"term": fmt.Sprintf("^%d$", term), "reason": `^"holds the lock`}
		waits := shape{"leader": "^false$", "state": `^"standby"$`, "term": "^0$",
			"reason": fmt.Sprintf(`^"pid %d on host .* leads`, leader.pid())}
		about := shape{"self": `^\{`, "app": appPattern, "version": `^"[^"]+"$`}
		free := about.with(shape{"held": "^false$", "lock": null})
		held := about.with(shape{"held": "^true$", "lock": `^\{`})

		for _, tc := range []struct {
			r    *replica
			self shape
		}{{leader, leads}, {standby, waits}} {
			a := tc.r.get("/lock")
			require.Equal(t, http.StatusOK, a.status)
			require.Equal(t, "application/json; charset=utf-8", a.header.Get("Content-Type"))
			held.check(t, a.body)
			var parts struct{ Lock, Self json.RawMessage }
			decode(t, a.body, &parts)
			lockShape.check(t, parts.Lock)
			tc.self.check(t, parts.Self)
		}

		leader.awaitImport() // its end would find that the row is gone
		// A standby is as ready as the leader.
		for _, path := range []string{"/", "/healthz", "/readyz", "/terms", "/runs", "/jobs",
			"/metrics"} {
			eventually(t, path+" answers", func() error { // as soon as the database does
				if status := standby.get(path).status; status != http.StatusOK {
					return fmt.Errorf("status %d", status)
				}
				return nil
			})
		}
		require.Zero(t, standby.metric("schedlock_leader"))

		standby.stop() // it would take the free lock as soon as it looks again
		f.sql(`DELETE FROM scheduler_lock`)
		a := leader.get("/lock")
		require.Equal(t, http.StatusOK, a.status)
		free.check(t, a.body)
		require.True(t, leader.lock().Self.Leader, "it has not noticed yet")
		require.True(t, leader.get("/").contains(">nobody</strong>"))
	})
}

func TestTermsAndRunsAnswerAsTheirContractSays(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "TICK=200ms")
		first, firstTerm := f.startLeader()
		first.awaitStatus("done", 0)
		first.awaitImport()
		first.stop()
		// Some ticks are missed; then a run takes so long that more are skipped.
		time.Sleep(time.Second) // five ticks by the clock: nobody is there to be asked
		r, term := f.startLeader("JOB_DURATION=1h")
		r.awaitRun("a tick was skipped because of the run before", func(r runRow) bool {
			return r.Term == term && r.Status == "skipped" && r.Error == "overlap"
		})

		t.Run("terms", func(t *testing.T) {
			a := r.read("/terms")
			var list []json.RawMessage
			decode(t, a.body, &list)
			require.Len(t, list, 2)
			open := shape{
				"term": fmt.Sprintf("^%d$", term), "pid": fmt.Sprintf("^%d$",
					r.pid()), "hostname": anyText,
				"acquired_at": stampPattern, "ended_at": null, "end_reason": null,
			}
			open.check(t, list[0])
			open.with(shape{
				"term": fmt.Sprintf("^%d$", firstTerm), "pid": fmt.Sprintf("^%d$", first.pid()),
				"ended_at": stampPattern, "end_reason": `^"released"$`,
			}).check(t, list[1])
			require.Len(t, fetch[[]termRow](r, "/terms?limit=1"), 1)
		})

		t.Run("runs", func(t *testing.T) {
			a := r.read("/runs?job=tick")
			var list []json.RawMessage
			decode(t, a.body, &list)
			skipped := shape{
				"job": `^"tick"$`, "scheduled_at": stampPattern, "started_at": null,
				"finished_at": null, "status": `^"skipped"$`,
				"term": anyInteger, "pid": anyInteger, "hostname": anyText, "attempt": "^0$",
				"error": `^"(missed|overlap)"$`,
			}
			shapes := map[string]shape{
				"skipped": skipped,
				"range":   skipped.with(shape{"until": stampPattern, "count": anyInteger}),
				"in_progress": skipped.with(shape{"started_at": stampPattern,
					"status": `^"in_progress"$`, "attempt": "^1$", "error": noText}),
				"done": skipped.with(shape{"started_at": stampPattern,
					"finished_at": stampPattern, "status": `^"done"$`, "attempt": "^1$",
					"error": noText}),
			}
			found := map[string]int{}
			before := time.Now().Add(time.Hour)
			for _, object := range list {
				var run runRow
				decode(t, object, &run)
				kind := run.Status
				if run.Count > 0 {
					kind = "range"
					require.Equal(t, run.Until,
						run.ScheduledAt.Add(time.Duration(run.Count-1)*200*time.Millisecond),
						"%+v", run)
				}
				require.Contains(t, shapes, kind, "%s", object)
				shapes[kind].check(t, object)
				found[kind]++
				require.True(t, run.ScheduledAt.Before(before), "newest first, and each once: %s",
					a.body)
				before = run.ScheduledAt
			}
			for _, kind := range []string{"range", "in_progress", "done"} {
				require.NotZero(t, found[kind], "no %s in %s", kind, a.body)
			}
			require.Equal(t, 1, found["in_progress"])

			all := fetch[[]runRow](r, "/runs?limit=1000") // a busy machine skips many
			for _, job := range []string{"tick", "import", "expire"} {
				if job != "expire" { // it may not be due yet
					require.True(t, slices.ContainsFunc(all, func(r runRow) bool {
						return r.Job == job
					}), "%s in %+v", job, all)
				}
				for _, run := range r.runs(job) {
					require.Equal(t, job, run.Job)
				}
			}
			require.JSONEq(t, `[]`, string(r.read("/runs?job=nonsense").body))
		})
	})
}

func TestLimitIs100ByDefaultAndAtMost100000(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t)
		r, _ := f.startLeader()
		rows := sized(101, 101, 100_001) // which takes its time
		insert := `INSERT INTO scheduler_runs
			(job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt)
			SELECT 'old', timestamptz '2001-01-01Z' + i * interval '1 s', '2001-01-01Z',
				'2001-01-01Z', 'done', 1, 1, 'a', 1 FROM generate_series(1, %d) AS i`
		if f.server == "" {
			insert = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			INSERT INTO scheduler_runs
			(job, scheduled_at, started_at, finished_at, status, term, pid, hostname, attempt)
			SELECT 'old', strftime('%%Y-%%m-%%dT%%H:%%M:%%f000Z', '2001-01-01', i || ' seconds'),
				'2001-01-01T00:00:00.000000Z', '2001-01-01T00:00:00.000000Z', 'done', 1, 1, 'a', 1
			FROM n`
		}
		f.sql(fmt.Sprintf(insert, rows))
		for limit, want := range map[string]int{
			"": 100, "1": 1, "101": 101, "100001": 100_000,
		} {
			a := r.read("/runs?job=old&limit=" + limit)
			require.Equal(t, min(want, rows), bytes.Count(a.body, []byte(`"job":"old"`)),
				"limit=%s", limit)
		}
		for _, limit := range []string{"0", "-1", "x", "1.5", "1e3", "%20",
			"-99999999999999999999"} {
			for _, path := range []string{"/runs", "/terms"} {
				a := r.get(path + "?limit=" + limit)
				require.Equal(t, http.StatusBadRequest, a.status, "limit=%s", limit)
				shape{"error": `^"limit .*is not a whole number above 0"$`}.check(t, a.body)
			}
		}
		for query, want := range map[string]string{
			"limit=1;x": "semicolon", "limit=1%zz": "URL escape", "limt=1": "not known: use limit",
		} {
			for _, path := range []string{"/runs", "/terms"} {
				a := r.get(path + "?" + query)
				require.Equal(t, http.StatusBadRequest, a.status, query)
				shape{"error": want}.check(t, a.body)
			}
		}
	})
}

func TestEveryPathAnswersWithSafeHeadersAndOnlyToGET(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t)
		r, term := f.startLeader()
		safe := func(a answer) {
			t.Helper()
			require.Contains(t, a.header.Get("Content-Security-Policy"), "default-src 'none'")
			require.Contains(t, a.header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
			require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
			require.NotContains(t, a.header.Get("Content-Security-Policy"), "unsafe")
			require.Contains(t, []string{"no-referrer", "same-origin"},
				a.header.Get("Referrer-Policy"))
		}
		const object = "application/json; charset=utf-8"
		for path, contentType := range map[string]string{
			"/": "text/html; charset=utf-8", "/style.css": "text/css; charset=utf-8",
			"/page.js": "text/javascript; charset=utf-8", "/icon.svg": "image/svg+xml",
			"/healthz": "text/plain; charset=utf-8", "/livez": "text/plain; charset=utf-8",
			"/readyz": "text/plain; charset=utf-8",
			"/lock":   object, "/terms": object, "/runs": object, "/jobs": object,
			"/metrics": "text/plain; version=0.0.4; charset=utf-8",
		} {
			a := r.read(path)
			require.Contains(t, a.header.Get("Content-Type"), contentType, path)
			safe(a)
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete,
				http.MethodPatch, http.MethodOptions} {
				a, err := r.try(method, path)
				require.NoError(t, err)
				require.Equal(t, http.StatusMethodNotAllowed, a.status, "%s %s", method, path)
				safe(a)
			}
		}
		for _, path := range []string{"/nonsense", "/lock/", "/index.html"} {
			a := r.get(path)
			require.Equal(t, http.StatusNotFound, a.status, path)
			safe(a)
		}

		// What observers count comes later.
		eventually(t, "the metrics say that it leads", func() error {
			got := []float64{r.metric("schedlock_leader"), r.metric("schedlock_term"),
				r.metric("schedlock_elections_total", "previous", "none"),
				r.metric("schedlock_state", "state", "leading")}
			if !slices.Equal(got, []float64{1, float64(term), 1, 1}) {
				return fmt.Errorf("leader, term, elections, state: %v", got)
			}
			return nil
		})
		require.Contains(t, r.metrics(), "go_goroutines")
		eventually(t, "the ledger is in the metrics", func() error {
			if r.metric("schedlock_job_last_success_timestamp_seconds", "job_name", "import") == 0 {
				return errors.New("no success of the first import")
			}
			return nil
		})
		require.Contains(t, r.metrics(), "schedlock_job_overdue_seconds")
		problems, err := promlint.New(bytes.NewReader(r.read("/metrics").body)).Lint()
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}

func TestFlagOverridesItsVariable(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r := f.prepareWith([]string{"--lock-ttl=90s", "--database-url", "file:other.db", "--log=json"},
		"LOCK_TTL=70s", "LOCK_HEARTBEAT=7s", "WORKERS=4", "MODE=standby", "LOG=text")
	r.begin()
	r.awaitServing()
	r.awaitLeading()
	lock := r.lock().Lock
	require.InDelta(t, 90, lock.TTLSeconds, 0)
	require.InDelta(t, 7, lock.HeartbeatSeconds, 0)
	require.Contains(t, f.files(), "other.db")
	require.NotContains(t, f.files(), "bans.db")
	r.stop()
	for line := range strings.Lines(r.log.String()) {
		var said map[string]any
		decode(t, []byte(line), &said)
		require.Subset(t, slices.Collect(maps.Keys(said)), []string{"time", "msg"}, line)
		require.Contains(t, []any{"INFO", "WARN"}, said["level"], line)
	}
}

func TestDatabaseMayBeAPlainPathWithAnyCharacters(t *testing.T) {
	t.Parallel()
	for url, name := range map[string]string{
		"100% of #1? it's a=b&c.db": "100% of #1? it's a=b&c.db",
		"./host=a b":                "host=a b", // without the dot it is an address
	} {
		f := newFleet(t)
		r, _ := f.startLeader("DATABASE_URL=" + url)
		r.awaitBans()
		r.stop()
		require.Empty(t, r.errorLines())
		require.Empty(t, r.log.with("unfenced"), "the app and the lock share the file")
		require.Contains(t, f.files(), name)
		require.Subset(t, leftFiles(name), f.files())
	}
}
