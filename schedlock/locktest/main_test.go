package locktest

import (
	"os"
	"testing"

	"example.com/schedlock/internal/child"
)

func TestMain(m *testing.M) {
	child.SideBySide(32) // nearly all tests only wait
	os.Exit(m.Run())
}
