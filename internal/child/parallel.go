package child

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
)

// SideBySide lets more tests run at a time than there are cores, unless -parallel says how many:
// most of them wait for a server. With the race detector, which makes processes slow and large, it
// is half as many, and with CI=true a third: its machine may be starved, and the tests of a busy
// machine wait for each other all the same.
func SideBySide(n int) {
	switch {
	case os.Getenv("CI") == "true":
		n /= 3
	case Raced():
		n /= 2
	}
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}

// Raced reports whether the race detector slows everything down.
func Raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
