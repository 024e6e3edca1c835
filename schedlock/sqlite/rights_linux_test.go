package sqlite

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/leasefile"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func init() {
	child.Modes["store lead"] = childLead
	child.Modes["lease reader"] = childReader
}

// Two users without rights of their own.
const (
	stranger = 65534
	appUser  = 1234
	appGroup = 2345
)

// become makes the child another user.
func become(uid, gid int) {
	child.Check(syscall.Setgroups(nil))
	child.Check(syscall.Setgid(gid))
	child.Check(syscall.Setuid(uid))
}

// childLead leads as a user until its stdin ends, or says why it cannot. A third
// argument is its TTL.
func childLead() {
	if uid, err := strconv.Atoi(os.Args[2]); err == nil && uid != 0 {
		become(uid, appGroup)
	}
	store, err := Opener(os.Args[1])(bg)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	opts := []schedlock.Option{schedlock.WithLogger(slog.New(slog.DiscardHandler))}
	if len(os.Args) > 3 {
		ttl, err := time.ParseDuration(os.Args[3])
		child.Check(err)
		opts = append(opts, schedlock.WithTTL(ttl), schedlock.WithHeartbeatInterval(ttl/5))
	}
	lock, err := schedlock.New(store, opts...)
	child.Check(err)
	if _, err := lock.Acquire(bg); err != nil {
		fmt.Println("acquire:", err)
		return
	}
	fmt.Println("leads", store.(*Store).ProofOfDeath())
	io.Copy(io.Discard, os.Stdin)
}

// childReader is a user who may read the folder and puts read locks wherever he
// can; with a third argument, he came when the file was open to all.
func childReader() {
	path := os.Args[1] + "-lease"
	open := func() int {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			fmt.Println("open:", err)
			os.Exit(0)
		}
		return fd
	}
	fd := -1
	if len(os.Args) > 2 {
		fd = open()
	}
	become(stranger, stranger)
	if fd < 0 {
		fd = open()
	}
	lock := func(command int, start, length int64) (unix.Flock_t, error) {
		l := unix.Flock_t{Type: unix.F_RDLCK, Start: start, Len: length}
		err := unix.FcntlFlock(uintptr(fd), command, &l)
		return l, err
	}
	const first, end = leasefile.First, leasefile.End
	if _, err := lock(unix.F_OFD_SETLK, first, end-first); err != nil {
		// Somebody has a byte: all before it, and all behind.
		held, err := lock(unix.F_OFD_GETLK, first, end-first)
		child.Check(err)
		_, err = lock(unix.F_OFD_SETLK, first, held.Start-first)
		child.Check(err)
		_, err = lock(unix.F_OFD_SETLK, held.Start+1, end-held.Start-1)
		child.Check(err)
	}
	fmt.Println("locked")
	io.Copy(io.Discard, os.Stdin)
}

func needRoot(t *testing.T) {
	t.Helper()
	missing.Root(t)
}

// readableByAll is a database that all may read, in a folder that all may enter.
func readableByAll(t *testing.T) string {
	t.Helper()
	needRoot(t)
	path := leasefiletest.NewDatabase(t)
	leasefiletest.LetIn(t, filepath.Dir(path))
	raw, err := template()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw, 0o644))
	require.NoError(t, os.Chmod(path, 0o644))
	return path
}

// takesOver fails unless a replica of this process leads long before the TTL. It
// returns what that replica logs.
func takesOver(t *testing.T, path string) string {
	t.Helper()
	s, log := mustOpen(t, path), &strings.Builder{}
	lock, err := schedlock.New(s, schedlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	require.NoError(t, err)
	began := time.Now()
	lease, err := lock.Acquire(bg)
	require.NoError(t, err)
	assert.Less(t, time.Since(began), 30*time.Second, "the TTL has decided")
	require.NoError(t, lease.Release(bg))
	return log.String()
}

func TestWhoMayOnlyReadDelaysNoTakeOver(t *testing.T) {
	t.Run("he comes first", func(t *testing.T) {
		path := readableByAll(t)
		require.NoError(t, mustOpen(t, path).ProofOfDeath())
		reader := child.Start(t, "lease reader", path).Line()
		leader := child.Start(t, "store lead", path, "0")
		require.Equal(t, "leads <nil>", leader.Line())
		assert.Contains(t, reader, "permission denied")
		require.NoError(t, leader.Cmd.Process.Kill())
		leader.Cmd.Wait()
		takesOver(t, path)
	})
	t.Run("he has opened a file of an earlier release", func(t *testing.T) {
		path := readableByAll(t)
		leader := child.Start(t, "store lead", path, "0")
		require.Equal(t, "leads <nil>", leader.Line())
		require.Equal(t, "locked", child.Start(t, "lease reader", path, "early").Line())
		require.NoError(t, leader.Cmd.Process.Kill())
		leader.Cmd.Wait()
		assert.Contains(t, takesOver(t, path),
			"a process that may only read it keeps others from locking it")
	})
}

func TestAfterAStartByRootTheUserOfTheDatabaseLeads(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o664} {
		t.Run(mode.String(), func(t *testing.T) {
			path := readableByAll(t)
			require.NoError(t, os.Chmod(path, mode))
			require.NoError(t, os.Chown(path, appUser, appGroup))
			require.NoError(t, os.Chown(filepath.Dir(path), appUser, appGroup))
			root := child.Start(t, "store lead", path, "0")
			require.Equal(t, "leads <nil>", root.Line())
			require.NoError(t, root.Cmd.Process.Kill())
			root.Cmd.Wait()
			for suffix, want := range map[string]fs.FileMode{
				"-wal": mode, "-shm": mode, "-lease": mode&0o222 | mode&0o222<<1,
			} {
				info, err := os.Lstat(path + suffix)
				require.NoError(t, err, suffix)
				assert.Equal(t, want, info.Mode(), suffix)
				st := info.Sys().(*syscall.Stat_t)
				assert.Equal(t, []uint32{appUser, appGroup}, []uint32{st.Uid, st.Gid}, suffix)
			}
			app := child.Start(t, "store lead", path, strconv.Itoa(appUser))
			require.Equal(t, "leads <nil>", app.Line())
		})
	}
}

// What root's start puts right lies in a folder of somebody else.
func TestRootGivesAwayNothingButTheDatabasesOwnFiles(t *testing.T) {
	path := readableByAll(t)
	require.NoError(t, os.Chown(path, appUser, appGroup))
	dir := filepath.Dir(path)
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, nil, 0o600))
	kept := mustOpen(t, path) // so that the -wal stays
	look(t, kept)
	require.NoError(t, os.WriteFile(secret+"2", nil, 0o600))
	require.NoError(t, os.Link(secret, path+"-wal.odd"))
	require.NoError(t, os.Symlink(secret+"2", path+"-shm.odd"))
	// In one step: kept watches its files and may put one back that is missing.
	for _, suffix := range []string{"-wal", "-shm"} {
		require.NoError(t, os.Link(path+suffix, path+suffix+".away"))
		require.NoError(t, os.Rename(path+suffix+".odd", path+suffix))
	}
	kept.followSides()
	for _, file := range []string{secret, secret + "2"} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), file)
		assert.Zero(t, info.Sys().(*syscall.Stat_t).Uid, file)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		require.NoError(t, os.Rename(path+suffix+".away", path+suffix))
	}
}

// Here nobody puts anything else in the place of the file while it is looked at.
func TestRootGivesAwayNoFileThatHasAnotherName(t *testing.T) {
	path := readableByAll(t)
	var db unix.Stat_t
	require.NoError(t, unix.Stat(path, &db))
	db.Uid, db.Gid, db.Mode = appUser, appGroup, unix.S_IFREG|0o666
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, nil, 0o600))
	for name, put := range map[string]func(from, to string) error{
		"a hard link": os.Link, "a symbolic link": os.Symlink,
	} {
		require.NoError(t, put(secret, path+"-wal"), name)
		followSide(path+"-wal", &db)
		info, err := os.Stat(secret)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), name)
		assert.Zero(t, info.Sys().(*syscall.Stat_t).Uid, name)
		require.NoError(t, os.Remove(path+"-wal"))
	}
}

// A file that was a name here only until it was opened has one name again, its own.
func TestRootGivesAwayNothingThatWasLinkedForAnInstant(t *testing.T) {
	path := readableByAll(t)
	var db unix.Stat_t
	require.NoError(t, unix.Stat(path, &db))
	db.Uid, db.Gid, db.Mode = appUser, appGroup, unix.S_IFREG|0o666
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, nil, 0o600))
	stop := make(chan struct{})
	var switching sync.WaitGroup
	switching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Link(secret, path+"-wal")
				_ = os.Remove(path + "-wal")
			}
		}
	})
	for range 2000 {
		followSide(path+"-wal", &db)
	}
	close(stop)
	switching.Wait()
	info, err := os.Stat(secret)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	assert.Zero(t, info.Sys().(*syscall.Stat_t).Uid)
}

// odd is what may lie where the lease file belongs, and what is said of it.
var odd = map[string]struct {
	put   func(path string) error
	wants string
}{
	"a symbolic link": {func(path string) error { return os.Symlink("/etc/hostname", path) },
		"is a symbolic link, which is not followed"},
	"a link to itself": {func(path string) error { return os.Symlink(path, path) },
		"is a symbolic link, which is not followed"},
	"a named pipe": {func(path string) error { return unix.Mkfifo(path, 0o666) },
		"is a named pipe, which is not waited for"},
	"a folder": {func(path string) error { return os.Mkdir(path, 0o755) }, "is a folder"},
	"a socket": {func(path string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}, "is a socket"},
	"a foreign file": {func(path string) error { return os.WriteFile(path, []byte("x"), 0o644) },
		"is empty or was not made by schedlock"},
	"an empty file": {func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"is empty or was not made by schedlock"},
}

// With an odd file in its way a replica leads all the same, says once why deaths
// cannot be proven, and proves them again when the file is gone.
func TestAnOddFileInTheWayOfTheLeaseFile(t *testing.T) {
	for name, o := range odd {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Dir(leasefiletest.NewDatabase(t))) // the name of a socket is short
			path, err := filepath.Abs("app.db")
			require.NoError(t, err)
			require.NoError(t, o.put("app.db-lease"))
			log := &strings.Builder{}
			s, err := Open(bg, path)
			require.NoError(t, err)
			cleanUp(t, s)
			require.NoError(t, s.Migrate(bg))
			require.ErrorContains(t, s.ProofOfDeath(), path+"-lease "+o.wants)
			lock, err := schedlock.New(s,
				schedlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
			require.NoError(t, err)
			for range 2 {
				lease, err := lock.Acquire(bg)
				require.NoError(t, err)
				assert.ErrorContains(t, lock.Status().Unproven, o.wants)
				assert.Contains(t, lock.Status().Reason, "deaths cannot be proven here")
				assert.Contains(t, look(t, s).Row.TTLOnly, o.wants)
				require.NoError(t, lease.Release(bg))
			}
			assert.Equal(t, 1, strings.Count(log.String(), o.wants), log.String())
			assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())

			require.NoError(t, os.RemoveAll(path+"-lease"))
			for range 2 {
				lease, err := lock.Acquire(bg)
				require.NoError(t, err)
				assert.NoError(t, lock.Status().Unproven)
				assert.Equal(t, driver.SignAlive, look(t, s).Sign)
				require.NoError(t, lease.Release(bg))
			}
			assert.Equal(t, 1, strings.Count(log.String(), "deaths can be proven again"),
				log.String())
		})
	}
}

func TestAStandbySaysThatItCanProveNoDeath(t *testing.T) {
	path := leasefiletest.NewDatabase(t)
	require.NoError(t, unix.Mkfifo(path+"-lease", 0o666))
	a, b := mustOpen(t, path), mustOpen(t, path)
	require.NoError(t, a.Migrate(bg))
	acquire(t, a, nobody)
	log := &lines{}
	lock, err := schedlock.New(b, schedlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))),
		schedlock.WithHeartbeatInterval(100*time.Millisecond))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bg)
	waited := make(chan error, 1)
	go func() { _, err := lock.Wait(ctx); waited <- err }()
	assert.Eventually(t, func() bool {
		return log.count("is a named pipe") > 0
	}, 20*time.Second, 5*time.Millisecond)
	looks := func() bool { return lock.Status().State == schedlock.SelfStandby }
	require.Eventually(t, looks, 20*time.Second, 5*time.Millisecond)
	assert.Contains(t, lock.Status().Reason, "deaths cannot be proven here")
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	assert.Equal(t, 1, log.count("is a named pipe"))
}

// lines are what was logged.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}
