// Package missing says what a test does on a machine that lacks something which
// the test needs: a program, a right, a file system. The test is skipped, with a
// line that names what is missing. Where the environment has CI=true it fails
// instead: a run that counts has tried everything.
package missing

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Skip ends the test because something is missing, which the line names.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	line := "missing on this machine: " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatal(line + " (CI=true: nothing may be missing)")
	}
	t.Skip(line)
}

// Long skips a test that is not for -short, which it says why. With CI=true it
// fails: a run that counts leaves out nothing.
func Long(t testing.TB, why string) {
	t.Helper()
	if flag.Lookup("test.short") == nil || !testing.Short() { // a program has no such flag
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("-short leaves out what " + why + " (CI=true: nothing may be left out)")
	}
	t.Skip("-short: it " + why)
}

// FullEnv is the variable of the environment that lets the tests run in full, as CI does in one of
// its two runs. Any value but the empty one does.
const FullEnv = "SCHEDLOCK_TEST_LONG"

// Full reports whether a test that has two sizes has the large one.
func Full() bool { return os.Getenv(FullEnv) != "" }

// OnlyFull skips a test that only a run in full needs, which it says why: without it, others still
// test the same code.
func OnlyFull(t testing.TB, why string) {
	t.Helper()
	if !Full() {
		t.Skip(FullEnv + " is not set: it " + why)
	}
}

// Costly skips a test that costs more than a run by hand shall, which it says why. With CI=true it
// always runs, also where the run is not in full: with the race detector. For -short it is as Long.
func Costly(t testing.TB, why string) {
	t.Helper()
	Long(t, why)
	if !Full() && os.Getenv("CI") != "true" {
		t.Skip("neither " + FullEnv + " nor CI=true is set: it " + why)
	}
}

// Some returns all cases of a test in a full run. By default they are the first and the last, where
// others test the same code.
func Some[T any](cases ...T) []T {
	if Full() || len(cases) < 3 {
		return cases
	}
	return []T{cases[0], cases[len(cases)-1]}
}

// Root skips the test unless it runs as root: only root can become somebody
// else, or mount.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "the rights of root")
	}
}
