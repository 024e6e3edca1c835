package main

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// lockFolder keeps other sidecars that do the same waiting until the folder is closed. It goes on
// without if it may not, or if somebody else keeps it locked, which systemd recommends to those
// whose folder is not to be cleaned: see tmpfiles.d(5).
func lockFolder(path string) io.Closer {
	folder, err := os.Open(path)
	if err != nil {
		return io.NopCloser(nil)
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return folder
}

// private makes sockets that nobody else may use from the beginning, whatever the umask is: bind
// gives the file the mode that the socket has. Where that fails, listen's chmod comes later.
var private = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}}
