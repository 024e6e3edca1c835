package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

const childEnv = "DOCTOR_TEST_CHILD"

// childMain is what this binary does when a test has started it as a child.
func childMain() bool {
	mode := os.Getenv(childEnv)
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	switch mode {
	case "":
		return false
	case "lead": // and die
		s, err := sqlite.Open(bg, os.Args[1])
		check(err)
		lock, err := schedlock.New(s, schedlock.WithLogger(quiet))
		check(err)
		_, err = lock.Acquire(bg)
		check(err)
	case "nobody":
		check(syscall.Setgroups(nil))
		check(syscall.Setgid(65534))
		check(syscall.Setuid(65534))
		check(json.NewEncoder(os.Stdout).Encode(examined(os.Args[1])))
	case "mounted": // in a mount namespace of its own, which goes with the process
		check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err := unix.Mount(os.Args[1], os.Args[2], "", unix.MS_BIND, ""); err != nil {
			os.Exit(4)
		}
		check(json.NewEncoder(os.Stdout).Encode(examined(os.Args[2])))
	}
	return true
}

func child(t testing.TB, mode string, attr *syscall.SysProcAttr,
	args ...string) (r Report, err error) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(bg, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	out, err := cmd.Output()
	if err == nil && len(out) > 0 {
		require.NoError(t, json.Unmarshal(out, &r))
	}
	return r, err
}

func TestTheLeaseFile(t *testing.T) {
	t.Parallel()
	type harm func(t *testing.T, s *sqlite.Store)
	led := func(statements ...string) harm {
		return func(t *testing.T, s *sqlite.Store) {
			lead(t, s)
			shell(t, s.Path(), statements...)
		}
	}
	died := func(statements ...string) harm {
		return func(t *testing.T, s *sqlite.Store) {
			_, err := child(t, "lead", nil, s.Path())
			require.NoError(t, err)
			shell(t, s.Path(), statements...)
		}
	}
	without := func(before harm) harm {
		return func(t *testing.T, s *sqlite.Store) {
			before(t, s)
			require.NoError(t, os.Remove(s.Path()+"-lease"))
		}
	}
	const noFile = `UPDATE scheduler_lock SET file_id = NULL`
	edited := fmt.Sprintf(`UPDATE scheduler_lock SET file_id = 'other', token = '%s'`,
		driver.NewToken())
	for name, tc := range map[string]struct {
		harm  harm
		level Level
		says  []string
	}{
		"of a holder that has died": {died(), Note, []string{"has ended"}},
		"with an edited token":      {led(edited), Warning, []string{"another token"}},
		"of a holder without a row": {led(`DELETE FROM scheduler_lock`), Warning,
			[]string{"no lock row"}},
		"that was deleted":           {without(led()), Warning, []string{"deleted"}},
		"that its holder never had":  {died(noFile), Note, []string{"could not lock it"}},
		"that its holder never made": {without(died(noFile)), Note, []string{"could not make it"}},
		"that is another one": {func(t *testing.T, s *sqlite.Store) {
			without(led(edited))(t, s)
			other, err := sqlite.Open(bg, s.Path()) // makes a new one
			require.NoError(t, err)
			require.NoError(t, other.Close())
		}, Warning, []string{"locked another one, id other"}},
		"that is none": {func(t *testing.T, s *sqlite.Store) {
			require.NoError(t, os.WriteFile(s.Path()+"-lease", []byte("x"), 0o600))
		}, Error, []string{"not made by schedlock", "remove it"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := provable(t)
			tc.harm(t, s)
			finding(t, examined(s.Path()), "lease file", tc.level, tc.says...)
		})
	}
}

func provable(t *testing.T) *sqlite.Store {
	t.Helper()
	s := newDatabase(t)
	if err := s.ProofOfDeath(); err != nil {
		missing.Skip(t, "a proof of death: %v", err)
	}
	return s
}

func TestWhatIsInThePlaceOfALockFile(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]struct {
		put   func(path string) error
		wants string
	}{
		"a link": {func(path string) error {
			return os.Symlink(path+"2", path)
		}, "is a symbolic link, which is not followed"},
		"a pipe": {func(path string) error {
			return syscall.Mkfifo(path, 0o600)
		}, "is a named pipe, which is not waited for"},
		"a folder": {func(path string) error { return os.Mkdir(path, 0o700) }, "is a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := provable(t)
			require.NoError(t, s.Close())
			for _, suffix := range []string{"-lease", "-migrate.lock"} {
				_ = os.Remove(s.Path() + suffix)
				require.NoError(t, odd.put(s.Path()+suffix))
			}
			r := examined(s.Path())
			finding(t, r, "lease file", Error, odd.wants, "remove it")
			finding(t, r, "lock files", Error, "-migrate.lock "+odd.wants, "no start can migrate")
		})
	}
}

func TestALockFileThatAllMayRead(t *testing.T) {
	t.Parallel()
	s := provable(t)
	finding(t, examined(s.Path()), "lock files", OK, "only who may write")
	for _, suffix := range []string{"-lease", "-migrate.lock"} {
		require.NoError(t, os.WriteFile(s.Path()+"-migrate.lock", nil, 0o600))
		require.NoError(t, os.Chmod(s.Path()+suffix, 0o644))
		r := examined(s.Path())
		finding(t, r, "lock files", Warning, "app.db"+suffix, "may not write", "chmod 600")
		assert.NotContains(t, text(r), "only who may write the database can lock")
		require.NoError(t, os.Chmod(s.Path()+suffix, 0o600))
	}
}

func TestAWriterThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	s := newDatabase(t)
	conn, err := connect(t, s.Path()).Conn(bg)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(bg, `BEGIN IMMEDIATE`)
	require.NoError(t, err)
	limits := usual
	limits.longWrite = 50 * time.Millisecond
	r := examine(bg, s.Path(), limits)
	finding(t, r, "writers", Warning, "write transaction open",
		fmt.Sprintf("pid %d (", os.Getpid()))
	_, err = conn.ExecContext(bg, `ROLLBACK`)
	require.NoError(t, err)
	finding(t, examine(bg, s.Path(), limits), "writers", OK)
}

func TestPermissions(t *testing.T) {
	missing.Root(t)
	t.Parallel()
	finding(t, examined(closed(t)), "permissions", Note, "root")
	root, err := os.MkdirTemp("", "doctor") // t.TempDir is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	require.NoError(t, os.Chmod(root, 0o755))
	for name, tc := range map[string]struct {
		folder, file os.FileMode
		check        string
		level        Level
		says         []string
	}{
		"unreadable": {0o777, 0o600, "permissions", Error,
			[]string{"65534", "cannot read it", "owner 0", "-rw-------"}},
		"unwritable": {0o777, 0o644, "permissions", Warning,
			[]string{"cannot write the file", "-rw-r--r--"}},
		"folder": {0o755, 0o666, "permissions", Warning, []string{"cannot write the folder"}},
		"closed": {0o700, 0o666, "path", Error, []string{"permission denied"}},
		"open":   {0o777, 0o666, "permissions", OK, []string{"can read and write"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, name)
			path := filepath.Join(dir, "app.db")
			require.NoError(t, os.Mkdir(dir, 0o700))
			content, err := os.ReadFile(closed(t))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, content, 0o600))
			require.NoError(t, os.Chmod(path, tc.file))
			require.NoError(t, os.Chmod(dir, tc.folder))
			r, err := child(t, "nobody", nil, path)
			require.NoError(t, err)
			finding(t, r, tc.check, tc.level, tc.says...)
		})
	}
	t.Run("what a shell of root left behind", func(t *testing.T) {
		dir := filepath.Join(root, "left")
		path := filepath.Join(dir, "app.db")
		require.NoError(t, os.Mkdir(dir, 0o777))
		s, err := sqlite.Open(bg, path)
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Migrate(bg))
		require.NoError(t, os.Chown(path, 65534, 65534))
		finding(t, examined(path), "permissions", Warning, "app.db-wal", "another owner",
			"chown")
	})
}

func TestASingleFileThatIsMounted(t *testing.T) {
	t.Parallel()
	outside, inside := closed(t), filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(inside, nil, 0o600)) // the mount point
	r := mounted(t, outside, inside)
	finding(t, r, "file system", Error, "single file mounted", "mount the folder")
}

// mounted is the report on where, of a child that has what mounted there.
func mounted(t testing.TB, what, where string) Report {
	t.Helper()
	r, err := child(t, "mounted", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
		what, where)
	var exit *exec.ExitError
	if errors.Is(err, os.ErrPermission) || errors.As(err, &exit) && exit.ExitCode() == 4 {
		missing.Skip(t, "the right to mount (CAP_SYS_ADMIN)")
	}
	require.NoError(t, err)
	return r
}

func TestFileSystems(t *testing.T) {
	t.Parallel()
	judged := func(m mount) Report {
		return found(func(f *findings) { judgeMount(f, m) })
	}
	rw, room := []string{"rw", "relatime"}, int64(1<<30)
	finding(t, judged(mount{"/data", "ext4", "/dev/sda1", rw, room}), "file system", OK,
		"ext4, mounted at /data")
	finding(t, judged(mount{"/data", "ext4", "/dev/sda1", rw, 2 << 20}), "file system", Warning,
		"2.0 MiB are free")
	finding(t, judged(mount{"/data", "ext4", "/dev/sda1", rw, 0}), "file system", Error,
		"0 bytes are free", "without room")
	finding(t, judged(mount{"/data", "fuse.sshfs", "host:/", rw, room}), "file system", Warning,
		"host:/", "local disk")
	finding(t, judged(mount{"/data", "virtiofs", "share", rw, room}), "file system", Warning)
	finding(t, judged(mount{"/tmp", "tmpfs", "tmpfs", rw, room}), "file system", Note,
		"after a reboot")
	finding(t, judged(mount{"/", "overlay", "overlay", rw, room}), "file system", Note, "volume")
	for _, flags := range [][]string{{"ro"}, {"rw", "emergency_ro"}} {
		finding(t, judged(mount{"/data", "ext4", "/dev/sda1", flags, room}), "file system",
			Error, "read-only")
	}

	m, ok := parseMount(
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root ro,errors=continue", "36")
	require.True(t, ok)
	assert.Equal(t, mount{"/mnt2", "ext3", "/dev/root",
		[]string{"rw", "noatime", "ro", "errors=continue"}, 0}, m)
	_, ok = parseMount("36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw", "3")
	assert.False(t, ok)
	m, ok = mountOf(t.TempDir())
	assert.True(t, ok)
	assert.Positive(t, m.free)
}

// Some file systems tell no size: they are not full.
func TestAFileSystemWithoutASizeIsNotFull(t *testing.T) {
	assert.EqualValues(t, math.MaxInt64, free(unix.Statfs_t{Bsize: 4096, Frsize: 4096}))
	assert.Zero(t, free(unix.Statfs_t{Blocks: 10, Bsize: 4096, Frsize: 4096}))
	assert.EqualValues(t, 2*512, free(unix.Statfs_t{Blocks: 10, Bavail: 2, Bsize: 4096, Frsize: 512}))
}
