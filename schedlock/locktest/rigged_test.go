package locktest

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// sound is a store in memory that has all features.
type sound struct {
	*memory.Store
	open atomic.Int64 // transactions of callers
}

func (s *sound) AwaitHint(ctx context.Context, view driver.Snapshot) (told driver.Release) {
	for ctx.Err() == nil {
		if v, _ := s.Look(ctx); v.Row == nil && v.Newest != nil {
			return driver.Release{Term: v.Newest.Term, At: v.Newest.EndedAt}
		}
		time.Sleep(time.Millisecond)
	}
	return told
}

// begin begins a transaction, and counts those that are open.
func begin(db *memory.Store, open *atomic.Int64) Tx {
	tx := db.Begin()
	open.Add(1)
	ended := func(end func() error) func() error {
		return func() error {
			err := end()
			if err == nil {
				open.Add(-1)
			}
			return err
		}
	}
	return Tx{tx, ended(tx.Commit), ended(tx.Rollback)}
}

// waitForNone waits until no transaction is open.
func waitForNone(ctx context.Context, open *atomic.Int64) error {
	for open.Load() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// rigged is a sound store with a fault.
type rigged struct {
	*sound
	fault any
}

type (
	lookCall struct {
		call[*sound]
		v driver.Snapshot
	}
	acquireCall struct {
		call[*sound]
		claim driver.Claim
		grant driver.Grant
	}
	heartbeatCall struct {
		call[*sound]
		ref     driver.Ref
		state   driver.State
		renewal driver.Renewal
	}
	releaseCall struct {
		call[*sound]
		ref     driver.Ref
		reason  driver.EndReason
		deleted bool
	}
	termsCall struct {
		call[*sound]
		limit int
		terms []driver.Term
	}
	revokeCall struct {
		call[*sound]
		term       int64
		by         string
		reason     string
		revocation driver.Revocation
	}
	fenceCall struct {
		call[*sound]
		tx  any
		ref driver.Ref
	}
	hintCall struct {
		call[*sound]
		v    driver.Snapshot
		told driver.Release
	}
)

func (r rigged) Look(ctx context.Context) (driver.Snapshot, error) {
	c := &lookCall{call: start(ctx, r.sound)}
	play(r.fault, c, func() { c.v, c.err = c.s.Look(c.ctx) })
	return c.v, c.err
}

func (r rigged) Acquire(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	c := &acquireCall{call: start(ctx, r.sound), claim: claim}
	play(r.fault, c, func() { c.grant, c.err = c.s.Acquire(c.ctx, c.claim) })
	return c.grant, c.err
}

func (r rigged) Heartbeat(ctx context.Context, ref driver.Ref, state driver.State) (driver.Renewal,
	error) {
	c := &heartbeatCall{call: start(ctx, r.sound), ref: ref, state: state}
	play(r.fault, c, func() { c.renewal, c.err = c.s.Heartbeat(c.ctx, c.ref, c.state) })
	return c.renewal, c.err
}

func (r rigged) Release(ctx context.Context, ref driver.Ref, reason driver.EndReason) (bool,
	error) {
	c := &releaseCall{call: start(ctx, r.sound), ref: ref, reason: reason}
	play(r.fault, c, func() { c.deleted, c.err = c.s.Release(c.ctx, c.ref, c.reason) })
	return c.deleted, c.err
}

func (r rigged) Terms(ctx context.Context, limit int) ([]driver.Term, error) {
	c := &termsCall{call: start(ctx, r.sound), limit: limit}
	play(r.fault, c, func() { c.terms, c.err = c.s.Terms(c.ctx, c.limit) })
	return c.terms, c.err
}

func (r rigged) Revoke(ctx context.Context, term int64, by, reason string) (driver.Revocation,
	error) {
	c := &revokeCall{call: start(ctx, r.sound), term: term, by: by, reason: reason}
	play(r.fault, c, func() { c.revocation, c.err = c.s.Revoke(c.ctx, c.term, c.by, c.reason) })
	return c.revocation, c.err
}

func (r rigged) Fence(ctx context.Context, tx any, ref driver.Ref) error {
	c := &fenceCall{call: start(ctx, r.sound), tx: tx, ref: ref}
	play(r.fault, c, func() { c.err = c.s.Fence(c.ctx, c.tx, c.ref) })
	return c.err
}

func (r rigged) AwaitHint(ctx context.Context, v driver.Snapshot) driver.Release {
	c := &hintCall{call: start(ctx, r.sound), v: v}
	play(r.fault, c, func() { c.told = c.s.AwaitHint(c.ctx, c.v) })
	return c.told
}

// database is a new one whose store has a fault, or none.
func database(fault any) Database {
	var ahead time.Duration
	s := &sound{Store: memory.New(memory.WithClock(func() time.Time {
		return time.Now().Add(ahead)
	}))}
	empty := s.Backup()
	return Database{
		Open:                func(testing.TB) driver.Store { return rigged{s, fault} },
		Backup:              func(testing.TB) func() { return s.Backup() },
		HeartbeatsPassFence: true,
		Begin:               func(testing.TB) Tx { return begin(s.Store, &s.open) },
		Edit: func(_ testing.TB, e Edit) {
			if ahead += e.For; e.Silent != "" {
				return
			}
			if e.CursorOf != "" {
				raw := "edited"
				if e.CursorAt.IsZero() {
					raw = "yesterday"
				}
				s.EditCursor(e.CursorOf, e.CursorAt, raw)
				return
			}
			s.Edit(func(r *driver.Row) {
				r.Term, r.Beat = cmp.Or(e.Term, r.Term), cmp.Or(e.Beat, r.Beat)
				r.State = cmp.Or(e.State, r.State)
				r.RawToken = cmp.Or(e.Token, r.RawToken)
			})
			if e.DeleteRow {
				s.DeleteRow()
			}
			if e.EmptyTerms {
				empty()
			}
		},
	}
}

// theirs is the ref in the row, whoever asks.
func theirs(s *sound, ref driver.Ref) driver.Ref {
	if v, _ := s.Look(bg); v.Row != nil {
		return v.Row.Ref
	}
	return ref
}

// holder is the ref in the row, if there is one.
func holder(s *sound) driver.Ref { return theirs(s, driver.Ref{}) }

// swap makes the claim's judgement that of the moment: no compare and swap.
func swap(f func(now, judged *driver.Row)) func(*acquireCall) {
	return before(func(c *acquireCall) {
		v, _ := c.s.Look(bg)
		if v.Row != nil && c.claim.Expected.Row != nil {
			judged := *c.claim.Expected.Row
			f(v.Row, &judged)
			c.claim.Expected.Row = &judged
		}
	})
}

// eachTerm changes what Terms returns.
func eachTerm(change func(*driver.Term)) func(*termsCall) {
	return after(func(c *termsCall) { each(c.terms, change) })
}
