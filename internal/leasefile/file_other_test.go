//go:build !linux

package leasefile

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestWithoutLinuxThereIsNoLeaseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	if _, err := Open(path, nil); !errors.Is(err, errors.ErrUnsupported) ||
		!strings.Contains(err.Error(), path+"-lease") {
		t.Errorf("Open: %v, want an error that wraps ErrUnsupported and names the file", err)
	}
}
