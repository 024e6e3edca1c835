// Package statuspage is the live page that shows an operator who leads, since
// when, and why this replica does not; what happened before; and how each job
// is doing. An app mounts the Handler under a path of its own, as it would
// mount net/http/pprof:
//
//	page, err := statuspage.New(statuspage.Config{App: app}) // a startup.App
//	mux.Handle("/scheduler/", page)
//
// It shows hostnames, names of jobs and what their errors say to whoever can
// reach it, so put it where the app's own operators' pages are, behind the same
// login. It changes nothing unless [Config].Control is set. [Config].MayOrder tells
// those who may give orders from those who may only look. It answers only the hosts
// of [Config].Hosts.
//
// The page works without JavaScript, and then loads itself again every ten
// seconds. With it, one stream of server-sent events keeps it up to date. All
// open pages of a replica share one reader of the database, which runs only
// while there is one. A middleware must let [net/http.ResponseController] flush the stream.
package statuspage

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/hosts"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/tasks"
)

// Config says what the page shows. Only App is required, or Lock.
type Config struct {
	Title string // default "schedlock"

	// App has this replica's lock and its runner: a *startup.App. It need not
	// have started: until it has its lock the page says that this replica is
	// starting, with status 503.
	App App

	// Lock and Runner are for an app without package startup.
	Lock   *schedlock.Lock // this replica's
	Runner *tasks.Runner   // on the same database; nil: no jobs and no runs

	// Control lets whoever can reach the page tell the leader to leave, run
	// jobs, pause and resume them. Without it nothing changes anything, and an
	// order is answered with ControlHint.
	Control     bool
	ControlHint string // how to opt in, in the words of the app; default names Control

	// MayOrder reports, with Control, whether who sends a request may give orders.
	// To others the page offers none, and an order is refused with 403. It is asked
	// for each page, stream and order, concurrently. Default: everybody may.
	MayOrder func(*http.Request) bool

	// Hosts are the names under which the app is reached, besides localhost and
	// the address that a connection has come to; ports do not count. A request
	// for another host is refused with 421: a site that points its name at the
	// app would read the page and give its orders from the browser of a visitor.
	// "*" is any, for an app that checks the header Host itself, or is behind a
	// proxy that does.
	Hosts []string

	// Sections are the app's own, below the others.
	Sections []Section

	Log *slog.Logger // default slog.Default()

	// PublicError is what a stranger may read of an error of the database: no
	// path, no DSN. The log has the rest. It is also asked of an error that
	// wraps schedlock.ErrLost or ErrReleased. Default: that it cannot be read,
	// or did not answer in time; that the lock was lost, or released.
	PublicError func(error) string
}

// App is what the page needs of a startup.App. Lock may be nil at first; once it
// is not, neither is Runner. Both may be called at any time, concurrently.
type App interface {
	Lock() *schedlock.Lock
	Runner() *tasks.Runner
}

// started is an App that has started.
type started struct {
	lock   *schedlock.Lock
	runner *tasks.Runner
}

func (s started) Lock() *schedlock.Lock { return s.lock }
func (s started) Runner() *tasks.Runner { return s.runner }

// A Section is a part of the page that the app fills.
type Section struct {
	Title string

	// Render returns what stands below the title. It is called for each page,
	// and about once a second while pages are open: one call of it at a time, but
	// together with those of other sections. If it does not return by the end of
	// its context, the page is shown without it, and it is not called again before
	// it has returned. Its HTML must do without inline styles and scripts: the
	// Content-Security-Policy forbids them. Of an error the page shows what
	// PublicError says.
	Render func(ctx context.Context) (template.HTML, error)
}

const (
	readTimeout  = 3 * time.Second // of one look at the database
	orderTimeout = 5 * time.Second // of the database's part in an order
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed style.css
	styleCSS []byte
	//go:embed page.js
	pageJS []byte
)

// A Handler serves the page and what belongs to it. It works under any path
// that ends in a slash, with http.StripPrefix or without. Safe for concurrent
// use.
type Handler struct {
	cfg      Config
	app      App
	jobs     bool // it shows them
	live     live
	shared   shared
	tools    tools
	sections []*section
	hosts    hosts.List
	outage   bounded.Outage // of the database, as the log tells of it
	routes   map[string]route
}

// route is what one path below the mount answers to.
type route struct {
	methods string // as in the header Allow
	serve   http.HandlerFunc
}

// New makes a Handler. It starts nothing and touches no database. The error
// names everything that is wrong with cfg.
func New(cfg Config) (*Handler, error) {
	var errs []error
	switch {
	case cfg.App == nil && cfg.Lock == nil:
		errs = append(errs, errors.New("neither App nor Lock is set"))
	case cfg.App != nil && (cfg.Lock != nil || cfg.Runner != nil):
		errs = append(errs, errors.New("App is set, and Lock or Runner too: App has both"))
	}
	for i, s := range cfg.Sections {
		if strings.TrimSpace(s.Title) == "" {
			errs = append(errs, fmt.Errorf("section %d has no title", i))
		}
		if s.Render == nil {
			errs = append(errs, fmt.Errorf("section %d (%.40q) has no Render", i, s.Title))
		}
	}
	allowed, err := hosts.New(cfg.Hosts...)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("status page: %w", err)
	}
	cfg.Title = cmp.Or(strings.TrimSpace(cfg.Title), "schedlock")
	cfg.ControlHint = cmp.Or(cfg.ControlHint,
		"this page only shows: the app has not opted in to its buttons "+
			"(Control, in the Config of package statuspage)")
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.PublicError == nil {
		cfg.PublicError = publicError
	}
	h := &Handler{cfg: cfg, hosts: allowed, app: cfg.App, jobs: cfg.App != nil || cfg.Runner != nil}
	if h.app == nil {
		h.app = started{cfg.Lock, cfg.Runner}
	}
	_ = h.app.Lock() // if it is a nil pointer it panics here, not at each request
	for _, s := range cfg.Sections {
		h.sections = append(h.sections, &section{Section: s, turn: bounded.NewTurn()})
	}
	h.live.handler, h.live.every, h.live.silence = h, pollInterval, keepAlive
	const read, order = "GET, HEAD", "GET, HEAD, POST"
	h.routes = map[string]route{
		"":                {read, h.servePage},
		"style.css":       {read, serveFile("text/css; charset=utf-8", styleCSS)},
		"page.js":         {read, serveFile("text/javascript; charset=utf-8", pageJS)},
		"icon.svg":        {read, serveIcon},
		"events":          {"GET", h.serveEvents},
		"orders/handover": {order, h.order("handover", h.handOver)},
	}
	if h.jobs {
		h.routes[runsPath] = route{read, h.serveRuns}
		h.routes["orders/run"] = route{order, h.order("run", h.run)}
		h.routes["orders/pause"] = route{order, h.order("pause", h.pause)}
		h.routes["orders/resume"] = route{order, h.order("resume", h.resume)}
	}
	return h, nil
}

func publicError(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the database did not answer in time"
	case errors.Is(err, schedlock.ErrLost):
		return "the lock was lost"
	case errors.Is(err, schedlock.ErrReleased):
		return "the lock was released"
	case errors.Is(err, driver.ErrWarning):
		return "an operator should look at the log"
	}
	return "the database cannot be read"
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	forms := "'none'"
	if h.cfg.Control {
		forms = "'self'"
	}
	header := w.Header()
	header.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
			"img-src 'self'; base-uri 'none'; form-action "+forms+"; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	// Under no-referrer a browser says "Origin: null" when it sends the page's
	// own forms.
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")

	route, found := h.routes[below(r)]
	switch {
	case !h.hosts.Allows(r):
		hosts.Refuse(w, r, "the app can add it (Hosts, in the Config of package statuspage)")
	case !found:
		http.Error(w, "there is no such page here", http.StatusNotFound)
	case !slices.Contains(strings.Split(route.methods, ", "), r.Method):
		header.Set("Allow", route.methods)
		http.Error(w, "use "+route.methods, http.StatusMethodNotAllowed)
	default:
		route.serve(w, r)
	}
}

// below is the part of the path that follows the mount: what is left when the
// pattern of the ServeMux is taken away, or when http.StripPrefix has taken
// away everything but the slash.
func below(r *http.Request) string {
	if i := strings.IndexByte(r.Pattern, '/'); i >= 0 {
		if rest, found := strings.CutPrefix(r.URL.Path, r.Pattern[i:]); found &&
			strings.HasSuffix(r.Pattern, "/") {
			return rest
		}
	}
	return strings.TrimPrefix(r.URL.Path, "/")
}

func (h *Handler) servePage(w http.ResponseWriter, r *http.Request) {
	span, err := spanOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	snap := h.readShared(r.Context())
	if snap == nil {
		return
	}
	status := http.StatusOK
	if snap.err != nil {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	}
	h.answer(w, r, status, "page", newUpdate(h, snap, nil).page(span, h.mayOrder(r)), snap.now)
}

// answer sends a whole page.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, status int, name string,
	data any, now time.Time) {
	var body strings.Builder
	if err := pageTemplate.ExecuteTemplate(&body, name, data); err != nil {
		h.cfg.Log.Error("status page: template", "err", err)
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	to, _, end := compressed(w, r)
	w.WriteHeader(status)
	_, _ = io.WriteString(to, fillAges(body.String(), now))
	_ = end()
}

// answerLater refuses what needs the database while that cannot be read.
func answerLater(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// serveFile answers with what is embedded. Its tag changes with its content,
// so that a new version of the app is seen at once.
func serveFile(contentType string, content []byte) http.HandlerFunc {
	sum := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// serveIcon draws what the tab shows: a full disc for the replica that leads,
// a ring for one that stands by, a triangle while something needs to be looked at, a
// broken ring while nobody leads, or nobody knows.
func serveIcon(w http.ResponseWriter, r *http.Request) {
	shape := `<circle cx="16" cy="16" r="11" fill="none" stroke="#6b7683" stroke-width="5"/>`
	switch r.URL.RawQuery {
	case iconLeading:
		shape = `<circle cx="16" cy="16" r="13.5" fill="#17804f"/>`
	case iconWarning:
		shape = `<path d="M16 3 30 29H2Z" fill="#a06800"/>`
	case iconNobody:
		shape = `<circle cx="16" cy="16" r="11" fill="none" stroke="#c22f2f" ` +
			`stroke-width="5" stroke-dasharray="9 5"/>`
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	fmt.Fprint(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">`+shape+`</svg>`)
}

// The states of the icon; they are its query.
const (
	iconLeading = "leading"
	iconStandby = "standby"
	iconNobody  = "nobody"
	iconWarning = "warning"
)
