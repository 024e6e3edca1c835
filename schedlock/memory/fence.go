package memory

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// A Tx stands for a transaction of the app: while it is open, what it has fenced
// does not change hands, as on a database. Of data it has tasks of queues only: what
// it adds, and what it ends. Two that are open at the same time do not see that they
// add the same task: the second to commit adds nothing.
// All methods are safe for concurrent use.
type Tx struct {
	s *Store

	// guarded by s.mu
	lock  bool                   // it has fenced the scheduler's lock
	names map[namedlock.Key]bool // and these
	tasks map[taskKey]bool       // it has ended these tasks

	commits []func(*tables, time.Time)
}

// Begin begins a transaction for [schedlock.Lease.Fence] and
// [named.Lock.Fence]. The caller must end it: until then nobody takes over.
func (s *Store) Begin() *Tx {
	tx := &Tx{s: s, names: map[namedlock.Key]bool{}, tasks: map[taskKey]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*Tx]struct{}{}
	}
	s.open[tx] = struct{}{}
	return tx
}

// Commit ends the transaction. It returns sql.ErrTxDone if it has ended already.
func (tx *Tx) Commit() error { return tx.end(true) }

// Rollback ends the transaction. It returns sql.ErrTxDone if it has ended already.
func (tx *Tx) Rollback() error { return tx.end(false) }

func (tx *Tx) end(commit bool) error {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	if _, open := tx.s.open[tx]; !open {
		return sql.ErrTxDone
	}
	delete(tx.s.open, tx)
	if commit {
		for _, write := range tx.commits {
			write(&tx.s.tables, tx.s.stamp())
		}
	}
	return nil
}

// inside calls f for the open transaction tx, and returns its error. One that is not of this
// store is wrong.
func (s *Store) inside(ctx context.Context, tx any, wrong error,
	f func(tx *Tx, t *tables) error) error {
	own, _ := tx.(*Tx)
	if own == nil || own.s != s {
		return fmt.Errorf("%w: %T is no transaction of this memory.Store's Begin", wrong, tx)
	}
	return s.do(ctx, func(t *tables, _ time.Time) error {
		if _, open := s.open[own]; !open {
			return sql.ErrTxDone
		}
		return f(own, t)
	})
}

// Fence implements driver.Store for a [Tx].
func (s *Store) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	return s.inside(ctx, tx, driver.ErrNoFence, func(tx *Tx, t *tables) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		tx.lock = true
		return nil
	})
}

// fenced returns an error, which wraps why, if an open transaction has fenced the scheduler's lock;
// s.mu is held.
func (s *Store) fenced(why error) error {
	for tx := range s.open {
		if tx.lock {
			return fmt.Errorf("%w: a fenced transaction is open", why)
		}
	}
	return nil
}

// fencedName reports whether an open transaction has fenced a name; s.mu is held.
func (s *Store) fencedName(key namedlock.Key) bool {
	for tx := range s.open {
		if tx.names[key] {
			return true
		}
	}
	return false
}

// Fence implements namedlock.Store for a [Tx], which stays open however long it idles.
func (n namedStore) Fence(ctx context.Context, tx any, ref namedlock.Ref,
	_ time.Duration) (ours bool, err error) {
	err = n.s.inside(ctx, tx, driver.ErrNoFence, func(tx *Tx, t *tables) error {
		if ours = t.named.rows[ref.Key].bears(ref, time.Now()); ours {
			tx.names[ref.Key] = true
		}
		return nil
	})
	return ours, err
}
