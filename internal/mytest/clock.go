package mytest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// fakeClocks are where distributions have the library of faketime.
var fakeClocks = []string{"/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib"}

// fakeClock is the path of the library, "" if this machine does not have it.
func fakeClock() string {
	for _, folder := range fakeClocks {
		found, _ := filepath.Glob(filepath.Join(folder, "faketime", "libfaketimeMT.so.1"))
		if len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// A Clock is the wall clock of one server. Its monotonic clock is that of the machine.
type Clock struct{ file string }

// WithClock is [Start] with a clock of the server's own, by the library of faketime. The server
// writes a binary log, as one in use.
func WithClock(t testing.TB, settings ...string) (*Server, *Clock) {
	t.Helper()
	missing.Long(t, "starts MariaDB")
	library := fakeClock()
	if library == "" {
		tempserver.Need(t, &tempserver.MissingError{Message: "libfaketimeMT.so.1 of faketime"})
	}
	var clock *Clock
	s := start(t, append(primary(), settings...), false, func(s *Server) error {
		clock = &Clock{filepath.Join(s.process.Dir, "clock")}
		s.process.Env = []string{"LD_PRELOAD=" + library, "FAKETIME_NO_CACHE=1",
			"FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_TIMESTAMP_FILE=" + clock.file}
		return clock.Step(0)
	})
	return s, clock
}

// Step sets the clock so far ahead of the machine's, in whole seconds.
func (c *Clock) Step(ahead time.Duration) error {
	next := c.file + ".next" // no reader sees a half of it
	text := fmt.Sprintf("%+d\n", int64(ahead/time.Second))
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil { // for the server's user
		return err
	}
	return os.Rename(next, c.file)
}
