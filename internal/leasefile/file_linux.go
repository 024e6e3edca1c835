package leasefile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/schedlock/driver"
)

// What a lease file contains; the id stands between the two.
const (
	head = "schedlock lease file, id "
	tail = "\nA lock on this file shows that the leader lives. " +
		"Do not delete, copy or edit it while replicas run.\n"
	randomSize = 16 // bytes of the id
	fileSize   = len(head) + 2*randomSize + len(tail)
)

// A File watches, and takes bytes of, one lease file. All methods may be
// called concurrently. It keeps no descriptor of the file: each call goes
// through the path, so that a file that was deleted or replaced is noticed.
type File struct {
	path   string // <database path>-lease
	dbPath string

	known atomic.Pointer[identity] // what was opened last

	awaiting sync.Mutex // held by the one Await that reads events
	settling int        // its next step of settle; goes on in the next call
	events   *inotify.Watch
	stirred  chan struct{} // by events
	closing  sync.Once
	closed   chan struct{}
}

// Open opens the lease file of a database, and makes it if it does not exist.
// dbPath must be absolute, with symbolic links resolved, and lead to an existing
// file; that file is not opened. Await is woken by events, which come until they are
// closed; nil: it polls.
//
// It returns nil and an error that wraps errors.ErrUnsupported on a file system
// where a free byte proves nothing. If the file cannot be made or is not a lease
// file, the error names it, and what is returned beside it proves nothing until
// that was mended.
func Open(dbPath string, events *inotify.Watch) (*File, error) {
	f, err := Find(dbPath, events)
	if err != nil {
		return nil, err
	}
	return f, f.prepare()
}

// prepare makes the file if there is none, and closes one that was made earlier
// to those who may not write the database: they could lock it.
func (f *File) prepare() error {
	fd, _, err := f.openOrMake(unix.O_RDONLY)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), f.path)
	defer file.Close()
	db, err := os.Stat(f.dbPath)
	if err == nil {
		filesystem.Follow(file, db)
	}
	return nil
}

// Find is Open for those who only look: it makes no file, and
// leaves what is wrong with the one that is there to the probe, which then
// cannot tell.
func Find(dbPath string, events *inotify.Watch) (*File, error) {
	f := &File{path: dbPath + "-lease", dbPath: dbPath, closed: make(chan struct{}),
		events: events, stirred: make(chan struct{}, 1)}
	kind, err := filesystem.Type(filepath.Dir(dbPath)) // before a file is left on a network share
	if err != nil {
		return nil, fmt.Errorf("lease file %s: statfs: %w", f.path, err)
	}
	if err := f.checkLocal(kind); err != nil {
		return nil, err
	}
	return f, nil
}

// Hold takes the byte of t, and fails if it is held already. The caller writes
// the returned id into the row that bears t; if Hold fails, NULL. If somebody
// has deleted the lease file a new one is made.
//
// It is cheap (some 20 µs) and does not wait. Call it inside the write
// transaction that inserts the row, so that of many replicas that campaign at
// once only one has a byte at a time; and release it after the row is gone, or
// the transaction rolled back.
func (f *File) Hold(t driver.Token) (Byte, error) {
	// A writable descriptor of its own: it makes the lock ours alone, and its
	// closing wakes those who await. It is no os.File, which the garbage
	// collector would close, and so let a living holder seem dead.
	fd, id, err := f.openOrMake(unix.O_RDWR)
	if err != nil {
		return Byte{}, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: Offset(t), Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		defer unix.Close(fd)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			if _, held, probeErr := f.lockIn(fd, Span{lock.Start, 1}); probeErr == nil && !held {
				return Byte{}, fmt.Errorf("lease file %s: a process that may only read it "+
					"keeps others from locking it: "+
					"find it with fuser or lsof, and end it: %w", f.path, err)
			}
			return Byte{},
				fmt.Errorf("lease file %s: the byte of this token is held already: %w", f.path, err)
		}
		return Byte{}, fmt.Errorf("lease file %s: lock a byte: %w", f.path, err)
	}
	if err := f.confirm(t, id); err != nil {
		unix.Close(fd)
		return Byte{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return Byte{}, fmt.Errorf("lease file %s: fstat: %w", f.path, err)
	}
	var duplicated atomic.Bool
	release := sync.OnceFunc(func() {
		// Unlocked first: a child process that is just being started may share
		// the descriptor for a moment, and the event of the closing then comes
		// after the byte is free.
		unlock := unix.Flock_t{Type: unix.F_UNLCK, Start: lock.Start, Len: 1}
		_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unlock)
		_ = unix.Close(fd)
		if duplicated.Load() { // the event would come when the last duplicate is closed
			f.stir()
		}
	})
	duplicate := func() (*os.File, error) {
		duplicated.Store(true)
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("lease file %s: duplicate a descriptor: %w", f.path, err)
		}
		return os.NewFile(uintptr(copied), f.path), nil
	}
	return Byte{ID: id, Dev: uint64(st.Dev), Ino: st.Ino, Release: release,
		Duplicate: duplicate}, nil
}

// stir wakes those who await.
func (f *File) stir() {
	if fd, _, err := f.open(unix.O_WRONLY); err == nil {
		unix.Close(fd)
	}
}

// confirm makes sure that others see what we hold: else it proves nothing.
func (f *File) confirm(t driver.Token, id string) error {
	seen, err := f.read(t)
	if err == nil && (!seen.Held || seen.ID != id) {
		err = fmt.Errorf("lease file %s: a lock on it is not seen through its path: "+
			"it was just replaced, or locks do not work here", f.path)
	}
	return err
}

// blink is after how long a held byte of somebody else is looked at
// again: it may have belonged to a claim that has just lost.
const blink = 5 * time.Millisecond

// Probe asks which bytes are held, and takes none. Those of except do not
// count: a replica that has taken the byte of a new claim passes its token, and
// nothing else but what has stopped for certain. (The byte of its own lost lease
// must count: its jobs may still run.) It may take 5 ms if another byte is held.
func (f *File) Probe(t driver.Token, except ...driver.Token) (State, error) {
	s, _, err := f.ProbeWithout(t, nil, except)
	return s, err
}

// maxDisregarded bounds how many bytes one probe leaves out.
const maxDisregarded = 100

// ProbeWithout is Probe, and asks disregard for each held byte that it finds,
// with the id of the file, whether it may be left out as that of a token. It
// returns what was left out in the end, except included.
func (f *File) ProbeWithout(t driver.Token, disregard func(id string,
	held Span) (driver.Token, bool),
	except []driver.Token) (State, []driver.Token, error) {
	left, id, blinked := except, "", false
	for {
		s, found, err := f.find(t, left...)
		if err != nil {
			return s, left, err
		}
		if s.ID != id {
			again := len(left) > len(except)
			if left, id = except, s.ID; again {
				continue // what was left out was that of another file
			}
		}
		if !s.Held && !s.Others {
			return s, left, nil
		}
		if disregard != nil && len(left) < maxDisregarded {
			if token, ok := disregard(id, found); ok {
				left = append(left[:len(left):len(left)], token)
				continue
			}
		}
		if s.Held || blinked {
			return s, left, nil
		}
		blinked = true
		time.Sleep(blink)
	}
}

// read is one look.
func (f *File) read(t driver.Token, except ...driver.Token) (State, error) {
	s, _, err := f.find(t, except...)
	return s, err
}

// find is one look, on one descriptor: what it finds belongs to the file with
// the id that it returns, whatever happens to the path meanwhile. found is a lock
// that counts, if there is one.
func (f *File) find(t driver.Token,
	except ...driver.Token) (s State, found Span, err error) {
	fd, id, err := f.open(unix.O_RDONLY)
	if err != nil {
		return State{}, found, err
	}
	defer unix.Close(fd)
	s.ID = id
	if !slices.Contains(except, t) {
		if found, s.Held, err = f.lockIn(fd, Span{Offset(t), 1}); err != nil {
			return State{}, found, err
		}
		if s.Held {
			return s, found, nil // it lives, whoever else does
		}
	}
	// F_OFD_GETLK tells only the first lock that it finds, so the bytes that
	// do not count are left out of what is asked.
	for _, gap := range gapsBetween(append(except[:len(except):len(except)], t)...) {
		found, s.Others, err = f.lockIn(fd, gap)
		if err != nil {
			return State{}, found, err
		}
		if s.Others {
			break
		}
	}
	return s, found, nil
}

// lockIn returns a lock on a part of the span, with all that it covers, if there
// is one.
func (f *File) lockIn(fd int, span Span) (found Span, held bool, err error) {
	// As if for a read lock: then the locks of those who may only read do not
	// count.
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: span.Start, Len: span.Length}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err != nil {
		return found, false, fmt.Errorf("lease file %s: ask for its locks: %w", f.path, err)
	}
	return Span{lock.Start, lock.Len}, lock.Type != unix.F_UNLCK, nil
}

// Close ends what Await needs: one that waits returns, later ones wait until
// their context ends. Bytes that are held stay held until they are released.
func (f *File) Close() { f.closing.Do(func() { close(f.closed) }) }

// openOrMake opens the lease file, and makes it if there is none.
func (f *File) openOrMake(mode int) (fd int, id string, err error) {
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
func (f *File) open(mode int) (fd int, id string, err error) {
	for {
		fd, err = unix.Open(f.path,
			mode|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		if odd := f.odd(); odd != nil {
			return -1, "", odd
		}
		return -1, "", fmt.Errorf("lease file: %w", &os.PathError{Op: "open",
			Path: f.path, Err: err})
	}
	if id, err = f.identify(fd); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, id, nil
}

// An identity is a file whose content was read, and its id. Whoever writes
// to the file changes its ctime.
type identity struct {
	major, minor  uint32
	ino           uint64
	born, changed unix.StatxTimestamp
	kind          int64 // of its file system
	id            string
}

func (f *File) identify(fd int) (string, error) {
	const want = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_SIZE | unix.STATX_INO |
		unix.STATX_CTIME | unix.STATX_BTIME
	var (
		vfs unix.Statfs_t
		stx unix.Statx_t
		buf [fileSize]byte
	)
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, want, &stx); err != nil {
		return "", fmt.Errorf("lease file %s: statx: %w", f.path, err)
	}
	if stx.Mode&unix.S_IFMT != unix.S_IFREG || stx.Size != uint64(fileSize) {
		return "", f.foreign()
	}
	now := identity{major: stx.Dev_major, minor: stx.Dev_minor, ino: stx.Ino, born: stx.Btime,
		changed: stx.Ctime}
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
		now.kind = int64(uint32(vfs.Type)) // its width differs by architecture
	}
	if err := f.checkLocal(now.kind); err != nil {
		return "", err
	}
	if stx.Mask&want != want {
		return "", fmt.Errorf("lease file %s: its file system keeps no birth time, "+
			"so a copy could not be told from it: %w", f.path, errors.ErrUnsupported)
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
	random, ok := strings.CutPrefix(string(buf[:n]), head)
	if ok {
		random, ok = strings.CutSuffix(random, tail)
	}
	if raw, err := hex.DecodeString(random); !ok || err != nil || len(raw) != randomSize {
		return "", f.foreign()
	}
	now.id = fmt.Sprintf("%s-%d:%d-%d-%d.%09d", random, stx.Dev_major, stx.Dev_minor, stx.Ino,
		stx.Btime.Sec, stx.Btime.Nsec)
	f.known.Store(&now)
	return now.id, nil
}

// odd says what lies where the file belongs if that is no file at all.
func (f *File) odd() error {
	if info, err := os.Lstat(f.path); err == nil && !info.Mode().IsRegular() {
		_, err = filesystem.CheckRegular(f.path)
		return fmt.Errorf("lease file %w", err)
	}
	return nil
}

func (f *File) foreign() error {
	if odd := f.odd(); odd != nil {
		return odd
	}
	return fmt.Errorf("lease file %s is empty or was not made by schedlock, and proves nothing: "+
		"stop the replicas, then remove it", f.path)
}

func (f *File) checkLocal(kind int64) error {
	if _, ok := filesystem.Local[kind]; !ok {
		return fmt.Errorf("lease file %s: file locks prove nothing on a file system of type %#x: "+
			"%w", f.path, kind, errors.ErrUnsupported)
	}
	return nil
}

// make makes the file whole: nobody ever sees half a file.
func (f *File) make() error {
	random := make([]byte, randomSize)
	rand.Read(random)
	if err := filesystem.Make(f.path, f.dbPath, fmt.Sprintf("%s%x%s",
		head, random, tail)); err != nil {
		return err
	}
	// If this fails and the power goes, there will be another file with
	// another id, and the TTL decides once.
	_ = filesystem.SyncFolder(filepath.Dir(f.path))
	return nil
}
