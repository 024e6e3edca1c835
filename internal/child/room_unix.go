//go:build unix

package child

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// seatedEnv is set in the processes that a test binary starts which has a seat.
const seatedEnv = "SCHEDLOCK_TEST_SEATED"

// Seat waits until this machine has room for a test binary that keeps many
// processes busy, and returns how to leave. The first one has room at once, another one
// only when the processors are idle for a quarter of the time in spite of the others: on
// a slow or busy machine they would starve each other, as go test -p lets them run
// side by side. With -short nobody needs one.
func Seat() (leave func()) {
	if os.Getenv(seatedEnv) != "" || flag.Parsed() && testing.Short() {
		return func() {} // or started by one that has a seat
	}
	seat := takeSeat()
	_ = os.Setenv(seatedEnv, "1")
	return func() { _ = seat.Close() }
}

// takeSeat returns a locked file, or nil if the file system has no locks.
func takeSeat() *os.File {
	if file, err := lockSeat("0", syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return file
	}
	fmt.Fprintln(os.Stderr, "waiting for room beside another test binary")
	// One at a time looks for room, so that the next one sees the work of this one.
	gate, err := lockSeat("gate", 0)
	if err != nil {
		return nil
	}
	defer gate.Close()
	for {
		seats := 1
		if Idle(500*time.Millisecond) > 0.25 {
			seats = runtime.NumCPU()
		}
		for n := range seats {
			if file, err := lockSeat(strconv.Itoa(n), syscall.LOCK_NB); err == nil {
				return file
			}
		}
	}
}

// lockSeat locks the file of a seat, which the system unlocks when the process ends.
func lockSeat(name string, how int) (*os.File, error) {
	path := filepath.Join(Disk, fmt.Sprintf("schedlock-tests-%d-%s.lock", os.Getuid(), name))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|how)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Idle is how much of all processors had nothing to do while it looked, from 0 to 1. Without a
// /proc/stat as that of Linux it is 0.
func Idle(look time.Duration) float64 {
	before, since := idle()
	time.Sleep(look)
	after, now := idle()
	return float64(after-before) / float64(max(now-since, 1))
}

// idle returns how long all processors were idle since the machine has started, and
// how long that is, in ticks. Without a /proc/stat as that of Linux they never are.
func idle() (ticks, total int) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, field := range bytes.Fields(line) {
		n, err := strconv.Atoi(string(field))
		if err != nil {
			continue // the name "cpu"
		}
		total += n
		if i == 4 || i == 5 { // idle, and idle while it waits for a disk
			ticks += n
		}
	}
	return ticks, total
}
