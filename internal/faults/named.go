//go:build linux

package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks/queue"
)

// lockNames are what the processes compete for, each with one goroutine.
var lockNames = []string{"first", "second"}

// The TTL of named locks, and the time-out of captured tasks.
func (s Shape) lockTTL() time.Duration     { return s.TTL / 2 }
func (s Shape) taskTimeout() time.Duration { return s.TTL / 4 }

// pause is longer than d in a frugal process.
func (s Shape) pause(d time.Duration) time.Duration {
	if s.Frugal {
		d *= 5
	}
	return d
}

const (
	lockRest  = 50 * time.Millisecond // the longest between two holds
	lockHold  = 50 * time.Millisecond // the longest of a short hold
	longHolds = 20                    // one hold in so many lasts longer than the TTL
	lockRetry = 50 * time.Millisecond // after an error of the database
	lockPause = 50 * time.Millisecond // the longest between two looks of one who waits

	lockNote = 10 * time.Millisecond // every so often it is written down that the lock is held
)

// lockUser is what a process does with named locks and with a queue.
type lockUser struct {
	*program
	notes  recordLog
	locks  *named.Locks
	queues *queue.Queues
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// lockStages returns the stage that uses named locks and a queue, if the
// process is told to.
func (p *program) lockStages() []startup.Stage {
	if !p.Locks {
		return nil
	}
	u := &lockUser{program: p}
	return []startup.Stage{{Name: "locks", After: []string{startup.StageDatabase}, Start: u.start,
		Stop: u.stop}}
}

func (u *lockUser) start(context.Context) (err error) {
	if u.notes, err = openLog(u.Files + "locks"); err != nil {
		return err
	}
	opts := []named.Option{named.WithTTL(u.lockTTL())}
	names, workers := lockNames, 1
	if u.Load {
		names, workers = slices.Repeat(lockNames[:1], loadLockers), loadWorkers
	} else {
		opts = append(opts, named.WithMaxPause(u.pause(lockPause)))
	}
	if u.Owner != nil {
		opts = append(opts, named.WithOwner(*u.Owner))
	}
	if u.locks, err = named.New(u.backend.locks, opts...); err != nil {
		return err
	}
	if u.queues, err = queue.New(u.backend.queue, queue.WithTimeout(u.taskTimeout())); err != nil {
		return err
	}
	var ctx context.Context
	ctx, u.cancel = context.WithCancel(context.Background())
	for _, name := range names {
		u.work.Go(func() { u.compete(ctx, name) })
	}
	u.work.Go(func() { u.add(ctx) })
	for range workers {
		u.work.Go(func() { u.workOff(ctx) })
	}
	if u.Load {
		u.work.Go(func() { u.fill(ctx) })
		u.work.Go(func() { u.askOn(ctx) })
	}
	return nil
}

func (u *lockUser) stop(context.Context) error {
	u.cancel()
	u.work.Wait()
	return u.notes.Close()
}

func (u *lockUser) note(r Record) { u.notes.add(r) }

// compete takes a lock again and again.
func (u *lockUser) compete(ctx context.Context, name string) {
	for ctx.Err() == nil {
		err := u.locks.WithLock(ctx, name, func(ctx context.Context, lock *named.Lock) error {
			u.hold(ctx, lock)
			return nil
		})
		rest := rand.N(u.pause(lockRest))
		if err != nil && !errors.Is(err, schedlock.ErrLost) && ctx.Err() == nil {
			u.complain("lock %q: %v", name, err)
			rest = lockRetry
		}
		sleep(ctx, rest)
	}
}

// hold is what is done under a lock, until a random time has passed or its
// context ends.
func (u *lockUser) hold(ctx context.Context, lock *named.Lock) {
	d := time.Millisecond + rand.N(lockHold)
	switch {
	case rand.IntN(longHolds) == 0:
		d = u.lockTTL() + rand.N(u.lockTTL())
	case u.Quiet && rand.IntN(2) == 0:
		d += 2 * quietGrace
	}
	look := u.looker(ctx, lock)
	for end := bootTime() + d; bootTime() < end && sleep(ctx, u.look()); {
		look(false)
	}
	look(true)
	if lock.Err() != nil || rand.IntN(2) == 0 {
		u.writeUnder(ctx, lock)
	}
	lost := 0
	if lock.Err() != nil {
		lost = 1
	}
	u.note(Record{Kind: KindLeft, Job: lock.Name(), Term: lock.Term(), Attempt: lost})
}

// looker returns what looks whether the lock is held, and writes it down when
// that is due or wanted: first the times around the first look that said yes,
// then the time before the latest. A quiet process looks only at the context of
// its function: see believe.
func (u *lockUser) looker(ctx context.Context, lock *named.Lock) func(now bool) {
	r := Record{Kind: KindTook, Job: lock.Name(), Term: lock.Term()}
	if u.Quiet {
		r.Attempt = 1
	}
	var looked, doubt, noted time.Duration
	return func(now bool) {
		before := bootTime()
		if before-looked > freshBelief {
			doubt = before + quietGrace
		}
		looked = before
		var holds bool
		if u.Quiet {
			holds = before >= doubt && ctx.Err() == nil
		} else {
			holds = lock.Check() == nil
		}
		switch {
		case !holds:
			return
		case r.Kind == KindTook:
			r.At, r.Tick = bootTime(), int64(before)
		case now || before-noted >= lockNote:
			r.At = before
		default:
			return
		}
		u.note(r)
		noted, r.Kind, r.Tick = before, KindHolds, 0
	}
}

// writeUnder tries one fenced write. Where the lock is lost it goes straight at
// the database's own fence, as doSlow does.
func (u *lockUser) writeUnder(ctx context.Context, lock *named.Lock) {
	agreed := fence(lock.Fence)
	if lock.Err() != nil {
		agreed = func(ctx context.Context, tx any) error {
			ours, err := u.backend.locks.Fence(ctx, tx, lock.Ref(), u.lockTTL())
			if err == nil && !ours {
				err = schedlock.ErrLost
			}
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
	defer cancel()
	r := Record{Kind: KindWrote, Job: lock.Name(), Term: lock.Term()}
	switch err := u.backend.write(ctx, written{name: r.Job, term: r.Term}, agreed); {
	case errors.Is(err, schedlock.ErrLost):
		r.Kind = KindBarred
	case err != nil:
		return
	}
	u.note(r)
}
