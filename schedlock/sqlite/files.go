package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/schedlock/driver"
)

// databaseFiles are the files of one database as they were opened: the database
// file, and what SQLite keeps beside it in WAL mode. All of them are found by
// path, and SQLite never looks whether what it has open is still what others
// will find: two processes with different -wal or -shm files read and write two
// databases, and each has a lock row of its own.
type databaseFiles struct {
	given string // the path that the app gave, absolute
	path  string // that path, symbolic links resolved: all is opened by this one
	file  fileID // what it led to
	owned bool   // the connections are ours: they are opened anew

	unsaved atomic.Pointer[UnsavedError] // what was committed to a removed -wal file is lost

	readOnly bool // for a look: nothing is locked that need not be, and any setting will do

	mu   sync.Mutex // guards the counters of the sets, and what set points to
	sets atomic.Pointer[fileSet]
}

// A fileSet is what connections have in common that read and write one
// database: they have the same -wal and -shm files open. It lasts until it is
// lost, or until the last of them is closed: then SQLite itself may remove the
// two files, and the next connection makes new ones.
type fileSet struct {
	beside atomic.Pointer[besideFiles] // nil: not known, or not in WAL mode
	seen   atomic.Pointer[fileStat]    // the database file when all was last in place
	lost   atomic.Pointer[FileChangedError]
	gone   chan struct{} // closed when it is lost

	conns   int // that are open, or being opened
	joined  int // of those the ones that have read, and so have the files open
	leaving int // of those the ones that are being closed
}

// besideFiles says which files lie beside the database file, or are open.
type besideFiles struct{ wal, shm fileID }

// fileStat is what one look at the database file tells.
type fileStat struct {
	fileID
	links    uint64 // names that the file has; 0: not known
	size     int64
	modified time.Time
}

func identify(path string) (fileID, error) {
	stat, err := examineFile(path)
	return stat.fileID, err
}

func exists(path string) bool {
	_, err := examineFile(path)
	return err == nil
}

// findFiles finds the database file that a path leads to, and refuses it where
// two replicas that share it could both come to lead. With a *LinksError
// it returns what it has found all the same.
func findFiles(path string) (*databaseFiles, error) {
	given, resolved, err := resolve(path)
	if err != nil {
		return nil, err
	}
	stat, err := examineFile(resolved)
	if err == nil {
		err = checkLength(resolved)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", resolved, err)
	}
	if err := filesystem.Check(resolved); err != nil {
		return nil, err
	}
	f := &databaseFiles{given: given, path: resolved, file: stat.fileID}
	f.sets.Store(newFileSet())
	if stat.links > 1 {
		return f, &LinksError{Path: resolved, Links: stat.links}
	}
	return f, nil
}

// syncFolder is replaced by tests that cut the power.
var syncFolder = filesystem.SyncFolder

// syncNames makes durable that the database file and the -wal file beside it are what
// their names lead to. SQLite does so before it first relies on a -wal file, but
// ncruces/go-sqlite3 v0.35.6 syncs the file a second time there, and not its folder (vfs,
// vfsFile.Sync). After a power cut the name could then lead nowhere, and what was
// committed is lost, or to an older -wal file, which spoils the database. Whoever else has
// made the file: it is done before anything is committed to it here.
func (f *databaseFiles) syncNames() error {
	if f.readOnly {
		return nil
	}
	if err := syncFolder(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("database %s: %w", f.path, err)
	}
	return nil
}

func newFileSet() *fileSet { return &fileSet{gone: make(chan struct{})} }

// set returns the present set. One that is lost is followed by a new one when
// its last connection is closed.
func (f *databaseFiles) set() *fileSet {
	set := f.sets.Load()
	if set.lost.Load() == nil || !f.owned {
		return set
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if set = f.sets.Load(); set.lost.Load() != nil && set.conns == 0 {
		set = newFileSet()
		f.sets.Store(set)
	}
	return set
}

// check returns a *FileChangedError if a path does not lead any more to the
// file that is open. Where it is the -wal or the -shm file the set is lost for
// good, even if the file should come back: others may have been at work
// meanwhile. It takes some microseconds, and opens nothing.
func (f *databaseFiles) check() error {
	if f.path == "" {
		return nil // Use has not asked yet which file it is
	}
	set := f.set()
	if lost := set.lost.Load(); lost != nil {
		return lost
	}
	now, err := f.checkPath()
	if err != nil {
		return err
	}
	if err := f.checkGiven(); err != nil {
		return err
	}
	if open := set.beside.Load(); open != nil {
		changed, err := f.checkBeside(*open)
		if err != nil {
			return err
		}
		// Unless the last connection was just closed.
		if changed != nil && set.beside.Load() == open {
			return set.lose(changed)
		}
	}
	set.seen.Store(&now)
	return nil
}

// checkPath looks what lies where the database was when it was opened.
func (f *databaseFiles) checkPath() (now fileStat, err error) {
	now, err = examineFile(f.path)
	switch {
	case isGone(err):
		return now, &FileChangedError{Path: f.path, Err: err}
	case err != nil:
		return now, fmt.Errorf("database %s: %w", f.path, err) // says nothing about the file
	case now.fileID != f.file:
		return now, &FileChangedError{Path: f.path}
	}
	return now, nil
}

// checkGiven looks where the path leads that the app gave.
func (f *databaseFiles) checkGiven() error {
	if f.given == f.path {
		return nil
	}
	id, err := identify(f.given)
	switch {
	case isGone(err):
		return &FileChangedError{Path: f.path, Given: f.given, Err: err}
	case err != nil:
		return fmt.Errorf("database %s: %w", f.given, err)
	case id == f.file:
		return nil
	}
	now, err := filepath.EvalSymlinks(f.given)
	if err != nil {
		now = "another file"
	}
	return &FileChangedError{Path: f.path, Given: f.given, Now: now}
}

// checkBeside returns which file beside the database is not the one that is
// open, nil if all are in place.
func (f *databaseFiles) checkBeside(open besideFiles) (*FileChangedError, error) {
	for _, file := range []struct {
		suffix string
		open   fileID
	}{{"-wal", open.wal}, {"-shm", open.shm}} {
		id, err := identify(f.path + file.suffix)
		switch {
		case isGone(err):
		case err != nil:
			return nil, fmt.Errorf("database %s: %w", f.path, err)
		case id == file.open:
			continue
		}
		return f.besideChanged(file.suffix, err), nil
	}
	return nil, nil
}

func (f *databaseFiles) besideChanged(suffix string, err error) *FileChangedError {
	do := "nothing more is written; restart this process"
	if f.owned {
		do = "nothing more is written until all connections were returned " +
			"that have the old one open; then it is opened anew"
	}
	return &FileChangedError{Path: f.path + suffix, Err: err, Beside: f.path, do: do}
}

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// lose makes the set one that is lost, and returns why it is.
func (set *fileSet) lose(why *FileChangedError) *FileChangedError {
	if set.lost.CompareAndSwap(nil, why) {
		close(set.gone)
	}
	return set.lost.Load()
}

// lost returns why the present set is lost, nil if it is not.
func (f *databaseFiles) lost() error {
	if set := f.sets.Load(); set != nil {
		if lost := set.lost.Load(); lost != nil {
			return lost
		}
	}
	return nil
}

// links says how many names the file had at the last look.
func (f *databaseFiles) links() uint64 {
	if seen := f.sets.Load().seen.Load(); seen != nil {
		return seen.links
	}
	return 0
}

// openFiles returns which files a connection has open itself, wherever their
// paths lead now: no file can be replaced between the opening and the look. ok
// is false for a driver, or a VFS, that does not tell. beside is nil unless it
// has read in WAL mode.
func openFiles(c *sqlite3.Conn) (main fileID, beside *besideFiles, ok bool) {
	file, err := c.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	if err != nil {
		return main, nil, false
	}
	if main, ok = openFile(file); !ok {
		return main, nil, false
	}
	shared, _ := file.(vfs.FileSharedMemory)
	if shared == nil {
		return main, nil, true
	}
	shm, ok := openFile(shared.SharedMemory())
	if !ok {
		return main, nil, true
	}
	journal, err := c.FileControl("main", sqlite3.FCNTL_JOURNAL_POINTER)
	if err != nil {
		return main, nil, false
	}
	wal, ok := openFile(journal)
	return main, &besideFiles{wal, shm}, ok
}

func openFile(file any) (id fileID, ok bool) {
	info, ok := statOpen(file)
	if ok {
		id = idOf(info)
	}
	return id, ok
}

// statOpen asks an open file of the driver's for its state.
func statOpen(file any) (fs.FileInfo, bool) {
	open, ok := unwrap(file).(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return nil, false
	}
	info, err := open.Stat()
	return info, err == nil
}

// A LinksError says that the database file has more than one name (hard links).
// SQLite finds what it keeps beside a database by the name under which that was
// opened, so under each name there is a -wal and a lease file of its own, and a
// leader.
type LinksError struct {
	Path  string
	Links uint64
}

func (e *LinksError) Error() string {
	return fmt.Sprintf("database %s has %d names (hard links), and each has a -wal "+
		"and a lease file of its own, so that two replicas would lead: "+
		"remove the other names (find DIR -samefile %s shows them)", e.Path, e.Links, e.Path)
}

// Is reports whether target is driver.ErrWarning.
func (e *LinksError) Is(target error) bool { return target == driver.ErrWarning }
