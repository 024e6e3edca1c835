package bounded

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is what a WatchedTurn returns that nobody gets any more.
var ErrClosed = errors.New("the store is closed")

// A WatchedTurn is a Turn in which somebody may watch something for long: whoever takes it ends
// that. It is made of a new Turn.
type WatchedTurn struct {
	Turn // for those who want to watch, and end nobody's watch

	mu     sync.Mutex
	wanted int    // users that wait for their turn
	yield  func() // ends a watch; nil: there is none
}

// Take is that of Turn, until closed is closed, and ends a watch that has the turn.
func (t *WatchedTurn) Take(ctx context.Context, closed <-chan struct{}) error {
	t.mu.Lock()
	t.wanted++
	if t.yield != nil {
		t.yield()
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.wanted--
		t.mu.Unlock()
	}()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-closed:
		return ErrClosed
	default:
	}
	select {
	case t.Turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-closed:
		return ErrClosed
	}
}

// Watch begins a watch of whoever has the turn, until end. It calls yield as soon as that shall end
// the watch: at once if somebody waits for the turn, or over is true.
func (t *WatchedTurn) Watch(yield func(), over func() bool) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.yield = yield
	if t.wanted > 0 || over() {
		yield()
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.yield = nil
	}
}

// Interrupt ends a watch.
func (t *WatchedTurn) Interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.yield != nil {
		t.yield()
	}
}
