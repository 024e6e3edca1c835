package locktest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/memory"
)

func TestEveryRuleOfNamedLocksCatchesABrokenStore(t *testing.T) {
	catch(t, namedCases(), brokenNamedStores, 1, func(t testing.TB, r Rule, fault any) *namedEnv {
		return prepareNamed(t, r, namedDatabase(fault), short)
	})
}

// soundNamed is a store in memory that has all features.
type soundNamed struct {
	namedlock.Store
	db   *memory.Store
	open atomic.Int64 // transactions of callers
}

// riggedNamed is a sound store with a fault.
type riggedNamed struct {
	*soundNamed
	fault any
}

type (
	takeCall struct {
		call[*soundNamed]
		claim  namedlock.Claim
		term   int64
		holder *namedlock.Row
	}
	lookNamedCall struct {
		call[*soundNamed]
		key namedlock.Key
		row *namedlock.Row
	}
	extendNamedCall struct {
		call[*soundNamed]
		ref  namedlock.Ref
		ttl  time.Duration
		ours bool
	}
	releaseNamedCall struct {
		call[*soundNamed]
		ref      namedlock.Ref
		keepHold bool
		ours     bool
	}
	fenceNamedCall struct {
		call[*soundNamed]
		tx   any
		ref  namedlock.Ref
		ttl  time.Duration
		ours bool
	}
	cleanCall struct {
		call[*soundNamed]
		limit int
		n     int64
	}
	listNamedCall struct {
		call[*soundNamed]
		limit int
		rows  []namedlock.Row
	}
	revokeNamedCall struct {
		call[*soundNamed]
		key  namedlock.Key
		term int64
		mark string
		ours bool
	}
)

func (r riggedNamed) Take(ctx context.Context, claim namedlock.Claim) (int64, *namedlock.Row,
	error) {
	c := &takeCall{call: start(ctx, r.soundNamed), claim: claim}
	play(r.fault, c, func() { c.term, c.holder, c.err = c.s.Take(c.ctx, c.claim) })
	return c.term, c.holder, c.err
}

func (r riggedNamed) Look(ctx context.Context, key namedlock.Key) (*namedlock.Row, error) {
	c := &lookNamedCall{call: start(ctx, r.soundNamed), key: key}
	play(r.fault, c, func() { c.row, c.err = c.s.Look(c.ctx, c.key) })
	return c.row, c.err
}

func (r riggedNamed) Extend(ctx context.Context, ref namedlock.Ref, ttl time.Duration) (bool,
	error) {
	c := &extendNamedCall{call: start(ctx, r.soundNamed), ref: ref, ttl: ttl}
	play(r.fault, c, func() { c.ours, c.err = c.s.Extend(c.ctx, c.ref, c.ttl) })
	return c.ours, c.err
}

func (r riggedNamed) Release(ctx context.Context, ref namedlock.Ref, keepHold bool) (bool, error) {
	c := &releaseNamedCall{call: start(ctx, r.soundNamed), ref: ref, keepHold: keepHold}
	play(r.fault, c, func() { c.ours, c.err = c.s.Release(c.ctx, c.ref, c.keepHold) })
	return c.ours, c.err
}

func (r riggedNamed) Fence(ctx context.Context, tx any, ref namedlock.Ref,
	ttl time.Duration) (bool, error) {
	c := &fenceNamedCall{call: start(ctx, r.soundNamed), tx: tx, ref: ref, ttl: ttl}
	play(r.fault, c, func() { c.ours, c.err = c.s.Fence(c.ctx, c.tx, c.ref, c.ttl) })
	return c.ours, c.err
}

func (r riggedNamed) Clean(ctx context.Context, limit int) (int64, error) {
	c := &cleanCall{call: start(ctx, r.soundNamed), limit: limit}
	play(r.fault, c, func() { c.n, c.err = c.s.Clean(c.ctx, c.limit) })
	return c.n, c.err
}

func (r riggedNamed) List(ctx context.Context, limit int) ([]namedlock.Row, error) {
	c := &listNamedCall{call: start(ctx, r.soundNamed), limit: limit}
	play(r.fault, c, func() { c.rows, c.err = c.s.List(c.ctx, c.limit) })
	return c.rows, c.err
}

func (r riggedNamed) Revoke(ctx context.Context, key namedlock.Key, term int64, mark string) (bool,
	error) {
	c := &revokeNamedCall{call: start(ctx, r.soundNamed), key: key, term: term, mark: mark}
	play(r.fault, c, func() { c.ours, c.err = c.s.Revoke(c.ctx, c.key, c.term, c.mark) })
	return c.ours, c.err
}

// namedDatabase is a new one whose store has a fault, or none.
func namedDatabase(fault any) NamedDatabase {
	db := memory.New()
	s := &soundNamed{Store: db.Named(), db: db}
	return NamedDatabase{
		ExtendPassesFence: true,

		Open:     func(testing.TB) namedlock.Store { return riggedNamed{s, fault} },
		Age:      func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
		Edit:     func(_ testing.TB, key namedlock.Key, term int64) { db.SetNamedTerm(key, term) },
		FailOver: func(testing.TB) { db.FailOverNamed() },
		Begin:    func(testing.TB) Tx { return begin(db, &s.open) },
	}
}

// present is the row of a key, if somebody holds it.
func present(s *soundNamed, key namedlock.Key) (namedlock.Row, bool) {
	row, _ := s.Look(bg, key)
	if row == nil || row.Resting {
		return namedlock.Row{}, false
	}
	return *row, true
}

// usurp makes ref that of whoever holds its key.
func usurp(s *soundNamed, ref namedlock.Ref) namedlock.Ref {
	if row, held := present(s, ref.Key); held {
		ref.Token, ref.Term = row.Token, row.Term
	}
	return ref
}

// forgetful takes at once what must be waited for, where forget says so.
func forgetful(forget func(*takeCall) bool) func(*takeCall) {
	return after(func(c *takeCall) {
		if c.holder != nil && c.holder.FailedOver && forget(c) {
			c.s.db.AgeNamed(c.holder.Left)
			c.do()
		}
	})
}

// sure lets Look always tell when a row is free.
func sure(c *lookNamedCall) {
	c.do()
	if c.row != nil {
		c.row.Unsure = false
	}
}
