package sqlite

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/schedlock"
)

// What a lease file contains; the id stands between the two.
const (
	leaseHead = "schedlock lease file, id "
	leaseTail = "\nA lock on this file shows that the leader lives. Do not delete, copy or edit it while replicas run.\n"
	leaseRand = 16 // bytes of the id
	leaseSize = len(leaseHead) + 2*leaseRand + len(leaseTail)
)

// A leaseFile watches, and takes bytes of, one lease file. All methods may be
// called concurrently. It keeps no descriptor of the file: each call goes
// through the path, so that a file that was deleted or replaced is noticed.
type leaseFile struct {
	path   string // <database path>-lease
	dbPath string

	known atomic.Pointer[leaseIdentity] // what was opened last

	awaiting sync.Mutex // held by the one await that reads events
	settling int        // its next step of leaseSettle; goes on in the next call
	watch    leaseWatch
	closing  sync.Once
	closed   chan struct{}
}

// openLeaseFile opens the lease file of a database, and makes it if it does
// not exist. dbPath must be absolute, with symbolic links resolved, and lead
// to an existing file; that file is not opened.
//
// It returns an error that wraps errors.ErrUnsupported on a file system where
// a free byte proves nothing, and an error that names the file if it cannot be
// made or is not a lease file.
func openLeaseFile(dbPath string) (*leaseFile, error) {
	f, err := findLeaseFile(dbPath)
	if err != nil {
		return nil, err
	}
	fd, _, err := f.openOrMake(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	unix.Close(fd)
	return f, nil
}

// findLeaseFile is openLeaseFile for those who only look: it makes no file, and
// leaves what is wrong with the one that is there to the probe, which then
// cannot tell.
func findLeaseFile(dbPath string) (*leaseFile, error) {
	f := &leaseFile{path: dbPath + "-lease", dbPath: dbPath, closed: make(chan struct{})}
	f.watch.start = unix.InotifyInit1
	kind, err := fsType(filepath.Dir(dbPath)) // before a file is left on a network share
	if err != nil {
		return nil, fmt.Errorf("lease file %s: statfs: %w", f.path, err)
	}
	if err := f.checkLocal(kind); err != nil {
		return nil, err
	}
	return f, nil
}

// hold takes the byte of t, and fails if it is held already. The caller writes
// the returned id into the row that bears t; if hold fails, NULL. If somebody
// has deleted the lease file a new one is made.
//
// It is cheap (some 20 µs) and does not wait. Call it inside the write
// transaction that inserts the row, so that of many replicas that campaign at
// once only one has a byte at a time; and release it after the row is gone, or
// the transaction rolled back.
func (f *leaseFile) hold(t schedlock.Token) (leaseByte, error) {
	// A writable descriptor of its own: it makes the lock ours alone, and its
	// closing wakes those who await. It is no os.File, which the garbage
	// collector would close, and so let a living holder seem dead.
	fd, id, err := f.openOrMake(unix.O_RDWR)
	if err != nil {
		return leaseByte{}, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: leaseOffset(t), Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return leaseByte{}, fmt.Errorf("lease file %s: the byte of this token is held already: %w", f.path, err)
		}
		return leaseByte{}, fmt.Errorf("lease file %s: lock a byte: %w", f.path, err)
	}
	if err := f.confirm(t, id); err != nil {
		unix.Close(fd)
		return leaseByte{}, err
	}
	release := sync.OnceValue(func() error {
		// Unlocked first: a child process that is just being started may share
		// the descriptor for a moment, and the event of the closing then comes
		// after the byte is free.
		unlock := unix.Flock_t{Type: unix.F_UNLCK, Start: lock.Start, Len: 1}
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unlock)
		return errors.Join(err, unix.Close(fd))
	})
	return leaseByte{id: id, release: release}, nil
}

// confirm makes sure that others see what we hold: else it proves nothing.
func (f *leaseFile) confirm(t schedlock.Token, id string) error {
	seen, err := f.read(t)
	if err == nil && (!seen.held || seen.id != id) {
		err = fmt.Errorf("lease file %s: a lock on it is not seen through its path: it was just replaced, or locks do not work here", f.path)
	}
	return err
}

// leaseBlink is after how long a held byte of somebody else is looked at
// again: it may have belonged to a claim that has just lost.
const leaseBlink = 5 * time.Millisecond

// probe asks which bytes are held, and takes none. Those of except do not
// count as others: a replica that has taken the byte of a new claim passes its
// token, and nothing else. (The byte of its own lost lease must count: its
// jobs may still run.) It may take 5 ms if another byte is held.
func (f *leaseFile) probe(t schedlock.Token, except ...schedlock.Token) (leaseState, error) {
	s, err := f.read(t, except...)
	if err == nil && s.others && !s.held {
		time.Sleep(leaseBlink)
		return f.read(t, except...)
	}
	return s, err
}

// read is one look, on one descriptor: what it finds belongs to the file with
// the id that it returns, whatever happens to the path meanwhile.
func (f *leaseFile) read(t schedlock.Token, except ...schedlock.Token) (s leaseState, err error) {
	fd, id, err := f.open(unix.O_RDONLY)
	if err != nil {
		return leaseState{}, err
	}
	defer unix.Close(fd)
	s.id = id
	if s.held, err = f.anyHeld(fd, leaseSpan{leaseOffset(t), 1}); err != nil {
		return leaseState{}, err
	}
	if s.held {
		return s, nil // it lives, whoever else does
	}
	// F_OFD_GETLK tells only the first lock that it finds, so the bytes that
	// do not count are left out of what is asked.
	for _, gap := range leaseGaps(append(except[:len(except):len(except)], t)...) {
		held, err := f.anyHeld(fd, gap)
		if err != nil {
			return leaseState{}, err
		}
		if s.others = held; held {
			break
		}
	}
	return s, nil
}

func (f *leaseFile) anyHeld(fd int, span leaseSpan) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: span.start, Len: span.length}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("lease file %s: ask for its locks: %w", f.path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// close ends what await needs: one that waits returns, later ones wait until
// their context ends. Bytes that are held stay held until they are released.
func (f *leaseFile) close() error {
	var err error
	f.closing.Do(func() {
		close(f.closed)
		err = f.watch.close()
	})
	return err
}

// openOrMake opens the lease file, and makes it if there is none.
func (f *leaseFile) openOrMake(mode int) (fd int, id string, err error) {
	fd, id, err = f.open(mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := f.make(); err != nil {
			return -1, "", fmt.Errorf("lease file %s cannot be made: %w", f.path, err)
		}
		fd, id, err = f.open(mode)
	}
	return fd, id, err
}

// open opens the lease file that the path leads to now, and finds out which one
// it is: the id names its random content, its inode and its birth time, so that
// a copy has another id, and so has a file that was made anew in its place.
// Nothing that a person may have put there can make it block, or be followed
// elsewhere.
func (f *leaseFile) open(mode int) (fd int, id string, err error) {
	for {
		fd, err = unix.Open(f.path, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return -1, "", fmt.Errorf("lease file: %w", &os.PathError{Op: "open", Path: f.path, Err: err})
	}
	if id, err = f.identify(fd); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, id, nil
}

// A leaseIdentity is a file whose content was read, and its id. Whoever writes
// to the file changes its ctime.
type leaseIdentity struct {
	major, minor  uint32
	ino           uint64
	born, changed unix.StatxTimestamp
	kind          int64 // of its file system
	id            string
}

func (f *leaseFile) identify(fd int) (string, error) {
	const want = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_SIZE | unix.STATX_INO | unix.STATX_CTIME | unix.STATX_BTIME
	var (
		vfs unix.Statfs_t
		stx unix.Statx_t
		buf [leaseSize]byte
	)
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, want, &stx); err != nil {
		return "", fmt.Errorf("lease file %s: statx: %w", f.path, err)
	}
	if stx.Mode&unix.S_IFMT != unix.S_IFREG || stx.Size != uint64(leaseSize) {
		return "", f.foreign()
	}
	now := leaseIdentity{major: stx.Dev_major, minor: stx.Dev_minor, ino: stx.Ino, born: stx.Btime, changed: stx.Ctime}
	known := f.known.Load()
	if known != nil {
		now.kind, now.id = known.kind, known.id
	}
	same := known != nil && now == *known
	if !same {
		// The file itself, not its folder: somebody may have mounted it there.
		if err := unix.Fstatfs(fd, &vfs); err != nil {
			return "", fmt.Errorf("lease file %s: statfs: %w", f.path, err)
		}
		now.kind = int64(uint32(vfs.Type)) //nolint:unconvert // its width differs by architecture
	}
	if err := f.checkLocal(now.kind); err != nil {
		return "", err
	}
	if stx.Mask&want != want {
		return "", fmt.Errorf("lease file %s: its file system keeps no birth time, so a copy could not be told from it: %w", f.path, errors.ErrUnsupported)
	}
	if stx.Nlink == 0 {
		return "", fmt.Errorf("lease file %s was just deleted: %w", f.path, fs.ErrNotExist)
	}
	if same {
		return known.id, nil
	}
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return "", fmt.Errorf("lease file: %w", &os.PathError{Op: "read", Path: f.path, Err: err})
	}
	random, ok := strings.CutPrefix(string(buf[:n]), leaseHead)
	if ok {
		random, ok = strings.CutSuffix(random, leaseTail)
	}
	if raw, err := hex.DecodeString(random); !ok || err != nil || len(raw) != leaseRand {
		return "", f.foreign()
	}
	now.id = fmt.Sprintf("%s-%d-%d.%09d", random, stx.Ino, stx.Btime.Sec, stx.Btime.Nsec)
	f.known.Store(&now)
	return now.id, nil
}

func (f *leaseFile) foreign() error {
	return fmt.Errorf("lease file %s is empty or was not made by schedlock, and proves nothing: stop the replicas, then remove it", f.path)
}

func (f *leaseFile) checkLocal(kind int64) error {
	if _, ok := localFS[kind]; !ok {
		return fmt.Errorf("lease file %s: file locks prove nothing on a file system of type %#x: %w", f.path, kind, errors.ErrUnsupported)
	}
	return nil
}

// make makes the file under a temporary name, complete and flushed, and links
// it into place: of many processes that do so at once one wins, and nobody
// ever sees half a file. Its owner and mode are the database file's, as those
// of SQLite's own files beside it.
func (f *leaseFile) make() (err error) {
	db, err := os.Stat(f.dbPath)
	if err != nil {
		return err
	}
	random := make([]byte, 2*leaseRand)
	rand.Read(random)
	tmp := fmt.Sprintf("%s.new-%x", f.path, random[leaseRand:])
	file, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(file, db, fmt.Sprintf("%s%x%s", leaseHead, random[:leaseRand], leaseTail))
	if err = errors.Join(err, file.Close()); err == nil {
		if err = os.Link(tmp, f.path); errors.Is(err, fs.ErrExist) {
			err = nil // another process was first
		}
	}
	if err = errors.Join(err, os.Remove(tmp)); err != nil {
		return err
	}
	// If this fails and the power goes, there will be another file with
	// another id, and the TTL decides once.
	if dir, err := os.Open(filepath.Dir(f.path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}

func fill(file *os.File, db fs.FileInfo, content string) error {
	if err := file.Chmod(db.Mode()&0o666 | 0o600); err != nil { // whatever the umask
		return err
	}
	if st, ok := db.Sys().(*syscall.Stat_t); ok {
		// Only root may give a file away; others may to a group of theirs.
		if file.Chown(int(st.Uid), int(st.Gid)) != nil {
			_ = file.Chown(-1, int(st.Gid))
		}
	}
	if _, err := file.WriteString(content); err != nil {
		return err
	}
	return file.Sync()
}
