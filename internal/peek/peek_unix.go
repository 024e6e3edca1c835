//go:build unix && !aix && !solaris && !illumos

// Package peek looks at sockets without reading from them: has the other side closed the
// connection?
package peek

import "syscall"

// Possible is whether this system can.
const Possible = true

// Silent reports whether nothing waits to be read on a socket that does not block: no data, and no
// end. False if that cannot be told.
func Silent(socket syscall.RawConn) (yes bool) {
	err := socket.Control(func(fd uintptr) { yes = empty(fd) })
	return yes && err == nil
}

// Wait returns when something waits to be read, with nil, or when the connection was closed or its
// read deadline has passed, with an error. Meanwhile nobody else can read.
func Wait(socket syscall.RawConn) error {
	return socket.Read(func(fd uintptr) bool { return !empty(fd) })
}

func empty(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
	return err == syscall.EAGAIN
}
