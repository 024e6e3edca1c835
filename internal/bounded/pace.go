package bounded

import (
	"sync"
	"time"
)

const (
	every = time.Second
	share = 100         // it takes at most one part in so many of the time
	most  = time.Minute // a disk that stood still once must not put it off for long

	// maxKeys bounds what is remembered. If it is forgotten, something is done
	// once more.
	maxKeys = 1000
)

// A Pace is for things of one kind, told apart by a key. Its zero value is ready.
// It may be used concurrently.
type Pace struct {
	mu   sync.Mutex
	next map[string]time.Time
}

// Due calls f if it is time for it again: a second after it was called for that
// key, and a hundred times as long as it took, but at most a minute.
func (p *Pace) Due(key string, f func()) {
	if !p.begin(key) {
		return
	}
	start := time.Now()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.next[key] = time.Now().Add(min(most, max(every, share*time.Since(start))))
	}()
	f()
}

func (p *Pace) begin(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.next[key]) {
		return false
	}
	if p.next == nil || len(p.next) >= maxKeys {
		p.next = map[string]time.Time{}
	}
	p.next[key] = now.Add(time.Hour) // nobody else meanwhile
	return true
}
