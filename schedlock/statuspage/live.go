package statuspage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	pollInterval = 500 * time.Millisecond
	allEvery     = 2 // each so many polls read the jobs too, the others the lock only
	maxStreams   = 64
	keepAlive    = 15 * time.Second
	// of one event: a client that is gone does not hold a stream for longer
	writeTimeout = 10 * time.Second
)

// live is what all streams share: one reader of the database, which runs while
// there is a stream.
type live struct {
	handler *Handler
	every   time.Duration // pollInterval, but in tests
	silence time.Duration // keepAlive, but in tests

	mu      sync.Mutex
	streams map[*stream]struct{}
	servers map[*http.Server]context.Context // each ends when its server begins to stop
	latest  *update                          // nil: the poller has not read anything yet
	stop    context.CancelFunc               // of the poller; nil: there is none
	done    chan struct{}                    // closed when it has returned
}

// stream is one open page. Its channel has a token while there may be news.
type stream struct{ news chan struct{} }

// join returns nil if there are too many already.
func (l *live) join() *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.streams) >= maxStreams {
		return nil
	}
	s := &stream{news: make(chan struct{}, 1)}
	if l.streams == nil {
		l.streams = map[*stream]struct{}{}
	}
	l.streams[s] = struct{}{}
	if l.latest != nil {
		s.news <- struct{}{}
	}
	if l.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l.stop, l.done = cancel, done
		go func() {
			defer close(done)
			l.poll(ctx)
		}()
	}
	return s
}

// leave ends a stream; the last one ends the poller and waits for it.
func (l *live) leave(s *stream) {
	l.mu.Lock()
	delete(l.streams, s)
	var done chan struct{}
	if len(l.streams) == 0 {
		l.stop()
		done = l.done
		l.stop, l.done, l.latest = nil, nil, nil
	}
	l.mu.Unlock()
	if done != nil {
		<-done
	}
}

// serving returns a context that ends when the server of a request begins to shut
// down: it waits for all its requests, and a stream would never end.
func (l *live) serving(r *http.Request) context.Context {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return context.Background()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, known := l.servers[server]
	if !known {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(context.Background())
		server.RegisterOnShutdown(cancel)
		if l.servers == nil {
			l.servers = map[*http.Server]context.Context{}
		}
		l.servers[server] = ctx
	}
	return ctx
}

func (l *live) poll(ctx context.Context) {
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	var before *snapshot // the last that was read without an error
	drawn := &drawings{}
	for n := 0; ; n++ {
		snap := l.handler.read(ctx, before, n%allEvery == 0)
		if ctx.Err() != nil {
			return
		}
		if before = snap; snap.err != nil {
			before = nil
		}
		l.publish(ctx, newUpdate(l.handler, snap, drawn))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (l *live) publish(ctx context.Context, u *update) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil { // the next poller has begun
		return
	}
	l.latest = u
	for s := range l.streams {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

func (l *live) current() *update {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}

// message is one event of the stream.
type message struct {
	Now   int64  `json:"now"` // the database's clock, in Unix milliseconds
	Self  string `json:"self"`
	Title string `json:"title"`
	Icon  string `json:"icon"`
	Beat  *beat  `json:"beat"` // null: there is no bar
	Stale bool   `json:"stale"`
	// those that have changed, by the id of their element
	Parts map[string]string `json:"parts,omitempty"`
}

// serveEvents sends everything once, and then what changes, until the client
// goes or the server stops.
func (h *Handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	span, err := spanOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !canFlush(w) {
		http.Error(w, "a middleware of this app hides http.Flusher, so nothing would arrive here: "+
			"give its ResponseWriter a method Unwrap", http.StatusNotImplemented)
		return
	}
	s := h.live.join()
	if s == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are open already: "+
			"this one must be loaded again by hand", maxStreams), http.StatusServiceUnavailable)
		return
	}
	defer h.live.leave(s)

	control := http.NewResponseController(w)
	to, flush, end := compressed(w, r)
	defer func() { _ = end() }()
	send := func(text string) error {
		if text == "" {
			return nil
		}
		// In the place of the server's WriteTimeout, which is for a whole answer.
		// Where it cannot be set, a write that fails ends the stream all the same.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := io.WriteString(to, text); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
		return control.Flush()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep the events back
	if err := send("retry: 2000\n\n"); err != nil {
		return
	}
	orders, sent, last := h.mayOrder(r), map[string]string{}, ""
	serving := h.live.serving(r)
	alive := time.NewTicker(h.live.silence)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-serving.Done():
			return
		case <-alive.C:
			// The comment is for proxies, the event for the page: without one
			// for long it takes the connection for dead.
			err = send(": keep-alive\nevent: alive\ndata: 1\n\n")
		case <-s.news:
			if u := h.live.current(); u != nil {
				err = send(u.event(span, orders, sent, &last))
			}
		}
		if err != nil {
			return
		}
	}
}

// canFlush reports whether a ResponseController can flush w: it would begin the answer to find out.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case http.Flusher, interface{ FlushError() error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// event is what a stream has not sent yet, or "". orders says whether they are
// offered, sent has the parts it has sent, last the rest.
func (u *update) event(span string, orders bool, sent map[string]string, last *string) string {
	m := message{Self: u.selfName(), Title: u.title, Icon: u.icon, Beat: u.beat,
		Stale: u.snap.err != nil, Parts: map[string]string{}}
	change := func(name, text string) {
		if before, found := sent[name]; !found || before != text {
			m.Parts[name], sent[name] = text, text
		}
	}
	for name, text := range u.partsFor(orders) {
		change(name, text)
	}
	if u.snap.err == nil {
		for name, text := range u.timeline(span) {
			change(name, text)
		}
	}
	parts := m.Parts
	m.Parts = nil
	head, err := json.Marshal(m)
	if err != nil || string(head) == *last && len(parts) == 0 {
		return ""
	}
	*last, m.Parts = string(head), parts
	m.Now = u.snap.now.UnixMilli()
	var b bytes.Buffer
	b.WriteString("data: ")
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // this is no HTML, and half as long
	if err := enc.Encode(m); err != nil {
		return ""
	}
	b.WriteString("\n") // Encode has written the first one
	return b.String()
}
