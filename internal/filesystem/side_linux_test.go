package filesystem

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

func newDatabase(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestModeIsForThoseWhoMayWriteTheDatabase(t *testing.T) {
	for db, want := range map[fs.FileMode]fs.FileMode{
		0o600: 0o600, 0o644: 0o600, 0o640: 0o600, 0o660: 0o660, 0o664: 0o660, 0o666: 0o666,
		0o400: 0o600, 0o755: 0o600,
	} {
		info, err := os.Stat(newDatabase(t, db))
		require.NoError(t, err)
		assert.Equal(t, want, Mode(info), db)
	}
}

func TestOfManyThatMakeAFileOneWins(t *testing.T) {
	db := newDatabase(t, 0o600)
	path := db + "-x"
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { assert.NoError(t, Make(path, db, string(rune('a'+i)))) })
	}
	all.Wait()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Len(t, content, 1)
	require.NoError(t, Make(path, db, "another"))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, content, again, "what is there stays")
	names, err := os.ReadDir(filepath.Dir(db))
	require.NoError(t, err)
	assert.Len(t, names, 2, "nothing else is left")
}

func TestAFileThatCannotBeMadeIsNamedTheSameEachTime(t *testing.T) {
	db := newDatabase(t, 0o600)
	path := filepath.Join(filepath.Dir(db), "missing", "x")
	first, second := Make(path, db, "x"), Make(path, db, "x")
	require.EqualError(t, first, "open "+path+": no such file or directory")
	assert.EqualError(t, second, first.Error())
}

func TestWhatIsNoFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd")
	for what, put := range map[string]func() error{
		"a folder":                               func() error { return os.Mkdir(path, 0o755) },
		"a symbolic link, which is not followed": func() error { return os.Symlink("odd", path) },
		"a named pipe, which is not waited for": func() error {
			return syscall.Mknod(path, syscall.S_IFIFO, 0)
		},
		"a socket": func() error { return syscall.Mknod(path, syscall.S_IFSOCK, 0) },
	} {
		require.NoError(t, put())
		_, err := CheckRegular(path)
		assert.EqualError(t, err,
			path+" is "+what+", and not the file that schedlock makes: remove it")
		require.NoError(t, os.Remove(path))
	}
	_, err := CheckRegular(path)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAnOpenFollowsNoLinkAndWaitsForNoPipe(t *testing.T) {
	path := newDatabase(t, 0o600)
	require.NoError(t, os.Symlink(path, path+"-link"))
	_, err := os.OpenFile(path+"-link", os.O_RDONLY|OpenFlags, 0)
	require.ErrorIs(t, err, syscall.ELOOP)
	require.NoError(t, syscall.Mkfifo(path+"-pipe", 0o600))
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(path+"-pipe", os.O_RDONLY|OpenFlags, 0)
		f.Close()
		opened <- err
	}()
	select {
	case err := <-opened:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for somebody to write")
	}
}

// The rights of the database's group are not those of the group that a file has
// instead, because its maker may not give it away.
func TestAFileOfAnotherGroupIsClosedToIt(t *testing.T) {
	missing.Root(t)
	const user, group = 65534, 2345
	db := newDatabase(t, 0o664)
	require.NoError(t, os.Chown(db, 1234, group))
	dir := filepath.Dir(db)
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine
		_ = unix.Setfsgid(user)
		_ = unix.Setfsuid(user)
		done <- Make(db+"-x", db, "x")
	}()
	require.NoError(t, <-done)
	info, err := os.Stat(db + "-x")
	require.NoError(t, err)
	require.EqualValues(t, user, info.Sys().(*syscall.Stat_t).Gid)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
}
