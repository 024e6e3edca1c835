//go:build linux

package faults

import (
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

// starting is for the clusters that start: a server and its processes are most of the work of a
// cluster, and all of them at once may take a slow machine longer than one of them may take.
var starting = make(chan struct{}, 2)

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
