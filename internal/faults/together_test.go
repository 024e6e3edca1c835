//go:build linux

package faults

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/schedlock/internal/child"
)

// together runs subtests at once, however few processors there are: they
// mostly wait.
type together struct{ sync.WaitGroup }

func (w *together) run(t *testing.T, name string, do func(*testing.T)) {
	w.Go(func() { t.Run(name, do) })
}

// starting lets two clusters start at a time: a server and its processes are most of the work of a
// cluster, and all of them at once may take a slow machine longer than one of them may take. Of
// those that wait the lowest number is the next, so that what takes long does not come last, when
// the processors have nothing else to do.
var starting = struct {
	*sync.Cond
	free    int
	waiting []int
}{sync.NewCond(new(sync.Mutex)), 2, nil}

func awaitTurn(number int) (started func()) {
	s := &starting
	s.L.Lock()
	defer s.L.Unlock()
	s.waiting = append(s.waiting, number)
	for s.free == 0 || slices.Min(s.waiting) != number {
		s.Wait()
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(n int) bool { return n == number })
	s.free--
	s.Broadcast()
	return sync.OnceFunc(func() {
		s.L.Lock()
		defer s.L.Unlock()
		s.free++
		s.Broadcast()
	})
}

// room is for the clusters that are being started, or go on: so many in any case, and more
// while the processors have little to do. A long run has room for all.
var room struct {
	looking sync.Mutex // one at a time looks for room, so that the next one sees its work
	taken   atomic.Int32
}

func enter() (leave func()) {
	least, most := int32(10), int32(24)
	if child.Raced() {
		least, most = 5, 10
	}
	room.looking.Lock()
	defer room.looking.Unlock()
	for {
		taken := room.taken.Load()
		if measures() || taken < least || taken < most && child.Idle(500*time.Millisecond) > 0.25 {
			room.taken.Add(1)
			return func() { room.taken.Add(-1) }
		}
		time.Sleep(20 * time.Millisecond)
	}
}
