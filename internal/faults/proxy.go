//go:build linux

package faults

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// A proxy is the network between one replica and its server: what passes
// through can be held, delayed, or lost.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	target  string
	net     network
	links   map[*link]bool
	closed  bool
}

// network is how a proxy behaves; zero: it passes all.
type network struct {
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

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	answers        int // that came back
	named          bool
	waits          bool // for its answers, see network.HoldAfter
	deaf           bool // answers are lost
	over           bool
}

// lostFor is how long a link that loses answers still carries requests.
const lostFor = 200 * time.Millisecond

// newProxy listens on a Unix socket of that path, or with "" on a port of
// 127.0.0.1.
func newProxy(socket, target string) (*proxy, error) {
	network, address := "tcp4", "127.0.0.1:0"
	if socket != "" {
		network, address = "unix", socket
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, target: target, links: map[*link]bool{}}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// become changes the network, for the connections that are open too.
func (p *proxy) become(n network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.net = n
	p.changed.Broadcast()
}

// abandon ends all connections to the server. A client of a network that is a
// hole does not hear of it.
func (p *proxy) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.server != nil {
			l.server.Close()
		}
	}
}

// point leads new connections to another server, and cuts the old.
func (p *proxy) point(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for l := range p.links {
		p.cut(l)
	}
}

// Close cuts everything.
func (p *proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	for l := range p.links {
		p.cut(l)
	}
	p.mu.Unlock()
	p.listener.Close()
	p.wg.Wait()
}

// cut ends a link. p.mu is held.
func (p *proxy) cut(l *link) {
	if l.over {
		return
	}
	l.over = true
	delete(p.links, l)
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
	p.changed.Broadcast()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	l := &link{client: client}
	p.mu.Lock()
	p.links[l] = true
	if p.closed {
		p.cut(l)
	}
	p.held(l)
	target, over := p.target, l.over
	p.mu.Unlock()
	if over {
		return
	}
	server, err := net.DialTimeout("tcp4", target, 5*time.Second)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.cut(l)
		return
	}
	if l.server = server; l.over {
		server.Close()
		return
	}
	p.wg.Go(func() { p.pump(l, client, server, true) })
	p.wg.Go(func() { p.pump(l, server, client, false) })
}

// held waits while the network is a hole. p.mu is held.
func (p *proxy) held(l *link) {
	for p.net.Hole && !l.over {
		p.changed.Wait()
	}
}

func (p *proxy) pump(l *link, from, to net.Conn, request bool) {
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		if n > 0 && p.passes(l, buffer[:n], request) {
			_, _ = to.Write(buffer[:n]) // an error shows at the next read
		}
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held(l) // nor does the end of a connection pass
	p.cut(l)
}

// passes waits as the network wants it, and reports whether the text may go on.
func (p *proxy) passes(l *link, text []byte, request bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held(l)
	if d := p.net.Delay; d > 0 && !l.over {
		p.mu.Unlock()
		time.Sleep(d)
		p.mu.Lock()
	}
	if !request {
		for l.waits && p.net.hold && !l.over {
			p.changed.Wait()
		}
		l.waits = l.waits && p.net.hold
		l.answers++
		return !l.deaf
	}
	if n := p.net; n.Passed != nil && bytes.Contains(text, n.HoldAfter) {
		p.net, l.waits = network{hold: true}, true
		close(n.Passed)
	}
	lose := p.net.Lossy && l.answers > 2 && rand.IntN(5) == 0
	if p.net.Lost != nil && !l.deaf {
		has := bytes.Contains(text, p.net.LoseAfter)
		// Of Parse without Bind the answer passes: the next is the execution.
		if lose = has && !onlyParse(text) || l.named; lose {
			close(p.net.Lost)
			p.net.LoseAfter, p.net.Lost = nil, nil
		}
		l.named = has
	}
	if lose && !l.deaf {
		l.deaf = true
		p.wg.Go(func() {
			time.Sleep(lostFor)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.cut(l)
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
