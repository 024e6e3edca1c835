package leasefile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
)

func init() {
	// In a mount namespace of its own: what it mounts nobody else sees, and it
	// goes with the process.
	child.Modes["lease mounted"] = func() {
		child.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		ids := []any{"ids"}
		for i, folder := range []string{"one", "two"} {
			if out, err := exec.Command("sh", "-ec", os.Args[1+i]).CombinedOutput(); err != nil {
				fmt.Printf("missing: %v: %s\n", err, out)
				return
			}
			path, err := filepath.Abs(folder + "/app.db")
			child.Check(err)
			if _, err := os.Stat(path); err != nil {
				child.Check(os.WriteFile(path, nil, 0o600))
			}
			f, err := Open(path, nil)
			child.Check(err)
			id, err := f.id()
			child.Check(err)
			ids = append(ids, id)
		}
		fmt.Println(ids...)
	}
}

// mountedIDs returns the ids of the lease files in two folders, which two scripts of the
// shell mount.
func mountedIDs(t *testing.T, one, two string) (string, string) {
	t.Helper()
	cmd := child.Command(t, "lease mounted", one, two)
	cmd.Dir = t.TempDir()
	require.NoError(t, os.Mkdir(cmd.Dir+"/one", 0o700))
	require.NoError(t, os.Mkdir(cmd.Dir+"/two", 0o700))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		missing.Skip(t, "the right to make a mount namespace (root or CAP_SYS_ADMIN)")
	}
	require.NoError(t, err)
	if rest, ok := strings.CutPrefix(string(out), "missing: "); ok {
		missing.Skip(t, "the right to mount (CAP_SYS_ADMIN): %s", rest)
	}
	var first, second string
	_, err = fmt.Sscanf(string(out), "ids %s %s\n", &first, &second)
	require.NoError(t, err, "%s", out)
	return first, second
}

// A snapshot of the disk that takes the place of its folder has the same random part, inode and
// birth time: only the device tells the two apart.
func TestTheFileOfASnapshotOfTheDiskHasAnotherID(t *testing.T) {
	one, two := mountedIDs(t, `mount -t tmpfs one one`, `mount -t tmpfs two two; cp one/* two`)
	first, second := strings.Split(one, "-"), strings.Split(two, "-")
	assert.Equal(t, first[0], second[0], "it is a copy")
	assert.NotEqual(t, first[1], second[1], "on another device")
}

func TestAFileHasOneIDByWhicheverMount(t *testing.T) {
	one, two := mountedIDs(t, `:`, `mount --bind one two`)
	assert.Equal(t, one, two)
}
