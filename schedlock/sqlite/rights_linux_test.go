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
	"example.com/schedlock/internal/logtest"
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

// leads starts another process, which leads with a proof of death.
func leads(t *testing.T, args ...string) *child.Process {
	t.Helper()
	p := child.Start(t, "store lead", args...)
	require.Equal(t, "leads <nil>", p.Line())
	return p
}

func kill(t *testing.T, p *child.Process) {
	t.Helper()
	require.NoError(t, p.Cmd.Process.Kill())
	p.Cmd.Wait()
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

// readableByAll is a database that all may read, in a folder that all may enter.
func readableByAll(t *testing.T) string {
	t.Helper()
	missing.Root(t)
	path := leasefiletest.NewDatabase(t)
	leasefiletest.LetIn(t, filepath.Dir(path))
	putDatabase(t, path)
	require.NoError(t, os.Chmod(path, 0o644))
	return path
}

// takesOver fails unless a replica of this process leads long before the TTL. It
// returns what that replica logs.
func takesOver(t *testing.T, path string) string {
	t.Helper()
	log := &logtest.Log{}
	lock := newLock(t, mustOpen(t, path), schedlock.WithLogger(log.Logger()))
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
		leader := leads(t, path, "0")
		assert.Contains(t, reader, "permission denied")
		kill(t, leader)
		takesOver(t, path)
	})
	t.Run("he has opened a file of an earlier release", func(t *testing.T) {
		path := readableByAll(t)
		leader := leads(t, path, "0")
		require.Equal(t, "locked", child.Start(t, "lease reader", path, "early").Line())
		kill(t, leader)
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
			kill(t, leads(t, path, "0"))
			for suffix, want := range map[string]fs.FileMode{
				"-wal": mode, "-shm": mode, "-lease": mode&0o222 | mode&0o222<<1,
			} {
				info, err := os.Lstat(path + suffix)
				require.NoError(t, err, suffix)
				assert.Equal(t, want, info.Mode(), suffix)
				st := info.Sys().(*syscall.Stat_t)
				assert.Equal(t, []uint32{appUser, appGroup}, []uint32{st.Uid, st.Gid}, suffix)
			}
			leads(t, path, strconv.Itoa(appUser))
		})
	}
}

// secretOfRoot returns the name of a -wal file in a folder of somebody else, a file of
// root's, and what looks whether that is root's still.
func secretOfRoot(t *testing.T) (wal, secret string, kept func(name string)) {
	t.Helper()
	secret = filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, nil, 0o600))
	return readableByAll(t) + "-wal", secret, func(name string) {
		t.Helper()
		info, err := os.Stat(secret)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), name)
		assert.Zero(t, info.Sys().(*syscall.Stat_t).Uid, name)
	}
}

// ofApp is the state of a database of the app's user.
var ofApp = unix.Stat_t{Uid: appUser, Gid: appGroup, Mode: unix.S_IFREG | 0o666}

func TestRootGivesAwayNoFileThatHasAnotherName(t *testing.T) {
	wal, secret, kept := secretOfRoot(t)
	for name, put := range map[string]func(from, to string) error{
		"a hard link": os.Link, "a symbolic link": os.Symlink,
	} {
		require.NoError(t, put(secret, wal), name)
		followSide(wal, &ofApp)
		kept(name)
		require.NoError(t, os.Remove(wal))
	}
}

// A file that was a name here only until it was opened has one name again, its own.
func TestRootGivesAwayNothingThatWasLinkedForAnInstant(t *testing.T) {
	missing.Long(t, "tries 2,000 times")
	wal, secret, kept := secretOfRoot(t)
	stop := make(chan struct{})
	var switching sync.WaitGroup
	switching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Link(secret, wal)
				_ = os.Remove(wal)
			}
		}
	})
	for range 2000 {
		followSide(wal, &ofApp)
	}
	close(stop)
	switching.Wait()
	kept("linked for an instant")
}

// With an odd file in its way a replica leads all the same, says once why deaths
// cannot be proven, and proves them again when the file is gone. What else may lie
// there is tested in package leasefile.
func TestAnOddFileInTheWayOfTheLeaseFile(t *testing.T) {
	for wants, put := range map[string]func(path string) error{
		"is a named pipe, which is not waited for": func(path string) error {
			return unix.Mkfifo(path, 0o666)
		},
		"is empty or was not made by schedlock": func(path string) error {
			return os.WriteFile(path, nil, 0o644)
		},
	} {
		t.Run(wants, func(t *testing.T) {
			path := leasefiletest.NewDatabase(t)
			require.NoError(t, put(path+"-lease"))
			log := &logtest.Log{}
			s := mustOpen(t, path)
			require.NoError(t, s.Migrate(bg))
			require.ErrorContains(t, s.ProofOfDeath(), path+"-lease "+wants)
			lock := newLock(t, s, schedlock.WithLogger(log.Logger()))
			for range 2 {
				lease, err := lock.Acquire(bg)
				require.NoError(t, err)
				assert.ErrorContains(t, lock.Status().Unproven, wants)
				assert.Contains(t, lock.Status().Reason, "deaths cannot be proven here")
				assert.Contains(t, look(t, s).Row.TTLOnly, wants)
				require.NoError(t, lease.Release(bg))
			}
			assert.Equal(t, 1, log.Count(wants), log)
			assert.Equal(t, 1, log.Count("level=WARN"), log)

			require.NoError(t, os.RemoveAll(path+"-lease"))
			for range 2 {
				lease, err := lock.Acquire(bg)
				require.NoError(t, err)
				assert.NoError(t, lock.Status().Unproven)
				assert.Equal(t, driver.SignAlive, look(t, s).Sign)
				require.NoError(t, lease.Release(bg))
			}
			assert.Equal(t, 1, log.Count("deaths can be proven again"), log)
		})
	}
}

func TestAStandbySaysThatItCanProveNoDeath(t *testing.T) {
	path := leasefiletest.NewDatabase(t)
	require.NoError(t, unix.Mkfifo(path+"-lease", 0o666))
	a, b := mustOpen(t, path), mustOpen(t, path)
	require.NoError(t, a.Migrate(bg))
	acquire(t, a)
	log := &logtest.Log{}
	lock := newLock(t, b, schedlock.WithLogger(log.Logger()),
		schedlock.WithHeartbeatInterval(100*time.Millisecond))
	ctx, cancel := context.WithCancel(bg)
	waited := make(chan error, 1)
	go func() { _, err := lock.Wait(ctx); waited <- err }()
	assert.Eventually(t, func() bool {
		return log.Count("is a named pipe") > 0
	}, 20*time.Second, 5*time.Millisecond)
	looks := func() bool { return lock.Status().State == schedlock.SelfStandby }
	require.Eventually(t, looks, 20*time.Second, 5*time.Millisecond)
	assert.Contains(t, lock.Status().Reason, "deaths cannot be proven here")
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	assert.Equal(t, 1, log.Count("is a named pipe"))

	require.NoError(t, os.Remove(path+"-lease"))
	c := mustOpen(t, path)
	needProof(t, c)
	assert.Contains(t, look(t, c).Row.TTLOnly, "the holder could not lock the lease file")
	require.NoError(t, os.Rename(path+"-lease", path+"-lease-aside"))
	require.NoError(t, unix.Mkfifo(path+"-lease", 0o666))
	assert.Contains(t, look(t, c).Row.TTLOnly, "is a named pipe", "each look tells anew")
	require.NoError(t, os.Rename(path+"-lease-aside", path+"-lease"))
	look(t, c)
	assert.NoError(t, c.ProofOfDeath())
}
