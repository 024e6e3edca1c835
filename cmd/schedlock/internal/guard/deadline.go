//go:build linux

package guard

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A deadline is when outer is to kill everything, on the clock of bootTime; 0: never.
// Inner moves it, and outer reads it, in memory that both share. So inner never waits
// for an outer process that is stopped, and outer never acts on old news.
type deadline struct{ at *atomic.Int64 }

// newDeadline returns a deadline, and a descriptor that gives it to another process.
func newDeadline() (deadline, *os.File, error) {
	fd, err := unix.MemfdCreate("deadline", unix.MFD_CLOEXEC)
	if err != nil {
		return deadline{}, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "deadline")
	err = unix.Ftruncate(fd, int64(os.Getpagesize()))
	var d deadline
	if err == nil {
		d, err = openDeadline(file)
	}
	if err != nil {
		file.Close()
		return deadline{}, nil, err
	}
	return d, file, nil
}

// openDeadline maps the file that newDeadline has made. The file may be closed then.
func openDeadline(file *os.File) (deadline, error) {
	page, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return deadline{}, fmt.Errorf("map the deadline: %w", err)
	}
	return deadline{(*atomic.Int64)(unsafe.Pointer(&page[0]))}, nil // never unmapped
}

func (d deadline) set(at time.Duration) { d.at.Store(int64(at)) }
func (d deadline) get() time.Duration   { return time.Duration(d.at.Load()) }
