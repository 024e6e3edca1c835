package sqlite

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
)

func init() {
	// In a mount namespace of its own: what it mounts nobody else sees, and it
	// goes with the process.
	childModes["store mounted"] = func() {
		what, where, dsn := os.Args[1], os.Args[2], os.Args[3]
		check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err := unix.Mount(what, where, "", unix.MS_BIND, ""); err != nil {
			fmt.Println("mount:", err)
			return
		}
		s, err := Open(bg, dsn)
		if err == nil {
			err = s.Close()
		}
		fmt.Println(err)
	}
	childModes["store nobody"] = func() {
		check(syscall.Setgroups(nil))
		check(syscall.Setgid(65534))
		check(syscall.Setuid(65534))
		s, err := Open(bg, os.Args[1])
		if err == nil {
			err = s.Migrate(bg)
		}
		if s != nil {
			s.Close()
		}
		fmt.Println(err)
	}
}

// openMounted opens a database in a child that has what mounted at where.
func openMounted(t *testing.T, what, where, dsn string) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, what, where, dsn)
	cmd.Env = append(os.Environ(), childEnv+"=store mounted")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("not permitted to make a mount namespace (root or CAP_SYS_ADMIN is needed): a bind-mounted file was not tried")
	}
	require.NoError(t, err)
	if rest, ok := strings.CutPrefix(string(out), "mount: "); ok {
		t.Skip("not permitted to bind-mount (CAP_SYS_ADMIN is needed): a bind-mounted file was not tried: " + rest)
	}
	return strings.TrimSpace(string(out))
}

// Both replicas held row 1 when this was tried: the -wal of each lies in its
// own folder.
func TestASingleFileMountedIntoAContainerIsRefused(t *testing.T) {
	t.Parallel()
	outside := newStore(t).Path()
	inside := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(inside, nil, 0o600)) // the mount point
	if _, ok := mountID(outside); !ok {
		t.Skip("the kernel does not tell mounts apart (Linux 5.8 is needed)")
	}
	got := openMounted(t, outside, inside, inside)
	assert.Contains(t, got, "is a single file mounted into its folder")
	assert.Contains(t, got, inside)
	assert.Contains(t, got, "mount the folder, not the file")
}

func TestAMountedFolderIsFine(t *testing.T) {
	t.Parallel()
	outside := newStore(t).Path()
	inside := t.TempDir()
	assert.Equal(t, "<nil>", openMounted(t, filepath.Dir(outside), inside, filepath.Join(inside, "app.db")))
}

func TestAFileWithoutPermission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody without permission")
	}
	root, err := os.MkdirTemp("", "schedlock") // t.TempDir is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	require.NoError(t, os.Chmod(root, 0o755))
	file := func(folder string, folderMode, mode os.FileMode) string {
		dir := filepath.Join(root, folder)
		require.NoError(t, os.Mkdir(dir, 0o700))
		s := mustOpen(t, filepath.Join(dir, "app.db"))
		require.NoError(t, s.Migrate(bg))
		require.NoError(t, os.Chmod(s.Path(), mode))
		require.NoError(t, os.Chmod(dir, folderMode))
		return s.Path()
	}
	for name, tc := range map[string]struct{ path, wants string }{
		"the file cannot be read":             {file("unreadable", 0o777, 0o600), "cannot be read: access"},
		"the folder cannot be entered":        {file("closed", 0o700, 0o666), "permission denied"},
		"the file cannot be written":          {file("readonly", 0o777, 0o444), "permission denied"},
		"the folder of a new file":            {filepath.Join(root, "new.db"), "does not exist, and its folder cannot be written"},
		"the folder of a new file is missing": {filepath.Join(root, "deep", "er", "new.db"), "make its folder"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startChild(t, "store nobody", tc.path)
			line := c.line()
			assert.Contains(t, line, tc.wants)
			assert.Contains(t, line, tc.path)
		})
	}
}

func TestNetworkFileSystemsAreKnown(t *testing.T) {
	for _, name := range []string{"NFS", "CIFS", "SMB2", "9p", "Ceph"} {
		found := false
		for _, n := range networkFS {
			found = found || n == name
		}
		assert.True(t, found, name)
	}
	for magic := range localFS {
		assert.NotContains(t, networkFS, magic)
	}
}
