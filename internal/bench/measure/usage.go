//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/clock"
)

// usage is what processes have used since they were started, together.
type usage struct {
	at       time.Duration
	looks    int64
	looked   time.Duration // the moments for which the replicas have said so, added up
	written  int64         // bytes that went to a file system's pages
	cpu      time.Duration
	memory   float64
	database databaseState
}

// useWithin returns what the replicas, which have started, use from now on. begin is called just
// before that. Memory and connections are those at the end.
func (f *fleet) useWithin(dsn string, window time.Duration, begin func() error) (u usage,
	err error) {
	db, err := examine(f.ctx, dsn)
	if err != nil {
		return u, err
	}
	defer db.close()
	if err := rest(f.ctx, 2500*time.Millisecond); err != nil { // the start is over
		return u, err
	}
	if err := begin(); err != nil {
		return u, err
	}
	before, err := f.observe(db)
	if err != nil {
		return u, err
	}
	if err := rest(f.ctx, window); err != nil {
		return u, err
	}
	u, err = f.observe(db)
	u.at -= before.at
	u.looks -= before.looks
	u.looked -= before.looked
	u.written -= before.written
	u.cpu -= before.cpu
	u.database = u.database.since(before.database)
	return u, err
}

// observe adds up what the replicas have used.
func (f *fleet) observe(db examined) (all usage, err error) {
	f.mu.Lock()
	replicas := slices.Clone(f.replicas)
	asked := clock.System.Boot()
	f.mu.Unlock()
	for _, r := range replicas {
		if _, err := fmt.Fprintln(r.In, askLooks); err != nil {
			return all, err
		}
	}
	all.at = clock.System.Boot()
	for _, r := range replicas {
		one, err := processUsage(r.PID())
		if err != nil {
			return all, err
		}
		all.written += one.written
		all.cpu += one.cpu
		all.memory += one.memory
	}
	if all.database, err = db.state(f.ctx); err != nil {
		return all, err
	}
	err = f.await("all have said how often they looked", func(said []remark) bool {
		all.looks, all.looked = 0, 0
		for _, r := range replicas {
			s, ok := find(said, r, saysLooks)
			if !ok || s.at < asked {
				return false
			}
			all.looks += s.number
			all.looked += s.at
		}
		return true
	})
	return all, err
}

// processUsage reads what the kernel has counted for one process.
func processUsage(pid int) (u usage, err error) {
	if u.cpu, err = processCPU(pid); err != nil {
		return u, err
	}
	io, err := procField(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:")
	if err != nil {
		return u, err
	}
	kilobytes, err := procField(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
	u.written, u.memory = io, float64(kilobytes)*1024
	return u, err
}

// processCPU reads the clock of a process: nanoseconds, where /proc/…/stat has
// hundredths of a second.
func processCPU(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED of the kernel's posix-timers.h
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// threadCPU is what a thread of another process has used.
func threadCPU(tid int) (time.Duration, error) {
	ran, err := procField(fmt.Sprintf("/proc/%d/schedstat", tid), "")
	return time.Duration(ran), err
}

// procField reads a number from a file of lines with a name and a number.
func procField(path, name string) (n int64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			_, err := fmt.Sscan(value, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("%s has no line %s", path, name)
}
