//go:build unix

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/build"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	f := newShortFleet(t)
	for _, env := range [][]string{nil, {"VERSION=true"}, {"LOCK_TTL=-1s"}} {
		r := f.prepareWith([]string{"--version"}, env...)
		r.begin()
		require.Zero(t, r.wait(), env)
		require.Equal(t, "demoapp "+build.Version()+"\n", r.log.String(), env)
	}
	files, err := os.ReadDir(filepath.Dir(f.db))
	require.NoError(t, err)
	require.Empty(t, files, "it has made something")
}
