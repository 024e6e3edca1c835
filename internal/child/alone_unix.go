//go:build unix

package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// aloneEnv is set in the processes that a test binary starts which is alone.
const aloneEnv = "SCHEDLOCK_TEST_ALONE"

// Alone waits until no other test binary on this machine is, and returns how to
// end that. It is for packages that keep many processes busy: side by side, as go
// test -p lets them be, they would starve each other.
func Alone() (end func()) {
	if os.Getenv(aloneEnv) != "" {
		return func() {} // started by one that is
	}
	path := filepath.Join(Disk, fmt.Sprintf("schedlock-tests-%d.lock", os.Getuid()))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return func() {}
	}
	fd := int(file.Fd())
	if errors.Is(syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		fmt.Fprintf(os.Stderr, "waiting for another test binary, which has locked %s\n", path)
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = syscall.Flock(fd, syscall.LOCK_EX)
		}
	}
	_ = os.Setenv(aloneEnv, "1")
	return func() { _ = file.Close() }
}
