package inotify

import (
	"encoding/binary"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

var masks = map[change]uint32{
	Fate:   unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF,
	Moves:  unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR,
	Writes: unix.IN_MODIFY,
	Closes: unix.IN_CLOSE_WRITE,
}

// pause is between two reads: the kernel keeps repeated events as one until they are read, so
// whoever causes them all the time does not keep us busy.
const pause = time.Millisecond

// A Watch is one instance of inotify, made when the first thing is watched. The zero value is ready
// to use, and nil tells nothing. All methods may be called concurrently.
type Watch struct {
	Start func(flags int) (int, error) // nil: inotify_init1; for tests

	mu      sync.Mutex
	closed  bool
	events  *os.File // nil: there is none
	raw     int      // its descriptor
	told    map[int32]map[chan<- struct{}]bool
	watched map[place]int32
	reader  sync.WaitGroup
}

// A place is where something is watched.
type place struct {
	path string
	what change
}

// Add watches what lies at the path now, instead of what lay there before. At each such change
// there is soon something in told, if that has room for one; and perhaps at a change that another
// call asks for. Add returns false if it cannot be watched; what was watched before still is.
func (w *Watch) Add(path string, what change, told chan<- struct{}) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.open() {
		return false
	}
	added, err := unix.InotifyAddWatch(w.raw, path,
		masks[what]|unix.IN_MASK_ADD|unix.IN_DONT_FOLLOW)
	if err != nil {
		return false
	}
	at, wd := place{path, what}, int32(added)
	before, again := w.watched[at]
	w.watched[at] = wd
	if w.told[wd] == nil {
		w.told[wd] = map[chan<- struct{}]bool{}
	}
	w.told[wd][told] = true
	if again && !slices.Contains(slices.Collect(maps.Values(w.watched)), before) {
		_, _ = unix.InotifyRmWatch(w.raw, uint32(before))
		delete(w.told, before)
	}
	return true
}

// open reports whether there is an instance; mu is held.
func (w *Watch) open() bool {
	if w.closed || w.events != nil {
		return !w.closed
	}
	start := w.Start
	if start == nil {
		start = unix.InotifyInit1
	}
	fd, err := start(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false
	}
	w.raw, w.events = fd, os.NewFile(uintptr(fd), "inotify")
	w.told, w.watched = map[int32]map[chan<- struct{}]bool{}, map[place]int32{}
	events := w.events
	w.reader.Go(func() { w.read(events) })
	return true
}

func (w *Watch) read(events *os.File) {
	var buf [4096]byte
	for {
		n, err := events.Read(buf[:])
		if n <= 0 || err != nil {
			return
		}
		w.mu.Lock()
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			// struct inotify_event: wd, mask, cookie, len, and a name of that length
			wd := int32(binary.NativeEndian.Uint32(buf[at:]))
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
			for of, told := range w.told {
				if of == wd || wd == -1 { // -1: events were lost, of whichever
					for to := range told {
						tell(to)
					}
				}
			}
		}
		w.mu.Unlock()
		time.Sleep(pause)
	}
}

func tell(told chan<- struct{}) {
	select {
	case told <- struct{}{}:
	default:
	}
}

// Close ends the instance. Nothing is told after it, and nothing can be watched.
func (w *Watch) Close() error {
	w.mu.Lock()
	w.closed = true
	events := w.events
	w.events = nil
	w.mu.Unlock()
	if events == nil {
		return nil
	}
	err := events.Close()
	w.reader.Wait()
	return err
}
