package servertest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
)

// echo is a server that answers each line with the same one, and tells of those that have come.
func echo(t *testing.T) (address string, came chan string) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	came = make(chan string, 1000)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					came <- lines.Text()
					_, _ = fmt.Fprintln(conn, lines.Text())
				}
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String(), came
}

const patience = time.Minute

// A client sends lines, and reads what comes back.
type client struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, w *servertest.Wire) *client {
	conn, err := net.Dial("tcp4", w.Address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(line string) {
	_, err := fmt.Fprintln(c.conn, line)
	require.NoError(c.t, err)
}

func (c *client) wants(line string) {
	c.t.Helper()
	got, err := c.lines.ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, line+"\n", got)
}

// wantsNothing gives what should not come a moment.
func (c *client) wantsNothing() {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.lines.ReadString('\n')
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded)
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(patience)))
}

// The faults of the harness rely on each of these, and would be green without.
func TestANetworkFailsAsItIsTold(t *testing.T) {
	address, came := echo(t)
	w := servertest.NewWire(t, address)
	fresh := func() *client { // a connection that works
		c := dial(t, w)
		c.send("hello")
		c.wants("hello")
		require.Equal(t, "hello", <-came)
		return c
	}
	t.Run("a hole", func(t *testing.T) {
		c := fresh()
		w.Become(servertest.Network{Hole: true})
		c.send("x")
		c.wantsNothing()
		require.Empty(t, came)
		w.Become(servertest.Network{})
		c.wants("x")
		require.Equal(t, "x", <-came)
	})
	t.Run("a lost answer", func(t *testing.T) {
		c, lost := fresh(), make(chan struct{})
		w.Become(servertest.Network{LoseAfter: []byte("x"), Lost: lost})
		c.send("x")
		<-lost
		require.Equal(t, "x", <-came)
		_, err := c.lines.ReadString('\n')
		require.ErrorIs(t, err, io.EOF, "the connection is cut")
		fresh()
	})
	t.Run("answers that are lost now and then", func(t *testing.T) {
		c := fresh()
		w.Become(servertest.Network{Lossy: true})
		defer w.Become(servertest.Network{})
		for n := range 1000 {
			c.send("x")
			if _, err := c.lines.ReadString('\n'); err != nil {
				require.Len(t, came, n+1, "the request has come")
				for range n + 1 {
					<-came
				}
				return
			}
		}
		require.Fail(t, "none was lost")
	})
	t.Run("an answer that waits", func(t *testing.T) {
		c, other, passed := fresh(), fresh(), make(chan struct{})
		w.Become(servertest.Network{HoldAfter: []byte("x"), Passed: passed})
		c.send("x")
		<-passed
		require.Equal(t, "x", <-came)
		other.send("y")
		other.wants("y")
		require.Equal(t, "y", <-came)
		c.wantsNothing()
		w.Become(servertest.Network{})
		c.wants("x")
	})
	t.Run("a connection that is cut without a word", func(t *testing.T) {
		c := fresh()
		w.CutAt("x")
		c.send("x")
		<-w.Silent
		c.wantsNothing()
		require.Empty(t, came)
		fresh()
		w.LetGo()
		c.wants("x")
		require.Equal(t, "x", <-came)
	})
}
