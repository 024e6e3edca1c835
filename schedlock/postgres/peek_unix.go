//go:build unix && !aix && !solaris && !illumos

package postgres

import "syscall"

const canPeek = true

// silent reports whether nothing waits to be read on a socket that does not
// block: no data, and no end. False if that cannot be told.
func silent(socket syscall.RawConn) (yes bool) {
	err := socket.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		yes = err == syscall.EAGAIN
	})
	return yes && err == nil
}
