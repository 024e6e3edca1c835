package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// SQLite in C, and what is translated from it, locks with fcntl(2), and such
// locks belong to the process: the kernel drops all that a process has on a
// file when it closes any descriptor of that file. github.com/ncruces/go-sqlite3
// locks its descriptors one by one, so its connections do each other no harm,
// but each one that is closed takes the locks of another driver away. (Seen:
// "disk I/O error" at COMMIT, "locking protocol", transactions that were lost.)
// So a pool of our own is not opened on a file that the process has open in
// another way.

// ncrucesFiles are the database files that connections of
// github.com/ncruces/go-sqlite3 have open in this process, whoever opened them.
var ncrucesFiles struct {
	sync.Mutex
	open  []syscall.Conn
	prune int // when there are so many, look which were closed
}

func init() { sqlite3.AutoExtension(rememberFile) }

// rememberFile is called for each connection of github.com/ncruces/go-sqlite3
// when it is opened.
func rememberFile(c *sqlite3.Conn) error {
	pointer, err := c.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	if err != nil {
		return nil
	}
	file, ok := unwrap(pointer).(syscall.Conn)
	if !ok {
		return nil // in memory
	}
	known := &ncrucesFiles
	known.Lock()
	defer known.Unlock()
	if len(known.open) >= known.prune {
		known.open = slices.DeleteFunc(known.open, func(f syscall.Conn) bool {
			_, open := descriptorOf(f)
			return !open
		})
		known.prune = 2*len(known.open) + 16
	}
	known.open = append(known.open, file)
	return nil
}

func unwrap(file any) any {
	for wrapped, ok := file.(vfs.FileUnwrap); ok; wrapped, ok = file.(vfs.FileUnwrap) {
		file = wrapped.Unwrap()
	}
	return file
}

// descriptorOf returns the number of a file's descriptor; open is false if the
// file was closed.
func descriptorOf(file syscall.Conn) (fd int, open bool) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(n uintptr) { fd = int(n) })
	return fd, err == nil
}

func ncrucesDescriptors() []int {
	known := &ncrucesFiles
	known.Lock()
	defer known.Unlock()
	var fds []int
	for _, file := range known.open {
		if fd, open := descriptorOf(file); open {
			fds = append(fds, fd)
		}
	}
	return fds
}

// opening is how many connections of ours are being opened: their descriptors
// may not be known yet.
var opening atomic.Int64

// openConn opens a connection of ours.
func openConn(ctx context.Context, dsn string) (*sqlite3.Conn, error) {
	opening.Add(1)
	defer opening.Add(-1)
	return sqlite3.OpenContext(ctx, dsn)
}

const (
	// openingTime is how long a connection of the app's may take from opening its
	// file to rememberFile: its DSN may have pragmas that wait for others.
	openingTime = time.Second

	// openingLimit is for how long connections of ours that are being opened put
	// the verdict off.
	openingLimit = 30 * time.Second
)

// foreign returns a descriptor of the database file that no connection of
// github.com/ncruces/go-sqlite3 has opened, 0 if there is none, or if this
// system does not tell; -1 if there may be one, but the process has no descriptor
// left to look. With writable it returns none that can only read, which
// somebody may have who copies the file.
func (f *databaseFiles) foreign(writable bool) (fd int) {
	var suspects []int // not known from the beginning
	for began, first := time.Now(), true; ; time.Sleep(5 * time.Millisecond) {
		settled := opening.Load() == 0
		// before the others: what is opened meanwhile is looked at again
		ours := ncrucesDescriptors()
		all, err := descriptors()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			return -1
		}
		if err != nil {
			return 0
		}
		var unknown []int
		for _, d := range all {
			if d.file == f.file && !slices.Contains(ours, d.fd) && (d.writable() || !writable) {
				unknown = append(unknown, d.fd)
			}
		}
		if first {
			suspects, first = unknown, false
		}
		suspects = slices.DeleteFunc(suspects, func(fd int) bool {
			return !slices.Contains(unknown, fd)
		})
		if len(suspects) == 0 {
			return 0
		}
		// A machine that is short of processors may take its time to open a file.
		settled = settled && opening.Load() == 0
		if took := time.Since(began); took > openingLimit || took > openingTime && settled {
			return suspects[0]
		}
	}
}

// checkForeign refuses a file that the process has open through another driver.
func (f *databaseFiles) checkForeign(writable bool) error {
	fd := f.foreign(writable)
	if fd <= 0 {
		return nil // -1: then nothing can be opened either, and the driver says why
	}
	return fmt.Errorf("database %s is open in this process already, "+
		"through another SQLite driver (descriptor %d): "+
		"connections of the lock's own would take that driver's locks away when they are closed: "+
		"give the lock the app's pool, with sqlite.Use(db)", f.path, fd)
}

// keptOpen are connections that must not be closed before the process ends: that
// would take the locks of another driver away.
var keptOpen struct {
	sync.Mutex
	conns []*conn
}

func keepOpen(c *conn) {
	keptOpen.Lock()
	defer keptOpen.Unlock()
	keptOpen.conns = append(keptOpen.conns, c)
}
