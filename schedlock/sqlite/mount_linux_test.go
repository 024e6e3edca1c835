package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/internal/missing"
)

func init() {
	// In a mount namespace of its own: what it mounts nobody else sees, and it
	// goes with the process.
	child.Modes["store mounted"] = func() {
		what, where, dsn := os.Args[1], os.Args[2], os.Args[3]
		child.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
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
	child.Modes["store on a full disk"] = func() {
		where, path := os.Args[2], os.Args[3]
		child.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err := unix.Mount("tmpfs", where, "tmpfs", 0, "size=1m"); err != nil {
			fmt.Println("mount:", err)
			return
		}
		s, err := Open(bg, path)
		child.Check(err)
		child.Check(s.Migrate(bg))
		err = os.WriteFile(filepath.Join(where, "full"), make([]byte, 1<<20), 0o600)
		if !errors.Is(err, syscall.ENOSPC) {
			child.Check(fmt.Errorf("it has room: %w", err))
		}
		_, err = s.db.Exec(`CREATE TABLE one_more AS SELECT zeroblob(1 << 20)`)
		fmt.Println(s.explain(err))
	}
}

// openMounted opens a database in a child that has what mounted at where.
func openMounted(t *testing.T, what, where, dsn string) string {
	t.Helper()
	return mounted(t, "store mounted", what, where, dsn)
}

func mounted(t *testing.T, mode, what, where, dsn string) string {
	t.Helper()
	cmd := child.Command(t, mode, what, where, dsn)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		missing.Skip(t, "the right to make a mount namespace (root or CAP_SYS_ADMIN)")
	}
	require.NoError(t, err)
	if rest, ok := strings.CutPrefix(string(out), "mount: "); ok {
		missing.Skip(t, "the right to bind-mount (CAP_SYS_ADMIN): %s", rest)
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
	if _, ok := filesystem.MountID(outside); !ok {
		missing.Skip(t, "a kernel that tells mounts apart (Linux 5.8)")
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
	assert.Equal(t, "<nil>", openMounted(t, filepath.Dir(outside),
		inside, filepath.Join(inside, "app.db")))
}

func TestAFileWithoutPermission(t *testing.T) {
	missing.Root(t)
	root := t.TempDir()
	leasefiletest.LetIn(t, root)
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
		"the file cannot be read": {file("unreadable", 0o777, 0o600),
			"cannot be read: access"},
		"the folder cannot be entered": {file("closed", 0o700, 0o666), "permission denied"},
		"the file cannot be written": {file("readonly", 0o777, 0o444),
			"permission denied"},
		"the folder of a new file": {filepath.Join(root, "new.db"),
			"does not exist, and its folder cannot be written"},
		"the folder of a new file is missing": {filepath.Join(root, "deep", "er", "new.db"),
			"make its folder"},
	} {
		t.Run(name, func(t *testing.T) {
			line := child.Start(t, "store lead", tc.path, strconv.Itoa(stranger)).Line()
			assert.Contains(t, line, tc.wants)
			assert.Contains(t, line, tc.path)
		})
	}
}

// The driver says "disk I/O error" of a disk that is full.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	where := t.TempDir()
	got := mounted(t, "store on a full disk", "", where, filepath.Join(where, "app.db"))
	assert.Contains(t, got, "; the disk is full")
}
