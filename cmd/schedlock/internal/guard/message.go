//go:build linux

package guard

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A message goes from inner to outer, or back.
type message struct {
	// To outer.
	Group  *int        `json:",omitempty"` // of the command that runs; 0: none does
	Held   bool        `json:",omitempty"` // a descriptor comes with this message
	Paused unix.Signal `json:",omitempty"` // by which the terminal has stopped the command
	Code   *int        `json:",omitempty"` // the exit code; inner is about to exit

	// To inner.
	Signal unix.Signal `json:",omitempty"` // was sent to outer
	Resume bool        `json:",omitempty"` // the command may go on
}

// A conn is one end of the connection between outer and inner. It is closed by
// the kernel when the process at the other end dies.
type conn struct {
	socket *net.UnixConn
	mu     sync.Mutex // one message at a time
}

// newPair returns one end, and the other for a process that is started.
func newPair() (*conn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	far := os.NewFile(uintptr(pair[1]), "inner")
	c, err := newConn(os.NewFile(uintptr(pair[0]), "outer"))
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return c, far, nil
}

// newConn takes the file over.
func newConn(file *os.File) (*conn, error) {
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("connection between the processes of exec: %w", err)
	}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("connection between the processes of exec is a %T", c)
	}
	return &conn{socket: socket}, nil
}

// patience is how long a message waits for room: for that some hundred others have
// to be unread.
const patience = 100 * time.Millisecond

// send sends a message, and a copy of a descriptor if file is not nil.
func (c *conn) send(m message, file *os.File) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The other process may be stopped, and must not stop this one.
	if err := c.socket.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, _, err = c.socket.WriteMsgUnix(text, rights, nil)
	return err
}

// receive returns the next message, and the descriptor that came with it, if
// any. An error means that the other process has ended.
func (c *conn) receive() (m message, file *os.File, err error) {
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.socket.ReadMsgUnix(text, rights)
	if err != nil {
		return m, nil, err
	}
	if n == 0 {
		return m, nil, net.ErrClosed
	}
	if oobn > 0 {
		file = received(rights[:oobn])
	}
	return m, file, json.Unmarshal(text[:n], &m)
}

func received(rights []byte) *os.File {
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(list) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "lease")
}
