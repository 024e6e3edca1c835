package sqlite

import (
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// A folderWatch tells that something has happened to the files of a database.
type folderWatch struct {
	stirred chan struct{} // never written to if there are no events to be had
	files   *databaseFiles
	events  *os.File // nil: there are none
	raw     int
	reader  sync.WaitGroup
}

// The folder is watched, and not its files: those of SQLite are written to all
// the time.
const folderEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

func watchFolders(f *databaseFiles) *folderWatch {
	w := &folderWatch{stirred: make(chan struct{}, 1), files: f}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return w // there are few of them for each user
	}
	w.raw, w.events = fd, os.NewFile(uintptr(fd), "inotify")
	w.reader.Go(w.read)
	return w
}

func (w *folderWatch) read() {
	var buf [4096]byte
	for {
		if n, err := w.events.Read(buf[:]); n <= 0 || err != nil {
			return
		}
		select {
		case w.stirred <- struct{}{}:
		default:
		}
	}
}

// renew watches the folder that the path leads to now, and those of the links in
// the path that the app gave. What was watched before is not watched again.
func (w *folderWatch) renew() {
	if w.events == nil {
		return
	}
	_, _ = unix.InotifyAddWatch(w.raw, filepath.Dir(w.files.path), folderEvents)
	// Written to by a checkpoint only: what it is like then is kept, see unspoiled.
	_, _ = unix.InotifyAddWatch(w.raw, w.files.path, unix.IN_MODIFY)
	if w.files.given == w.files.path {
		return
	}
	for path := w.files.given; path != filepath.Dir(path); path = filepath.Dir(path) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
			_, _ = unix.InotifyAddWatch(w.raw, filepath.Dir(path), folderEvents)
		}
	}
}

func (w *folderWatch) close() {
	if w.events != nil {
		w.events.Close()
		w.reader.Wait()
	}
}
