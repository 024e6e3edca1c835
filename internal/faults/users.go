//go:build linux

package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// users ask the processes of a cluster, whichever, for runs now and then, and
// sometimes they pause everything for a while: see [Action].
type users struct {
	random *rand.Rand // of their own, so that the faults' choices can be repeated
	hush   sync.Once
	end    chan struct{}
	ended  sync.WaitGroup

	pausing sync.Mutex    // held while everything is paused
	never   bool          // nobody may pause any more; guarded by pausing
	number  int           // of the last order
	doubt   time.Duration // until then a pause may come of an order that nobody waits for any more
}

const (
	userRest    = 700 * time.Millisecond // the longest between two orders
	userPauses  = 5                      // one order in so many is a pause
	shortPause  = 300 * time.Millisecond
	longPause   = time.Second
	resumeAgain = time.Second // then another process is told to resume
)

// userJobs are what they ask for. The slow job is asked for seldom: its runs
// queue.
var userJobs = slices.Concat(slices.Repeat([]string{jobTick, jobOdd, jobOnce}, 8),
	[]string{jobSlow})

func (u *users) start(c *Cluster) {
	u.random, u.end = rand.New(rand.NewPCG(c.Seed, 3)), make(chan struct{})
	rest := userRest
	if c.Frugal {
		rest *= 2
	}
	u.ended.Go(func() {
		for {
			select {
			case <-u.end:
				u.recover(c)
				return
			case <-time.After(time.Duration(u.random.Int64N(int64(rest)))):
			}
			if bootTime() < u.doubt {
				u.recover(c)
			}
			if u.random.IntN(userPauses) == 0 {
				u.pause(c)
				continue
			}
			u.order(c, u.random.IntN(c.Processes), KindAsking,
				userJobs[u.random.IntN(len(userJobs))])
		}
	})
}

// stop returns once nothing is paused any more.
func (u *users) stop() {
	if u.end == nil {
		return
	}
	u.hush.Do(func() { close(u.end) })
	u.ended.Wait()
}

// order gives an order to the process of a slot, if there is one.
func (u *users) order(c *Cluster, slot int, kind Kind, job string) (number int) {
	u.number++
	c.steer(slot, func(s *Control) { s.Order = Order{Number: u.number, Kind: kind, Job: job} })
	return u.number
}

// pause lets one process pause everything, and later any of them resume.
func (u *users) pause(c *Cluster) {
	u.pausing.Lock()
	defer u.pausing.Unlock()
	if u.never {
		return
	}
	slot := u.random.IntN(c.Processes)
	number := u.order(c, slot, KindPausing, "")
	if !await(context.Background(), orderLimit, func() bool {
		return c.did(KindPaused, slot, number)
	}) {
		u.doubt = bootTime() + lateOrder // it may be carried out yet
	}
	time.Sleep(shortPause + time.Duration(u.random.Int64N(int64(longPause-shortPause))))
	u.resume(c)
}

// resume tells one process after the other to, until one has. Should none ever
// come so far, the cluster does not settle either, which says so.
func (u *users) resume(c *Cluster) {
	for begin := bootTime(); bootTime()-begin < 2*c.settleLimit(); {
		slot := u.random.IntN(c.Processes)
		number := u.order(c, slot, KindResuming, "")
		if await(context.Background(), resumeAgain, func() bool {
			return c.did(KindResumed, slot, number)
		}) {
			return
		}
	}
}

// recover ends a pause that nobody knows of: its order was carried out late.
func (u *users) recover(c *Cluster) {
	u.pausing.Lock()
	defer u.pausing.Unlock()
	if u.never {
		return
	}
	if paused, err := c.db.Paused(context.Background()); err == nil && paused {
		u.resume(c)
	}
}

// did reports whether the process of a slot has carried out an order.
func (c *Cluster) did(kind Kind, slot, number int) bool {
	c.mu.Lock()
	p := c.slots[slot]
	c.mu.Unlock()
	if p == nil {
		return false
	}
	return slices.ContainsFunc(lastRecords(p.file("log")), func(r Record) bool {
		return r.Kind == kind && r.Attempt == number
	})
}

// keepFromPausing waits until nothing is paused, and lets nobody pause until
// release is called, or never again: a backup would bring a pause back that was
// over, and nobody can end one in a database that is broken.
func (u *users) keepFromPausing(forever bool) (release func()) {
	u.pausing.Lock()
	u.never = u.never || forever
	return u.pausing.Unlock
}

// Quiet stops the orders, and waits until somebody leads and no request waits
// any more; if one waits for too long, that is in the history.
func (c *Cluster) Quiet(ctx context.Context) error {
	c.users.stop()
	if c.users.never {
		return nil
	}
	if _, err := c.settle(ctx, bootTime(), false); err != nil {
		return err
	}
	await(ctx, answerLimit+orderLimit, func() bool {
		var h History
		if c.db.Read(ctx, &h) == nil && len(h.Pending) == 0 {
			return true
		}
		sleep(ctx, 100*time.Millisecond)
		return false
	})
	return nil
}
