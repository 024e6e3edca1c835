//go:build unix

package tempserver_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/tempserver"
)

func TestAnArchiveThatIsDamagedOrNotOursIsMadeAnew(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HOME", cache)
	t.Setenv("XDG_CACHE_HOME", cache)
	const block = 512 // of an archive: each file has one more
	const size = 200 * block
	made := 0
	template := tempserver.Template{Name: "test", Version: "1",
		Make: func(p *tempserver.Process) error {
			made++
			return p.Run("/bin/sh", "-c", `mkdir data && head -c "$1" /dev/zero > data/file`, "sh",
				strconv.Itoa(size))
		}}
	work := func() {
		p, err := tempserver.New(false, "nobody")
		tempserver.Need(t, err)
		defer p.Remove()
		require.NoError(t, p.Data(template))
		file, err := os.Stat(filepath.Join(p.Dir, "data", "file"))
		require.NoError(t, err)
		require.EqualValues(t, size, file.Size())
	}
	work()
	var archives []string
	require.NoError(t, filepath.WalkDir(cache, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			archives = append(archives, path)
		}
		return err
	}))
	require.Len(t, archives, 1)
	archive := archives[0]
	work()
	require.Equal(t, 1, made, "it is used again")
	for what, damage := range map[string]func() error{
		"cut short":          func() error { return os.Truncate(archive, size/2) },
		"cut after a file":   func() error { return os.Truncate(archive, block+block+size) },
		"writable by others": func() error { return os.Chmod(archive, 0o666) },
	} {
		before := made
		require.NoError(t, damage())
		work()
		require.Equal(t, before+1, made, what)
		after, err := os.Stat(archive)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), after.Mode(), what)
		work()
		require.Equal(t, before+1, made, "what was made anew is used again: %s", what)
	}
}
