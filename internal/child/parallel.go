package child

import (
	"flag"
	"runtime"
	"strconv"
)

// SideBySide lets more tests run at a time than there are cores, unless -parallel says how many:
// most of them wait for a server.
func SideBySide(n int) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}
