package statuspage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"example.com/schedlock/internal/forms"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const maxForm = 64 << 10

// orderError is one that the page may show as it is.
type orderError struct {
	status int
	text   string
}

func (e *orderError) Error() string { return e.text }

func refusef(status int, format string, args ...any) error {
	return &orderError{status, fmt.Sprintf(format, args...)}
}

// order asks whether it is meant (GET). It refuses what may not be asked, carries
// the rest out, and leads back to the page (POST).
func (h *Handler) order(kind string, do func(context.Context, *http.Request,
	ledger.Action) error) http.HandlerFunc {
	if !h.cfg.Control {
		return func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, h.cfg.ControlHint, http.StatusForbidden)
		}
	}
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "orders are taken from this page only, not from those of another site; "+
			"a proxy in between must pass on the header Host", http.StatusForbidden)
	}))
	return origins.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.mayOrder(r) {
			http.Error(w, "you may look at this page, but you may not give orders: "+
				"ask an operator of this app", http.StatusForbidden)
			return
		}
		if h.app.Lock() == nil {
			answerLater(w, errStarting.Error())
			return
		}
		if r.Method != http.MethodPost {
			if _, err := forms.Query(r); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			h.ask(w, r, kind, http.StatusOK, "")
			return
		}
		o, err := h.readOrder(w, r)
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
			defer cancel()
			err = do(ctx, r, o)
		}
		if err != nil {
			status, text := h.failure(r, err)
			if wantsPage(r) {
				h.ask(w, r, kind, status, text)
			} else {
				http.Error(w, text, status)
			}
			return
		}
		remember(w, r)
		if r.Header.Get("Prefer") == "return=minimal" { // page.js: a login would lead elsewhere
			w.WriteHeader(http.StatusNoContent)
			return
		}
		// Relative, as the app may have mounted this anywhere. The span was
		// chosen on the page that sent the form.
		back := "../"
		if span, err := parseSpan(r.PostFormValue("span")); err == nil && span != "" {
			back += "?" + url.Values{"span": {span}}.Encode()
		}
		if o.Job != "" {
			back += "#" + jobID(o.Job)
		}
		w.Header().Set("Location", back)
		w.WriteHeader(http.StatusSeeOther)
	})).ServeHTTP
}

// mayOrder reports whether orders are offered to who asks, and taken.
func (h *Handler) mayOrder(r *http.Request) bool {
	return h.cfg.Control && (h.cfg.MayOrder == nil || h.cfg.MayOrder(r))
}

// byCookie has the name of who has given an order. The browser sends it with orders only, as they
// are a folder of their own.
const byCookie = "schedlock-by"

func remember(w http.ResponseWriter, r *http.Request) {
	if by := strings.TrimSpace(r.PostFormValue("by")); by != "" {
		http.SetCookie(w, &http.Cookie{Name: byCookie, Value: url.QueryEscape(by),
			MaxAge: int((365 * day).Seconds()), Secure: r.TLS != nil, HttpOnly: true,
			SameSite: http.SameSiteStrictMode})
	}
}

// remembered is the name that remember has kept.
func remembered(r *http.Request) string {
	c, err := r.Cookie(byCookie)
	if err != nil {
		return ""
	}
	by, err := url.QueryUnescape(c.Value)
	if err != nil {
		return ""
	}
	return by
}

// readOrder reads the form. Who does not say who they are, is the page of this
// replica: an address says little behind a proxy.
func (h *Handler) readOrder(w http.ResponseWriter, r *http.Request) (o ledger.Action, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return o, refusef(http.StatusRequestEntityTooLarge, "the form has more than %d bytes",
				tooLarge.Limit)
		}
		return o, refusef(http.StatusBadRequest, "the form cannot be read")
	}
	owner := h.app.Lock().Owner()
	o = ledger.Action{
		Job: r.PostFormValue("job"),
		By: cmp.Or(strings.TrimSpace(r.PostFormValue("by")),
			fmt.Sprintf("web page of %s pid %d", owner.Hostname, owner.PID)),
		Reason: strings.TrimSpace(r.PostFormValue("reason")),
	}
	if err := o.Validate(); err != nil {
		return o, refusef(http.StatusBadRequest, "%s", err)
	}
	return o, nil
}

// failure is what to answer to an order that was not carried out.
func (h *Handler) failure(r *http.Request, err error) (status int, text string) {
	var refused *orderError
	var paused *ledger.PausedError
	var backlog *ledger.BacklogError
	switch {
	case errors.As(err, &refused):
		return refused.status, refused.text
	case errors.Is(err, ledger.ErrNoJob):
		return http.StatusNotFound, fmt.Sprintf("no leader has had a job %.200q yet: "+
			"choose one that the page lists", r.PostFormValue("job"))
	case errors.As(err, &paused):
		return http.StatusConflict, paused.Error() + "; resume it first"
	case errors.As(err, &backlog):
		return http.StatusTooManyRequests, backlog.Error()
	case errors.Is(err, driver.ErrConflict):
		return http.StatusConflict,
			"that term does not hold the lock any more: look who leads now"
	case errors.Is(err, driver.ErrNotRevocable):
		return http.StatusNotImplemented, driver.ErrNotRevocable.Error()
	}
	h.cfg.Log.Warn("order not carried out", "err", err)
	return http.StatusServiceUnavailable, h.cfg.PublicError(err) +
		"; look at the page whether the order was carried out, then try again"
}

func noTerm(text string) string { return fmt.Sprintf("term %.40q is not a number above 0", text) }

// handOver tells the holder of the term that the page has shown to leave;
// another one is left alone.
func (h *Handler) handOver(ctx context.Context, r *http.Request, o ledger.Action) error {
	text := r.PostFormValue("term")
	term, err := strconv.ParseInt(text, 10, 64)
	if err != nil || term <= 0 {
		return refusef(http.StatusBadRequest, "%s", noTerm(text))
	}
	if h.jobs {
		_, err = h.app.Runner().HandOver(ctx, term, o.By, o.Reason)
	} else {
		_, err = schedlock.Revoke(ctx, h.app.Lock().Store(), term, o.By, o.Reason)
	}
	if err == nil {
		h.cfg.Log.Info("leader told to leave", "term", term, "by", o.By, "reason", o.Reason)
	}
	return err
}

func (h *Handler) run(ctx context.Context, _ *http.Request, o ledger.Action) error {
	if o.Job == "" {
		return refusef(http.StatusBadRequest, "it does not say which job")
	}
	request, err := h.app.Runner().Trigger(ctx, o.Job, o.By, o.Reason)
	if err == nil {
		h.cfg.Log.Info("run requested", "job", o.Job, "by", o.By, "reason", o.Reason, "tick",
			request.At)
	}
	return err
}

// whichJob refuses an order for every job that does not say so: a form may have
// lost its job.
func whichJob(r *http.Request, o ledger.Action) error {
	switch all := r.PostFormValue("all"); {
	case all != "" && all != "true":
		return refusef(http.StatusBadRequest, "all %.40q is not true", all)
	case o.Job == "" && all == "":
		return refusef(http.StatusBadRequest,
			"it does not say which job: give its name, or all=true for every job")
	case o.Job != "" && all != "":
		return refusef(http.StatusBadRequest,
			"it names job %.200q and all=true: give one of them", o.Job)
	}
	return nil
}

func (h *Handler) pause(ctx context.Context, r *http.Request, o ledger.Action) error {
	if err := whichJob(r, o); err != nil {
		return err
	}
	var err error
	if o.Job == "" {
		_, err = h.app.Runner().PauseAll(ctx, o.By, o.Reason)
	} else {
		_, err = h.app.Runner().Pause(ctx, o.Job, o.By, o.Reason)
	}
	if err == nil {
		h.cfg.Log.Info("paused", "job", o.Job, "by", o.By, "reason", o.Reason)
	}
	return err
}

// resume is content if there was no pause, but not if there is no such job.
func (h *Handler) resume(ctx context.Context, r *http.Request, o ledger.Action) error {
	if err := whichJob(r, o); err != nil {
		return err
	}
	if o.Job == "" {
		resumed, err := h.app.Runner().ResumeAll(ctx, o.By)
		if resumed {
			h.cfg.Log.Info("resumed", "job", "", "by", o.By)
		}
		return err
	}
	resumed, err := h.app.Runner().Resume(ctx, o.Job, o.By)
	if err != nil {
		return err
	}
	if resumed {
		h.cfg.Log.Info("resumed", "job", o.Job, "by", o.By)
		return nil
	}
	jobs, err := h.app.Runner().Jobs(ctx)
	known := func(j tasks.JobInfo) bool { return j.Name == o.Job }
	if err != nil || slices.ContainsFunc(jobs, known) {
		return err
	}
	return ledger.ErrNoJob
}
