package statuspage

import (
	"context"
	"sync"
	"time"
)

// shared lets pages that are loaded at the same time share one look at the database, and begins
// one at most every pollInterval: fifty that load themselves again cost hardly more than one.
type shared struct {
	mu   sync.Mutex
	next *shot // nil: nobody waits for one

	turn  sync.Mutex // of who reads
	began time.Time
	last  *snapshot // the last that was read without an error
}

// A shot is a look that begins after everybody who waits for it has asked.
type shot struct {
	done chan struct{}
	snap *snapshot
}

// readShared returns what stood in the database after it was called; nil if the client is gone.
func (h *Handler) readShared(ctx context.Context) *snapshot {
	s := &h.shared
	s.mu.Lock()
	if mine := s.next; mine != nil {
		s.mu.Unlock()
		select {
		case <-mine.done:
			return mine.snap
		case <-ctx.Done():
			return nil
		}
	}
	mine := &shot{done: make(chan struct{})}
	s.next = mine
	s.mu.Unlock()
	defer close(mine.done)

	s.turn.Lock()
	defer s.turn.Unlock()
	time.Sleep(h.live.every - time.Since(s.began))
	s.mu.Lock()
	s.next = nil // who comes now may have changed something: the next look is for them
	s.mu.Unlock()
	s.began = time.Now()
	// Others share it, so it does not end with this one's client.
	mine.snap = h.read(context.WithoutCancel(ctx), s.last, true)
	if s.last = mine.snap; mine.snap.err != nil {
		s.last = nil
	}
	return mine.snap
}
