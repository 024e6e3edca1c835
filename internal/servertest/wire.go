package servertest

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// A Wire is the network between clients and a server. What is cut passes nothing any more, either
// way, and neither side is told.
type Wire struct {
	Address string        // of its end for clients
	Silent  chan struct{} // has an element when what CutAt asks for was seen

	mu     sync.Mutex
	to     string
	dead   bool // for new connections too
	hold   bool // new connections
	closed bool
	at     []byte
	links  []*link
}

type link struct {
	client, server net.Conn
	dead           bool
	held           chan struct{} // nothing passes until it is closed; nil: it never was held
	once           sync.Once
	first          []byte // what it carried first, while it is held
	ended          bool
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// NewWire leads to the address of a server, until the end of the test.
func NewWire(t testing.TB, to string) *Wire {
	t.Helper()
	w := &Wire{Silent: make(chan struct{}, 1), to: to}
	w.Address = Listen(t, w.serve).String()
	t.Cleanup(w.Close)
	return w
}

func (w *Wire) serve(client net.Conn) {
	w.mu.Lock()
	to := w.to
	w.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		_ = client.Close()
		return
	}
	w.mu.Lock()
	l := &link{client: client, server: server, dead: w.dead}
	if w.hold {
		l.held = make(chan struct{})
	}
	w.links = append(w.links, l)
	if w.closed { // a driver may take leave in the background
		l.close()
	}
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pass(l, client, server) })
	both.Go(func() { w.pass(l, server, client) })
	both.Wait()
	w.mu.Lock()
	l.ended = true
	w.mu.Unlock()
}

// Open reports whether a connection has not ended.
func (w *Wire) Open() (open bool) {
	w.each(func(l *link) { open = open || !l.ended })
	return open
}

func (w *Wire) pass(l *link, from, to net.Conn) {
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		if l.held != nil {
			w.mu.Lock()
			l.first = append(l.first, buffer[:n]...)
			w.mu.Unlock()
			<-l.held
		}
		w.mu.Lock()
		if len(w.at) > 0 && bytes.Contains(buffer[:n], w.at) {
			l.dead, w.at = true, nil
			w.Silent <- struct{}{}
		}
		dead := l.dead
		w.mu.Unlock()
		if dead {
			return // both connections stay open
		}
		if err != nil {
			l.close()
			return
		}
		_, _ = to.Write(buffer[:n])
	}
}

// each locks the wire, and calls do with each connection.
func (w *Wire) each(do func(l *link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		do(l)
	}
}

// Die cuts the connections that are open. New ones work.
func (w *Wire) Die() { w.each(func(l *link) { l.dead = true }) }

// Cut cuts all connections, also new ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	w.dead = true
	w.mu.Unlock()
	w.Die()
}

// CutAt cuts the next connection that carries the text, which does not arrive.
func (w *Wire) CutAt(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = []byte(text)
}

// Hold lets nothing pass on new connections.
func (w *Wire) Hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hold = true
}

// Holds reports whether Hold stops a connection that carries the text.
func (w *Wire) Holds(text string) (holds bool) {
	w.each(func(l *link) { holds = holds || bytes.Contains(l.first, []byte(text)) })
	return holds
}

// LetGo lets pass what the connections carry that Hold has stopped until now.
func (w *Wire) LetGo() { w.each((*link).letGo) }

func (l *link) letGo() {
	if l.held != nil {
		l.first = nil
		l.once.Do(func() { close(l.held) })
	}
}

// LeadTo leads new connections to another server. Those that are open stay.
func (w *Wire) LeadTo(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = address
}

// End ends the connections that are open. New ones work.
func (w *Wire) End() { w.each((*link).close) }

// Close ends all connections, also new ones.
func (w *Wire) Close() {
	w.Cut()
	w.mu.Lock()
	w.closed, w.hold = true, false
	w.mu.Unlock()
	w.each((*link).letGo)
	w.End()
}
