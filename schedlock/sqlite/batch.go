package sqlite

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxBatch bounds how long a heartbeat waits behind one transaction.
const maxBatch = 64

// A batch lets calls that come at the same time share one transaction, and so
// one flush to the disk, which is most of what a small transaction costs (group
// commit). A call that is alone does not notice.
type batch struct {
	mu      sync.Mutex
	waiting []*part // the first of them has the turn, unless busy
	busy    bool    // a transaction is under way, or somebody has the turn
}

// A part is one call.
type part struct {
	ctx  context.Context
	do   func(context.Context, tx) error
	err  error
	turn chan struct{} // it is to run the next transaction
	done chan struct{} // closed when err is known
}

// share is write, for calls of which many may come at once. An error of do
// undoes what do has written, and nothing else. do may run on another
// goroutine, but never after share has returned.
func (s *Store) share(ctx context.Context, do func(context.Context, tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p := &part{ctx: ctx, do: do, turn: make(chan struct{}, 1), done: make(chan struct{})}
	b := &s.batch
	b.mu.Lock()
	b.waiting = append(b.waiting, p)
	if !b.busy {
		b.next()
	}
	b.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-p.turn:
	case <-ctx.Done():
		b.mu.Lock()
		i := slices.Index(b.waiting, p)
		if i < 0 { // somebody is at it
			b.mu.Unlock()
			<-p.done
			return p.err
		}
		b.waiting = slices.Delete(b.waiting, i, i+1)
		select {
		case <-p.turn:
			b.next()
		default:
		}
		b.mu.Unlock()
		return context.Cause(ctx)
	}
	b.mu.Lock()
	n := min(len(b.waiting), maxBatch)
	parts := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	b.mu.Unlock()
	s.commit(parts)
	b.mu.Lock()
	b.next()
	b.mu.Unlock()
	for _, p := range parts {
		close(p.done)
	}
	return p.err
}

// next gives the turn to the call that has waited longest; mu is held.
func (b *batch) next() {
	b.busy = len(b.waiting) > 0
	if b.busy {
		b.waiting[0].turn <- struct{}{}
	}
}

// commit runs the parts in one transaction. It ends early only when nobody
// waits for it any more: SQLite rolls back all of a transaction whose statement
// is interrupted.
func (s *Store) commit(parts []*part) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parts[0].ctx))
	defer cancel()
	var left atomic.Int32
	left.Store(int32(len(parts)))
	for _, p := range parts {
		stop := context.AfterFunc(p.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	err := s.write(ctx, func(ctx context.Context, tx tx) error {
		if len(parts) == 1 {
			return parts[0].do(ctx, tx)
		}
		for _, p := range parts {
			if p.err = context.Cause(p.ctx); p.err == nil {
				if err := tx.part(ctx, p); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, p := range parts {
		if p.err != nil {
			p.err = s.explain(p.err)
		} else {
			p.err = err
		}
	}
}

// part runs one of several parts; its error is one of the whole transaction.
func (t tx) part(ctx context.Context, p *part) error {
	if _, err := t.exec(ctx, `SAVEPOINT part`); err != nil {
		return err
	}
	if p.err = p.do(ctx, t); p.err != nil {
		switch _, err := t.exec(ctx, `ROLLBACK TO part`); {
		case err == nil:
		case strings.Contains(err.Error(), "no such savepoint"):
			return p.err // for which SQLite has rolled back all, as when the disk is full
		default:
			return err
		}
	}
	_, err := t.exec(ctx, `RELEASE part`)
	return err
}
