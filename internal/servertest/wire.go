package servertest

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Wire is the network between clients and a server: what passes through can be held, delayed, or
// lost. What is cut passes nothing any more, either way, and neither side is told.
type Wire struct {
	Address string        // of its end for clients
	Silent  chan struct{} // has an element when what CutAt asks for was seen

	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	to      string
	net     Network
	links   map[*link]bool
	hold    bool // new connections
	at      []byte
	closed  bool
}

// A Network is how a wire behaves; zero: it passes all.
type Network struct {
	// nothing passes, either way; what was sent meanwhile arrives once it is healed
	Hole  bool
	Delay time.Duration // each way
	// now and then requests arrive but their answers do not, and the connection is cut
	Lossy bool
	// The same, once, for the request with this text (and, of a prepared
	// statement, for its first execution too). Closed when it was.
	LoseAfter []byte
	Lost      chan struct{}
	// Once a request with this text has passed, Passed is closed, and its link has no answers.
	HoldAfter []byte
	Passed    chan struct{}
	hold      bool
}

// link is one connection through a wire.
type link struct {
	client, server net.Conn
	hole           bool   // nothing passes
	first          []byte // what it carried since it is a hole
	answers        int    // that came back
	named          bool
	waits          bool // for its answers, see Network.HoldAfter
	deaf           bool // answers are lost
	over           bool
}

// lostFor is how long a link that loses answers still carries requests.
const lostFor = 200 * time.Millisecond

// NewWire leads to the address of a server, until the end of the test.
func NewWire(t testing.TB, to string) *Wire {
	t.Helper()
	w, err := ListenWire("", to)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// Through is a wire to the server of a database, and the URL of the database through it.
func Through(t testing.TB, databaseURL string) (*Wire, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	w := NewWire(t, u.Host)
	u.Host = w.Address
	return w, u.String()
}

// ListenWire is NewWire on a Unix socket of that path, or with "" on a port of 127.0.0.1. The
// caller closes it.
func ListenWire(socket, to string) (*Wire, error) {
	network, address := "tcp4", "127.0.0.1:0"
	if socket != "" {
		network, address = "unix", socket
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	w := &Wire{Address: listener.Addr().String(), Silent: make(chan struct{}, 1),
		listener: listener, to: to, links: map[*link]bool{}}
	w.changed = sync.NewCond(&w.mu)
	w.wg.Go(w.accept)
	return w, nil
}

// change calls do with the wire locked, and lets who waits look again.
func (w *Wire) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	w.changed.Broadcast()
}

// each is change for each connection.
func (w *Wire) each(do func(l *link)) {
	w.change(func() {
		for l := range w.links {
			do(l)
		}
	})
}

// Become changes the network, for the connections that are open too.
func (w *Wire) Become(n Network) { w.change(func() { w.net = n }) }

// Die cuts the connections that are open. New ones work.
func (w *Wire) Die() { w.each(func(l *link) { l.hole = true }) }

// Cut cuts all connections, also new ones.
func (w *Wire) Cut() {
	w.Hold()
	w.Die()
}

// CutAt cuts the next connection that carries the text, which does not arrive.
func (w *Wire) CutAt(text string) { w.change(func() { w.at = []byte(text) }) }

// Hold lets nothing pass on new connections.
func (w *Wire) Hold() { w.change(func() { w.hold = true }) }

// Holds reports whether a connection that passes nothing carries the text.
func (w *Wire) Holds(text string) (holds bool) {
	w.each(func(l *link) { holds = holds || bytes.Contains(l.first, []byte(text)) })
	return holds
}

// LetGo lets pass what the connections carry that pass nothing until now.
func (w *Wire) LetGo() { w.each(func(l *link) { l.hole, l.first = false, nil }) }

// Open reports whether a connection has not ended.
func (w *Wire) Open() (open bool) {
	w.each(func(*link) { open = true })
	return open
}

// LeadTo leads new connections to another server. Those that are open stay.
func (w *Wire) LeadTo(address string) { w.change(func() { w.to = address }) }

// End ends the connections that are open. New ones work.
func (w *Wire) End() { w.each(w.cut) }

// Abandon ends all connections to the server. A client of a network that is a
// hole does not hear of it.
func (w *Wire) Abandon() {
	w.each(func(l *link) {
		if l.server != nil {
			_ = l.server.Close()
		}
	})
}

// Close ends all connections, also new ones.
func (w *Wire) Close() {
	w.change(func() { w.closed = true })
	w.End()
	_ = w.listener.Close()
	w.wg.Wait()
}

// cut ends a link. w.mu is held.
func (w *Wire) cut(l *link) {
	if l.over {
		return
	}
	l.over = true
	delete(w.links, l)
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	w.changed.Broadcast()
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.serve(client) })
	}
}

func (w *Wire) serve(client net.Conn) {
	l := &link{client: client}
	w.mu.Lock()
	w.links[l] = true
	if w.closed {
		w.cut(l)
	}
	w.held(l)
	l.hole = l.hole || w.hold
	to, over := w.to, l.over
	w.mu.Unlock()
	if over {
		return
	}
	server, err := net.DialTimeout("tcp4", to, 5*time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.cut(l)
		return
	}
	if l.server = server; l.over {
		_ = server.Close()
		return
	}
	w.wg.Go(func() { w.pump(l, client, server, true) })
	w.wg.Go(func() { w.pump(l, server, client, false) })
}

// held waits while the network, or the link, is a hole. w.mu is held.
func (w *Wire) held(l *link) {
	for (w.net.Hole || l.hole) && !l.over {
		w.changed.Wait()
	}
}

func (w *Wire) pump(l *link, from, to net.Conn, request bool) {
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		if n > 0 && w.passes(l, buffer[:n], request) {
			_, _ = to.Write(buffer[:n]) // an error shows at the next read
		}
		if err != nil {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held(l) // nor does the end of a connection pass
	w.cut(l)
}

// passes waits as the network wants it, and reports whether the text may go on.
func (w *Wire) passes(l *link, text []byte, request bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.at) > 0 && bytes.Contains(text, w.at) {
		l.hole, w.at = true, nil
		w.Silent <- struct{}{}
	}
	if l.hole {
		l.first = append(l.first, text...)
	}
	w.held(l)
	if d := w.net.Delay; d > 0 && !l.over {
		w.mu.Unlock()
		time.Sleep(d)
		w.mu.Lock()
	}
	if !request {
		for l.waits && w.net.hold && !l.over {
			w.changed.Wait()
		}
		l.waits = l.waits && w.net.hold
		l.answers++
		return !l.deaf
	}
	if n := w.net; n.Passed != nil && bytes.Contains(text, n.HoldAfter) {
		w.net, l.waits = Network{hold: true}, true
		close(n.Passed)
	}
	lose := w.net.Lossy && l.answers > 2 && rand.IntN(5) == 0
	if w.net.Lost != nil && !l.deaf {
		has := bytes.Contains(text, w.net.LoseAfter)
		// Of Parse without Bind the answer passes: the next is the execution.
		if lose = has && !onlyParse(text) || l.named; lose {
			close(w.net.Lost)
			w.net.LoseAfter, w.net.Lost = nil, nil
		}
		l.named = has
	}
	if lose && !l.deaf {
		l.deaf = true
		w.wg.Go(func() {
			time.Sleep(lostFor)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cut(l)
		})
	}
	return true
}

// onlyParse reports whether a request prepares a statement and does not bind
// it: messages of the protocol are a letter, four bytes of length, the rest.
func onlyParse(text []byte) bool {
	parse := false
	for len(text) >= 5 {
		switch text[0] {
		case 'P':
			parse = true
		case 'B', 'Q':
			return false
		}
		n := int(text[1])<<24 | int(text[2])<<16 | int(text[3])<<8 | int(text[4])
		if n < 4 || n+1 > len(text) {
			break
		}
		text = text[n+1:]
	}
	return parse
}
