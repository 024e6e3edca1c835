package sqlite

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
)

// opensOf counts how often the folder itself is opened: the driver does so where it syncs a
// -wal file a second time, at the first sync of a connection.
func opensOf(t *testing.T, folder string, during func()) (n int) {
	t.Helper()
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		missing.Skip(t, "inotify: %v", err)
	}
	defer unix.Close(events)
	_, err = unix.InotifyAddWatch(events, folder, unix.IN_OPEN)
	require.NoError(t, err)
	during()
	buf := make([]byte, 64<<10)
	size, err := unix.Read(events, buf)
	if err == unix.EAGAIN {
		return 0
	}
	require.NoError(t, err)
	for at := 0; at < size; at += unix.SizeofInotifyEvent + int(buf[at+12]) {
		if buf[at+7]&(unix.IN_ISDIR>>24) != 0 && buf[at+12] == 0 { // it has no name in the folder
			n++
		}
	}
	return n
}

func TestAStandbyPreparesWhatItWillNeed(t *testing.T) {
	for range 2 {
		leader := newStore(t)
		held := acquire(t, leader)
		standby := mustOpen(t, leader.Path())
		view := look(t, standby)
		compiled := func() int { return len(standby.stmts) + len(standby.rows) }
		require.Equal(t, 1, compiled(), "the look")
		release(t, leader, held)
		standby.AwaitHint(bg, view) // the lock is free already
		prepared := compiled()
		require.Greater(t, prepared, 1)

		folder := filepath.Dir(leader.Path())
		require.Zero(t, opensOf(t, folder, func() {
			ref := acquire(t, standby)
			_, err := standby.Heartbeat(bg, ref, driver.StateLeading)
			require.NoError(t, err)
			release(t, standby, ref)
		}))
		require.Equal(t, prepared, compiled(), "neither the take-over nor the release compiles any")

		cold := mustOpen(t, leader.Path())
		require.Equal(t, 1, opensOf(t, folder, func() {
			acquire(t, cold)
		}), "whoever has not stood by syncs twice")
	}
}

// A user of the system may have 128 instances of inotify, so a hundred standbys of one user have
// events only if none of them takes two.
func TestAStandbyTakesOneInstanceOfInotify(t *testing.T) {
	instances := func() (n int) {
		open, err := filepath.Glob("/proc/self/fd/*")
		require.NoError(t, err)
		for _, fd := range open {
			if to, _ := os.Readlink(fd); to == "anon_inode:inotify" {
				n++
			}
		}
		return n
	}
	before := instances()
	leader := newStore(t)
	held := acquire(t, leader)
	standby := mustOpen(t, leader.Path())
	require.Eventually(t, func() bool { return instances() == before+2 }, 20*time.Second,
		time.Millisecond, "each watches the folder of the database")
	view, woken := look(t, standby), make(chan struct{})
	go func() {
		defer close(woken)
		standby.AwaitHint(bg, view)
	}()
	require.Eventually(t, func() bool { return standby.primed.Load() }, 20*time.Second,
		time.Millisecond)
	release(t, leader, held)
	<-woken
	require.Equal(t, before+2, instances(), "and, waiting for the release, the lease file")
}

func TestAWriteThatAStandbyHasLostFailsTheNextDurableCommit(t *testing.T) {
	d := newDisk(t, filepath.Dir(unused(t)))
	leader, err := d.open("app.db")
	require.NoError(t, err)
	cleanUp(t, leader)
	held := acquire(t, leader)
	standby, err := d.open("app.db")
	require.NoError(t, err)
	cleanUp(t, standby)
	view := look(t, standby)
	release(t, leader, held)
	d.mu.Lock()
	d.failAt = d.tried + 1
	d.mu.Unlock()
	standby.AwaitHint(bg, view)
	view = look(t, standby)
	_, err = standby.Acquire(bg, claimOf(view))
	require.ErrorContains(t, err, "input/output error")
	acquire(t, standby)
}

// What is heard of the files does not wait for a tick; what else happens in the folder, and what
// SQLite writes all the time, is not heard of.
func TestAStoreHearsOfItsFilesOnly(t *testing.T) {
	path := unused(t)
	folder := filepath.Dir(path)
	link := filepath.Join(t.TempDir(), "link.db")
	require.NoError(t, os.Symlink(path, link))
	s := mustOpen(t, link)
	acquire(t, s)
	heard, told := make(chan struct{}, 1), func(channel chan struct{}, what string) {
		t.Helper()
		select {
		case <-channel:
		case <-time.After(20 * time.Second):
			t.Fatal("it hears nothing of " + what)
		}
	}
	s.listen(heard)
	other, last := filepath.Join(folder, "other"), make(chan struct{}, 1)
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	require.True(t, s.events.Add(other, inotify.Fate, last))
	_, err := s.DB().ExecContext(bg, `CREATE TABLE of_the_app (id INTEGER)`)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other+"2", nil, 0o600))
	require.NoError(t, os.Chmod(other, 0o400))
	told(last, "another file")
	require.Empty(t, heard)
	for _, suffix := range []string{"", "-wal", "-shm", "-lease"} {
		require.NoError(t, os.Chmod(path+suffix, 0o600))
		told(heard, path+suffix)
	}
	require.NoError(t, os.Rename(folder, folder+"2"))
	told(heard, "the folder")
	require.NoError(t, os.Rename(folder+"2", folder))
	told(heard, "the folder again")
	require.NoError(t, os.Remove(link))
	told(heard, "the link")
}

// Without a -wal file that is each commit of each replica's app.
func TestAStoreOnAnAppsPoolHearsNothingOfCommits(t *testing.T) {
	db := appPool(t, "file:"+filepath.Join(t.TempDir(), "app.db")+
		"?_pragma=busy_timeout(500)&_pragma=journal_mode(delete)")
	require.NoError(t, migrations.Up(bg, db, migrations.SQLite))
	s := storeOn(t, db)
	heard, last := make(chan struct{}, 1), make(chan struct{}, 1)
	s.listen(heard)
	other := s.Path() + ".other"
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	require.True(t, s.events.Add(other, inotify.Fate, last))
	_, err := db.ExecContext(bg, `CREATE TABLE of_the_app (id INTEGER)`)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(other, 0o400))
	select {
	case <-last: // what was done before was told before
	case <-time.After(20 * time.Second):
		t.Fatal("it hears nothing")
	}
	require.Empty(t, heard)
}
