package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"example.com/schedlock/schedlock/driver"
)

// giveUpLimit is how long the last connection to lost files waits for those of
// other processes: they notice the loss as fast, but on a busy machine it takes
// until their connections are returned.
const giveUpLimit = 5 * time.Second

// handOver is for how long a -wal file that others have opened anew stays open
// here too.
const handOver = 300 * time.Millisecond

// giveUp sees to it that what was committed to files that are lost does not go
// with the last connection that has them open: nobody else can have it any more.
// c is this process's last one. Something is done only if
//
//   - this process is the one that tries (the RESERVED lock of the database
//     file; if it dies another gets that), and nobody else has the database open
//     (the EXCLUSIVE lock);
//   - the -wal file is in its place, or nobody can have worked without it, see
//     saves: then it is put back.
//
// A new connection then does what the next one that opens the database would do
// with what a crash has left, and moves what is in the -wal file into the database
// file: else it would lie there for somebody to remove, and nobody would have it
// open. c itself writes nothing.
func (f *databaseFiles) giveUp(c *sqlite3.Conn, set *fileSet, open besideFiles) {
	pointer, err := c.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	file, ok := pointer.(vfs.File)
	if err != nil || !ok {
		return
	}
	// Whoever removes files may remove what was put back, too.
	for deadline := time.Now().Add(giveUpLimit); ; {
		if !f.awaitAlone(c, file, set, open, deadline) {
			return // closing it gives the lock back
		}
		saves, wal := f.saves(c, set, open)
		if saves && !wal {
			if open.wal, err = f.putBack(c); err != nil {
				f.unsaved.Store(&UnsavedError{Path: f.path, Err: err})
			}
		}
		if !saves || err != nil || file.Unlock(vfs.LOCK_SHARED) != nil || f.moveIn(open) {
			return
		}
	}
}

// awaitAlone returns true when nobody else has the database open, and false when
// there is nothing to be done, or no more time for it.
func (f *databaseFiles) awaitAlone(c *sqlite3.Conn, file vfs.File, set *fileSet, open besideFiles,
	deadline time.Time) bool {
	var handedOver time.Time
	for reserved := false; ; time.Sleep(time.Millisecond) {
		saves, wal := f.saves(c, set, open)
		if !saves || time.Now().After(deadline) {
			return false
		}
		if wal && exists(f.path+"-shm") {
			// Somebody has opened it anew, and may die while that is all there is.
			if handedOver.IsZero() {
				handedOver = time.Now()
			}
			if time.Since(handedOver) > handOver {
				return false
			}
			_, reserved = file.Unlock(vfs.LOCK_NONE), false
			continue
		}
		handedOver = time.Time{}
		if !reserved {
			reserved = file.Lock(vfs.LOCK_SHARED) == nil && file.Lock(vfs.LOCK_RESERVED) == nil
		}
		if reserved && file.Lock(vfs.LOCK_EXCLUSIVE) == nil {
			return true
		}
		if !reserved {
			// Another tries. We get out of its way, but keep the files open until it
			// has done it, or has died.
			_ = file.Unlock(vfs.LOCK_NONE)
		}
	}
}

// moveIn opens the database anew and moves what is in the -wal file into the
// database file. false: it was not that -wal file, which was removed again.
func (f *databaseFiles) moveIn(open besideFiles) bool {
	next, err := openConn(context.Background(), fileURI(f.path)+
		"?mode=rw&_pragma=busy_timeout("+busyTimeoutMillis+")")
	if err != nil {
		return false
	}
	defer next.Close()
	if next.Exec(`SELECT count(*) FROM sqlite_schema`) != nil { // opens the -wal file, and reads it
		return false
	}
	if _, beside, ok := openFiles(next); !ok || beside == nil || beside.wal != open.wal {
		return false
	}
	_, _, err = next.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
	return err == nil
}

// saves reports whether what c has open is what belongs to the database file,
// and whether the -wal file is in its place.
func (f *databaseFiles) saves(c *sqlite3.Conn, set *fileSet, open besideFiles) (saves, wal bool) {
	now, err := examineFile(f.path)
	if err != nil || now.fileID != f.file {
		return false, false
	}
	switch wal, err := examineFile(f.path + "-wal"); {
	case err == nil && wal.fileID == open.wal:
		return true, true
	case err == nil && wal.size == 0, isGone(err):
		return f.unspoiled(c, set, now), false
	}
	return false, false
}

// unspoiled reports whether nobody has written to the database file but those
// who had the -wal file open that is missing now: it is as it was when all was
// last in place, or it was last written to before the -wal file was removed. That
// moment is when the state of the -wal file was changed (ctime), provided that
// nobody has written to it since, which would have changed its mtime too.
func (f *databaseFiles) unspoiled(c *sqlite3.Conn, set *fileSet, now fileStat) bool {
	if seen := set.seen.Load(); seen != nil && seen.size == now.size &&
		seen.modified.Equal(now.modified) {
		return true
	}
	journal, err := c.FileControl("main", sqlite3.FCNTL_JOURNAL_POINTER)
	if err != nil {
		return false
	}
	info, ok := statOpen(journal)
	if !ok {
		return false
	}
	removed, ok := changedAt(info)
	return ok && info.ModTime().Before(removed) && now.modified.Before(removed)
}

// putBack makes the -wal file anew from the one that c has open, under another
// name first, so that nobody ever sees a part of it.
func (f *databaseFiles) putBack(c *sqlite3.Conn) (put fileID, err error) {
	journal, err := c.FileControl("main", sqlite3.FCNTL_JOURNAL_POINTER)
	if err != nil {
		return put, err
	}
	wal, ok := journal.(vfs.File)
	if !ok {
		return put, errors.ErrUnsupported
	}
	size, err := wal.Size()
	if err != nil {
		return put, err
	}
	db, err := os.Stat(f.path)
	if err != nil {
		return put, err
	}
	name := f.path + "-wal.new"
	// What lies there is left over from a process that died, or somebody has put it
	// there: a link is not followed, and a pipe is not waited for.
	_ = os.Remove(name)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return put, err
	}
	info, err := file.Stat()
	if err == nil {
		put = idOf(info)
		_, err = io.Copy(file, io.NewSectionReader(wal, 0, size))
	}
	if err == nil {
		err = likeDatabase(file, db)
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(name, f.path+"-wal")
	}
	if err != nil {
		return put, errors.Join(err, os.Remove(name))
	}
	return put, f.syncNames()
}

// An UnsavedError says that what was committed last is lost: the -wal file that
// had it was removed, and could not be written anew, for want of room for example.
type UnsavedError struct {
	Path string
	Err  error
}

func (e *UnsavedError) Error() string {
	return fmt.Sprintf("database %s-wal was removed and could not be written anew, "+
		"so the last transactions are lost and runs may start twice: %v: "+
		"check the app's data, then restart", e.Path, e.Err)
}

// Unwrap returns why it could not be written.
func (e *UnsavedError) Unwrap() error { return e.Err }

// Is reports whether target is driver.ErrWarning.
func (e *UnsavedError) Is(target error) bool { return target == driver.ErrWarning }
