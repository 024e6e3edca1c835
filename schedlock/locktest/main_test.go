package locktest

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "32") // nearly all tests only wait; -parallel overrides it
	os.Exit(m.Run())
}
