package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/internal/forms"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/sqlite"
)

const (
	defaultLimit = 100
	maxLimit     = 100_000
	readTimeout  = 3 * time.Second // of one look at the database for one request
	readyTimeout = 2 * time.Second // of all that /readyz asks
)

func (a *app) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(a.metrics, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	a.handlePage(mux)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /livez", a.serveLive)
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.HandleFunc("GET /lock", a.serveLock)
	mux.HandleFunc("GET /terms", a.serveTerms)
	mux.HandleFunc("GET /runs", a.serveRuns)
	mux.HandleFunc("GET /jobs", a.serveJobs)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	a.handleOrders(mux)
	return secured(a.cfg.hosts.Handler(mux, hostsHint, "/healthz", "/livez", "/readyz"))
}

// hostsHint says how to be answered.
var hostsHint = "add it to " + variable("hosts") + " (--hosts) if this app has that name"

// secured sets the headers that every answer has; the page sets its own.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy",
			"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// serveLive says whether a restart would mend something: it fails only while
// this process still does a leader's work although its TTL has passed without a
// heartbeat, such as a job that ignores its cancellation. It asks no database,
// and a standby is as alive as the leader.
func (a *app) serveLive(w http.ResponseWriter, _ *http.Request) {
	if err := a.sched.Lock().Healthy(0); err != nil {
		a.log.Warn("not alive", "err", err)
		http.Error(w, "not alive: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// serveReady says whether requests can be served. It never depends on leading:
// a standby is as ready as the leader.
func (a *app) serveReady(w http.ResponseWriter, r *http.Request) {
	if err := a.ready(r.Context()); err != nil {
		a.log.Warn("not ready", "err", err)
		http.Error(w, "not ready: "+publicError(err), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

func (a *app) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if _, err := schedlock.GetLockInfo(ctx, a.sched.Store()); err != nil {
		return err
	}
	return a.database.check(ctx)
}

// publicError is what a stranger may read of an error: no path, no DSN. The
// log has the rest.
func publicError(err error) string {
	var changed *sqlite.FileChangedError
	switch {
	case errors.As(err, &changed) && changed.Beside != "":
		return "a file beside the database is not the one that was opened"
	case errors.As(err, &changed):
		return "the database file is not the one that was opened"
	case errors.As(err, new(*sqlite.LinksError)):
		return "the database file has more than one name"
	case errors.Is(err, context.DeadlineExceeded):
		return "the database did not answer in time"
	case errors.Is(err, schedlock.ErrLost):
		return "the lock was lost"
	case errors.Is(err, schedlock.ErrReleased):
		return "the lock was released"
	}
	return "the database cannot be read"
}

// timestamp is a time as all answers write it: RFC 3339, UTC, six fractional
// digits; the zero time is null.
type timestamp time.Time

// MarshalJSON implements json.Marshaler.
func (t timestamp) MarshalJSON() ([]byte, error) {
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

type lockJSON struct {
	PID                 int          `json:"pid"`
	Hostname            string       `json:"hostname"`
	CreatedAt           timestamp    `json:"created_at"`
	HeartbeatAt         timestamp    `json:"heartbeat_at"`
	AgeSeconds          float64      `json:"age_seconds"`
	HeartbeatAgeSeconds float64      `json:"heartbeat_age_seconds"`
	TTLSeconds          float64      `json:"ttl_seconds"`
	HeartbeatSeconds    float64      `json:"heartbeat_seconds"`
	Term                int64        `json:"term"`
	State               driver.State `json:"state"`
	App                 string       `json:"app"` // of the holder; "": not known
	// who keeps the row of an expired holder locked
	BlockedBy string `json:"blocked_by,omitempty"`
}

type selfJSON struct {
	Leader bool                `json:"leader"`
	State  schedlock.SelfState `json:"state"`
	Term   int64               `json:"term"`
	Reason string              `json:"reason"`
}

func newLockJSON(i *schedlock.LockInfo) *lockJSON {
	if i == nil {
		return nil
	}
	return &lockJSON{
		PID: i.PID, Hostname: i.Hostname,
		CreatedAt: timestamp(i.CreatedAt), HeartbeatAt: timestamp(i.HeartbeatAt),
		AgeSeconds: i.Age.Seconds(), HeartbeatAgeSeconds: i.HeartbeatAge.Seconds(),
		TTLSeconds: i.Timing.TTL.Seconds(), HeartbeatSeconds: i.Timing.HeartbeatInterval.Seconds(),
		Term: i.Term, State: i.State, App: i.App.Name, BlockedBy: i.Blocker,
	}
}

func (a *app) self() selfJSON {
	s := a.sched.Lock().Status()
	return selfJSON{Leader: s.Leader, State: s.State, Term: s.Term,
		Reason: s.PublicReason(publicError)}
}

func (a *app) serveLock(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	info, err := schedlock.GetLockInfo(ctx, a.sched.Store())
	if err != nil {
		a.log.Warn("lock cannot be read", "err", err)
		writeJSON(w, http.StatusServiceUnavailable, struct {
			Error string   `json:"error"`
			Self  selfJSON `json:"self"`
		}{publicError(err), a.self()})
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Held    bool      `json:"held"`
		Lock    *lockJSON `json:"lock"`
		Self    selfJSON  `json:"self"`
		App     string    `json:"app"`     // of this replica
		Version string    `json:"version"` // of its program
	}{info != nil, newLockJSON(info), a.self(), a.sched.Lock().App().Name, build.Version()})
}

type termJSON struct {
	Term       int64     `json:"term"`
	PID        int       `json:"pid"`
	Hostname   string    `json:"hostname"`
	AcquiredAt timestamp `json:"acquired_at"`
	EndedAt    timestamp `json:"ended_at"`
	EndReason  *string   `json:"end_reason"`
}

func newTermJSON(t driver.Term) termJSON {
	j := termJSON{Term: t.Term, PID: t.PID, Hostname: t.Hostname,
		AcquiredAt: timestamp(t.AcquiredAt), EndedAt: timestamp(t.EndedAt)}
	if !t.Open() {
		j.EndReason = new(string(t.EndReason))
	}
	return j
}

func (a *app) serveTerms(w http.ResponseWriter, r *http.Request) {
	serveList(a, w, r, a.sched.Store().Terms, newTermJSON, "limit")
}

type runJSON struct {
	Job         string        `json:"job"`
	ScheduledAt timestamp     `json:"scheduled_at"`
	StartedAt   timestamp     `json:"started_at"`
	FinishedAt  timestamp     `json:"finished_at"`
	Status      ledger.Status `json:"status"`
	Term        int64         `json:"term"`
	PID         int           `json:"pid"`
	Hostname    string        `json:"hostname"`
	Attempt     int           `json:"attempt"`
	Error       string        `json:"error"`
	Until       *timestamp    `json:"until,omitempty"`
	Count       int64         `json:"count,omitempty"`
	RetryAt     *timestamp    `json:"retry_at,omitempty"`

	RequestedBy   string `json:"requested_by,omitempty"`
	RequestReason string `json:"request_reason,omitempty"`
}

func newRunJSON(r ledger.Run) runJSON {
	return runJSON{
		Job: r.Job, ScheduledAt: timestamp(r.ScheduledAt), StartedAt: timestamp(r.StartedAt),
		FinishedAt: timestamp(r.FinishedAt),
		Status:     r.Status, Term: r.Term, PID: r.PID, Hostname: r.Hostname, Attempt: r.Attempt,
		Error: r.Error, Count: r.Count,
		Until: optional(r.Until), RetryAt: optional(r.RetryAt), RequestedBy: r.RequestedBy,
		RequestReason: r.RequestReason,
	}
}

// optional is a time that is left out if it is zero.
func optional(t time.Time) *timestamp {
	if t.IsZero() {
		return nil
	}
	return (*timestamp)(&t)
}

// ledger is the lock's database as package tasks knows it.
func (a *app) ledger() ledger.Store { return a.sched.Store().(ledger.Store) }

func (a *app) serveRuns(w http.ResponseWriter, r *http.Request) {
	job := r.FormValue("job")
	serveList(a, w, r, func(ctx context.Context, limit int) ([]ledger.Run, error) {
		return a.ledger().Runs(ctx, job, limit)
	}, newRunJSON, "limit", "job")
}

// serveList answers with the newest rows, at most ?limit=N of them. known are the parameters of
// the query.
func serveList[T, J any](a *app, w http.ResponseWriter, r *http.Request,
	read func(context.Context, int) ([]T, error), encode func(T) J, known ...string) {
	err := checkQuery(r, known)
	var limit int
	if err == nil {
		limit, err = parseLimit(r.FormValue("limit"))
	}
	if err != nil {
		answerError(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*readTimeout)
	defer cancel()
	rows, err := read(ctx, limit)
	if err != nil {
		a.log.Warn("history cannot be read", "path", r.URL.Path, "err", err)
		answerError(w, http.StatusServiceUnavailable, publicError(err))
		return
	}
	list := make([]J, len(rows))
	for i, row := range rows {
		list[i] = encode(row)
	}
	writeJSON(w, http.StatusOK, list)
}

// checkQuery refuses what would be dropped without a word: the answer would be to another question.
func checkQuery(r *http.Request, known []string) error {
	query, err := forms.Query(r)
	if err != nil {
		return err
	}
	for name := range query {
		if !slices.Contains(known, name) {
			return fmt.Errorf("parameter %.40q is not known: use %s", name,
				strings.Join(known, " or "))
		}
	}
	return nil
}

type errorJSON struct {
	Error string `json:"error"`
}

// parseLimit: 100 by default; above 100,000 it is lowered to that.
func parseLimit(s string) (int, error) {
	if s == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(s)
	if errors.Is(err, strconv.ErrRange) && s[0] != '-' {
		return maxLimit, nil
	}
	if err != nil || n < 1 {
		return 0, fmt.Errorf("limit %.40q is not a whole number above 0", s)
	}
	return min(n, maxLimit), nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}
