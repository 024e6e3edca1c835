package sqlite

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow is the time since the machine was started, in milliseconds, suspend
// included, and the id of that start. Every process on the machine reads the
// same, in any container and whatever its wall clock says, so one process can
// store what another judges. A time with another id is from before a restart,
// which no process has outlived.
//
// Without /proc, which names the start, it is the wall clock: see wallNow. All
// processes that share a file must then be without it.
func bootNow() (ms int64, bootID string) {
	b := bootClock()
	if b.id == "" {
		return wallNow()
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return wallNow()
	}
	return (time.Duration(ts.Nano()) - b.offset).Milliseconds(), b.id
}

// boot is what cannot change while a process lives.
type boot struct {
	id     string        // "": it cannot be read
	offset time.Duration // what the time namespace adds to CLOCK_BOOTTIME
}

var bootClock = sync.OnceValue(func() boot {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return boot{}
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil { // a kernel before 5.6, or one without time namespaces
		offsets = nil
	}
	return boot{id: strings.TrimSpace(string(id)), offset: bootOffset(string(offsets))}
})

// bootOffset reads /proc/self/timens_offsets (time_namespaces(7)): lines of a
// clock, seconds and nanoseconds.
func bootOffset(offsets string) time.Duration {
	for line := range strings.Lines(offsets) {
		var (
			clock      string
			sec, nanos int64
		)
		if n, err := fmt.Sscan(line, &clock, &sec, &nanos); n == 3 && err == nil &&
			clock == "boottime" {
			return time.Duration(sec)*time.Second + time.Duration(nanos)
		}
	}
	return 0
}
