package pgtest

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// Namespace is a network of its own, which has no more than a loopback: as on another machine, all
// addresses and ports of 127.0.0.1 are free there.
type Namespace struct {
	calls chan func()
}

// NewNamespace makes one, until the end of the test. Where this process may not, the test is
// skipped.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	n := &Namespace{calls: make(chan func())}
	made := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// for good: the thread ends with this goroutine, as no other may have its network
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = LoopbackUp()
		}
		made <- err
		for call := range n.calls {
			call()
		}
	}()
	err := <-made
	t.Cleanup(func() {
		close(n.calls)
		<-ended
	})
	if errors.Is(err, unix.EPERM) {
		missing.Skip(t, "the right to make a network of its own (root)")
	}
	tempserver.Need(t, err)
	return n
}

// do runs f in the namespace. The sockets that it makes belong there, wherever they are used.
func (n *Namespace) do(f func()) {
	done := make(chan struct{})
	n.calls <- func() { defer close(done); f() }
	<-done
}

// Listen listens there.
func (n *Namespace) Listen(address string) (listener net.Listener, err error) {
	n.do(func() { listener, err = net.Listen("tcp4", address) })
	return listener, err
}

// Dial connects to an address there: an IP and a port, as names are looked up elsewhere.
func (n *Namespace) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	n.do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	return conn, err
}

// LoopbackUp turns the loopback on in a namespace that is new, for the thread that calls it.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
