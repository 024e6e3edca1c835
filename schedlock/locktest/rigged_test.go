package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

// sound is a store in memory that has all features: a fenced transaction is
// one that holds the turn.
type sound struct {
	*memory.Store
	turn chan struct{}
}

type memoryTx struct {
	s      *sound
	fenced bool
}

func (tx *memoryTx) end() error {
	if tx.fenced {
		tx.fenced = false
		<-tx.s.turn
	}
	return nil
}

var errBusy = errors.New("busy")

func (s *sound) Acquire(ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		return s.Store.Acquire(ctx, c)
	case <-time.After(20 * time.Millisecond):
		return schedlock.Grant{}, errBusy
	}
}

func (s *sound) Fence(ctx context.Context, tx any, ref schedlock.Ref) error {
	t, ok := tx.(*memoryTx)
	if !ok {
		return schedlock.ErrNoFence
	}
	if !t.fenced {
		s.turn <- struct{}{}
		t.fenced = true
	}
	v, err := s.Look(ctx)
	if err == nil && (v.Row == nil || v.Row.Token != ref.Token || v.Row.Term != ref.Term) {
		err = schedlock.ErrLost
	}
	return err
}

func (s *sound) AwaitHint(ctx context.Context, view schedlock.View) {
	for ctx.Err() == nil {
		if v, _ := s.Look(ctx); v.Row == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// rigged is a sound store of which some methods are replaced.
type rigged struct {
	*sound
	rig
}

type rig struct {
	look      func(*sound, context.Context) (schedlock.View, error)
	acquire   func(*sound, context.Context, schedlock.Claim) (schedlock.Grant, error)
	heartbeat func(*sound, context.Context, schedlock.Ref, schedlock.State) (schedlock.Beat, error)
	release   func(*sound, context.Context, schedlock.Ref, schedlock.EndReason) (bool, error)
	terms     func(*sound, context.Context, int) ([]schedlock.Term, error)
	revoke    func(*sound, context.Context, int64, string, string) (schedlock.Revocation, error)
	fence     func(*sound, context.Context, any, schedlock.Ref) error
	hint      func(*sound, context.Context, schedlock.View)
	jobs      func(*sound, context.Context) ([]ledger.Job, error)
	decide    func(*sound, context.Context, schedlock.Ref, ledger.Decision) (ledger.Run, bool, error)
	finish    func(*sound, context.Context, ledger.Run, ledger.End) (bool, error)
	abandon   func(*sound, context.Context, schedlock.Ref, func(ledger.Run) time.Time) ([]ledger.Run, error)
	runs      func(*sound, context.Context, string, int) ([]ledger.Run, error)
	retry     func(*sound, context.Context, schedlock.Ref, ledger.Run) (ledger.Run, bool, error)
	giveUp    func(*sound, context.Context, schedlock.Ref, ledger.Run) (bool, error)
	retries   func(*sound, context.Context) ([]ledger.Run, error)
	run       func(*sound, context.Context, string, time.Time) (ledger.Run, bool, error)
	trigger   func(*sound, context.Context, ledger.Order) (ledger.Request, error)
	answer    func(*sound, context.Context, schedlock.Ref, ledger.Request, string) (ledger.Run, bool, error)
	pause     func(*sound, context.Context, ledger.Order) (ledger.Pause, error)
	resume    func(*sound, context.Context, string, string) (bool, error)
	inbox     func(*sound, context.Context) (ledger.Inbox, error)
	prune     func(*sound, context.Context, string, int, int) (int64, error)
}

func (r *rigged) Revoke(ctx context.Context, term int64, by, reason string) (schedlock.Revocation, error) {
	if r.revoke != nil {
		return r.revoke(r.sound, ctx, term, by, reason)
	}
	return r.sound.Revoke(ctx, term, by, reason)
}

func (r *rigged) Look(ctx context.Context) (schedlock.View, error) {
	if r.look != nil {
		return r.look(r.sound, ctx)
	}
	return r.sound.Look(ctx)
}

func (r *rigged) Acquire(ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
	if r.acquire != nil {
		return r.acquire(r.sound, ctx, c)
	}
	return r.sound.Acquire(ctx, c)
}

func (r *rigged) Heartbeat(ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
	if r.heartbeat != nil {
		return r.heartbeat(r.sound, ctx, ref, state)
	}
	return r.sound.Heartbeat(ctx, ref, state)
}

func (r *rigged) Release(ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
	if r.release != nil {
		return r.release(r.sound, ctx, ref, reason)
	}
	return r.sound.Release(ctx, ref, reason)
}

func (r *rigged) Terms(ctx context.Context, limit int) ([]schedlock.Term, error) {
	if r.terms != nil {
		return r.terms(r.sound, ctx, limit)
	}
	return r.sound.Terms(ctx, limit)
}

func (r *rigged) Fence(ctx context.Context, tx any, ref schedlock.Ref) error {
	if r.fence != nil {
		return r.fence(r.sound, ctx, tx, ref)
	}
	return r.sound.Fence(ctx, tx, ref)
}

func (r *rigged) AwaitHint(ctx context.Context, v schedlock.View) {
	if r.hint != nil {
		r.hint(r.sound, ctx, v)
		return
	}
	r.sound.AwaitHint(ctx, v)
}

func (r *rigged) Jobs(ctx context.Context) ([]ledger.Job, error) {
	if r.jobs != nil {
		return r.jobs(r.sound, ctx)
	}
	return r.sound.Jobs(ctx)
}

func (r *rigged) Decide(ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
	if r.decide != nil {
		return r.decide(r.sound, ctx, ref, d)
	}
	return r.sound.Decide(ctx, ref, d)
}

func (r *rigged) Finish(ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
	if r.finish != nil {
		return r.finish(r.sound, ctx, run, end)
	}
	return r.sound.Finish(ctx, run, end)
}

func (r *rigged) Abandon(ctx context.Context, ref schedlock.Ref, retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	if r.abandon != nil {
		return r.abandon(r.sound, ctx, ref, retryAt)
	}
	return r.sound.Abandon(ctx, ref, retryAt)
}

func (r *rigged) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	if r.runs != nil {
		return r.runs(r.sound, ctx, job, limit)
	}
	return r.sound.Runs(ctx, job, limit)
}

func (r *rigged) Retry(ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
	if r.retry != nil {
		return r.retry(r.sound, ctx, ref, run)
	}
	return r.sound.Retry(ctx, ref, run)
}

func (r *rigged) GiveUp(ctx context.Context, ref schedlock.Ref, run ledger.Run) (bool, error) {
	if r.giveUp != nil {
		return r.giveUp(r.sound, ctx, ref, run)
	}
	return r.sound.GiveUp(ctx, ref, run)
}

func (r *rigged) Retries(ctx context.Context) ([]ledger.Run, error) {
	if r.retries != nil {
		return r.retries(r.sound, ctx)
	}
	return r.sound.Retries(ctx)
}

func (r *rigged) Run(ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
	if r.run != nil {
		return r.run(r.sound, ctx, job, tick)
	}
	return r.sound.Run(ctx, job, tick)
}

func (r *rigged) Trigger(ctx context.Context, o ledger.Order) (ledger.Request, error) {
	if r.trigger != nil {
		return r.trigger(r.sound, ctx, o)
	}
	return r.sound.Trigger(ctx, o)
}

func (r *rigged) Answer(ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
	if r.answer != nil {
		return r.answer(r.sound, ctx, ref, q, skip)
	}
	return r.sound.Answer(ctx, ref, q, skip)
}

func (r *rigged) Pause(ctx context.Context, o ledger.Order) (ledger.Pause, error) {
	if r.pause != nil {
		return r.pause(r.sound, ctx, o)
	}
	return r.sound.Pause(ctx, o)
}

func (r *rigged) Resume(ctx context.Context, job, by string) (bool, error) {
	if r.resume != nil {
		return r.resume(r.sound, ctx, job, by)
	}
	return r.sound.Resume(ctx, job, by)
}

func (r *rigged) Inbox(ctx context.Context) (ledger.Inbox, error) {
	if r.inbox != nil {
		return r.inbox(r.sound, ctx)
	}
	return r.sound.Inbox(ctx)
}

func (r *rigged) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	if r.prune != nil {
		return r.prune(r.sound, ctx, job, keep, limit)
	}
	return r.sound.Prune(ctx, job, keep, limit)
}

// database is a new database whose store is rigged.
func (r rig) database() Database {
	s := &sound{memory.New(), make(chan struct{}, 1)}
	empty := s.Backup()
	return Database{
		Open:                func(testing.TB) schedlock.Store { return &rigged{s, r} },
		Backup:              func(testing.TB) func() { return s.Backup() },
		HeartbeatsPassFence: true,
		Begin: func(testing.TB) Tx {
			tx := &memoryTx{s: s}
			return Tx{tx, tx.end, tx.end}
		},
		Edit: func(_ testing.TB, e Edit) {
			s.Edit(func(r *schedlock.Row) {
				r.Term, r.Beat, r.State = cmp.Or(e.Term, r.Term), cmp.Or(e.Beat, r.Beat), cmp.Or(e.State, r.State)
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

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed bool
	said   strings.Builder
}

func (r *recorder) Error(args ...any) { r.failed = true; fmt.Fprintln(&r.said, args...) }
func (r *recorder) Errorf(f string, args ...any) {
	r.failed = true
	fmt.Fprintf(&r.said, f+"\n", args...)
}
func (r *recorder) Fatal(args ...any)            { r.Error(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); r.FailNow() }
func (r *recorder) Fail()                        { r.failed = true }
func (r *recorder) FailNow()                     { r.failed = true; runtime.Goexit() }
func (r *recorder) Failed() bool                 { return r.failed }

// record tries a rule on a database and returns what failed, "" if nothing.
func record(t testing.TB, c testCase, db Database, patience time.Duration) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.try(r, db, patience)
	}()
	<-done
	if r.failed {
		return r.said.String() + " "
	}
	return ""
}
