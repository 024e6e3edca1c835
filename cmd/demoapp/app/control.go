package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/forms"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const (
	orderTimeout = 5 * time.Second // of the database's part in an order
	// for the outcome of a run; well below the server's WriteTimeout
	maxWait = 30 * time.Second
	maxForm = 64 << 10
)

// noControl is the answer to an order that nobody may give.
var noControl = "this replica takes no orders: it was started without --control (" +
	variable("control") + "=true)"

// handleOrders adds what changes something: it works on every replica, leading
// or not, and only if the app was told to (--control).
func (a *app) handleOrders(mux *http.ServeMux) {
	for path, do := range map[string]func(context.Context, http.ResponseWriter, *http.Request,
		ledger.Action){
		"/jobs/{job}/run":    a.orderRun,
		"/jobs/{job}/pause":  a.orderPause,
		"/jobs/{job}/resume": a.orderResume,
		"/pause":             a.orderPause,
		"/resume":            a.orderResume,
	} {
		mux.Handle("POST "+path, a.order(do))
	}
}

// order refuses what may not be asked, and reads who asks, and why.
func (a *app) order(do func(context.Context, http.ResponseWriter, *http.Request,
	ledger.Action)) http.Handler {
	if !a.cfg.control {
		return refuse(noControl)
	}
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(refuse("orders are taken from this app's own pages only, " +
		"not from those of another site; a proxy in between must pass on the header Host"))
	return origins.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o, err := a.readOrder(w, r)
		if err != nil {
			status := http.StatusBadRequest
			if errors.Is(err, ledger.ErrNoJob) {
				status = http.StatusNotFound
			}
			answerError(w, status, err.Error())
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
		defer cancel()
		do(ctx, w, r, o)
	}))
}

func refuse(why string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answerError(w, http.StatusForbidden, why)
	})
}

// readOrder reads the form. Who does not say who they are, is the page of this
// replica: an address says little behind a proxy.
func (a *app) readOrder(w http.ResponseWriter, r *http.Request) (o ledger.Action, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := forms.Parse(r, maxForm); err != nil {
		return o, err
	}
	owner := a.sched.Lock().Owner()
	o = ledger.Action{
		Job: r.PathValue("job"),
		By: cmp.Or(strings.TrimSpace(r.FormValue("by")),
			fmt.Sprintf("web page of %s pid %d", owner.Hostname, owner.PID)),
		Reason: strings.TrimSpace(r.FormValue("reason")),
	}
	switch all := r.FormValue("all"); {
	case o.Job == "" && all != "true":
		return o, errors.New("it is for every job: say so with all=true, " +
			"or name one, as in /jobs/NAME/pause")
	case o.Job != "" && all != "":
		return o, fmt.Errorf("it names job %.200q and all=%.40q: give one of them", o.Job, all)
	}
	return o, o.Validate()
}

// requestJSON is a run that was asked for and has not ended.
type requestJSON struct {
	Job           string    `json:"job"`
	RequestedAt   timestamp `json:"requested_at"` // becomes scheduled_at of the run
	RequestedBy   string    `json:"requested_by"`
	RequestReason string    `json:"request_reason"`
	Run           *runJSON  `json:"run"` // as it was last seen; null: it has not started
}

func (a *app) orderRun(ctx context.Context, w http.ResponseWriter, r *http.Request,
	o ledger.Action) {
	wait, err := parseWait(r.FormValue("wait"))
	if err != nil {
		answerError(w, http.StatusBadRequest, err.Error())
		return
	}
	request, err := a.sched.Runner().Trigger(ctx, o.Job, o.By, o.Reason)
	if err != nil {
		a.answerFailed(w, r, err)
		return
	}
	a.log.Info("run requested", "job", o.Job, "by", o.By, "reason", o.Reason, "tick", request.At)
	answer := requestJSON{Job: request.Job, RequestedAt: timestamp(request.At),
		RequestedBy: request.By, RequestReason: request.Reason}
	if wait > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), wait)
		defer cancel()
		run, err := a.sched.Runner().Await(ctx, request)
		if err == nil {
			writeJSON(w, http.StatusOK, newRunJSON(run))
			return
		}
		if ctx.Err() == nil && !errors.Is(err, schedlock.ErrStopped) { // the request stands anyway
			a.log.Warn("run cannot be awaited", "job", o.Job, "tick", request.At, "err", err)
		}
		if run.ID != 0 {
			answer.Run = new(newRunJSON(run))
		}
	}
	writeJSON(w, http.StatusAccepted, answer)
}

// parseWait: 0 by default; above 30 s it is lowered to that.
func parseWait(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("wait %.40q is not a duration such as 10s", s)
	}
	return min(d, maxWait), nil
}

func (a *app) orderPause(ctx context.Context, w http.ResponseWriter, r *http.Request,
	o ledger.Action) {
	pause, err := a.pause(ctx, o)
	if err != nil {
		a.answerFailed(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Job    string     `json:"job"` // "": every job
		Paused *pauseJSON `json:"paused"`
	}{o.Job, newPauseJSON(&pause)})
}

func (a *app) orderResume(ctx context.Context, w http.ResponseWriter, r *http.Request,
	o ledger.Action) {
	resumed, err := a.resume(ctx, o)
	if err == nil && !resumed && o.Job != "" {
		err = a.known(ctx, o.Job)
	}
	if err != nil {
		a.answerFailed(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Job     string `json:"job"`
		Resumed bool   `json:"resumed"` // false: there was no pause
	}{o.Job, resumed})
}

func (a *app) pause(ctx context.Context, o ledger.Action) (ledger.Pause, error) {
	if o.Job == "" {
		return a.sched.Runner().PauseAll(ctx, o.By, o.Reason)
	}
	return a.sched.Runner().Pause(ctx, o.Job, o.By, o.Reason)
}

func (a *app) resume(ctx context.Context, o ledger.Action) (bool, error) {
	if o.Job == "" {
		return a.sched.Runner().ResumeAll(ctx, o.By)
	}
	return a.sched.Runner().Resume(ctx, o.Job, o.By)
}

// known returns an error unless there is such a job.
func (a *app) known(ctx context.Context, job string) error {
	jobs, err := a.sched.Runner().Jobs(ctx)
	known := func(j tasks.JobInfo) bool { return j.Name == job }
	if err != nil || slices.ContainsFunc(jobs, known) {
		return err
	}
	return ledger.NoJob(job)
}

// answerFailed says why an order was not carried out.
func (a *app) answerFailed(w http.ResponseWriter, r *http.Request, err error) {
	var paused *ledger.PausedError
	var backlog *ledger.BacklogError
	switch {
	case errors.As(err, &backlog):
		answerError(w, http.StatusTooManyRequests, backlog.Error())
	case errors.Is(err, ledger.ErrNoJob):
		answerError(w, http.StatusNotFound, fmt.Sprintf("no leader has had a job %.200q yet",
			r.PathValue("job")))
	case errors.As(err, &paused):
		writeJSON(w, http.StatusConflict, struct {
			errorJSON
			Paused *pauseJSON `json:"paused"`
		}{errorJSON{paused.Error()}, newPauseJSON(&paused.Pause)})
	default:
		a.log.Warn("order not carried out", "path", r.URL.Path, "err", err)
		answerError(w, http.StatusServiceUnavailable, publicError(err))
	}
}

func answerError(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, errorJSON{why})
}
