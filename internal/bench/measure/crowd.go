//go:build linux

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock"
)

// A crowd is many replicas in this one process: each has a store, that is a
// connection, and a lock of its own.
type crowd struct {
	seen    meter
	members []member
	won     chan win
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type member struct {
	store  metered
	lock   *schedlock.Lock
	rejoin chan struct{}
}

type win struct {
	*member
	lease *schedlock.Lease
	at    time.Duration
}

// newCrowd opens so many stores, and lets all of them campaign.
func newCrowd(ctx context.Context, dsn string, size int) (*crowd, error) {
	c := &crowd{won: make(chan win, size), members: make([]member, size)}
	errs := make([]error, size)
	join := func(i int) {
		m := &c.members[i]
		if m.store, errs[i] = openStore(ctx, dsn, &c.seen, false); errs[i] == nil {
			m.rejoin = make(chan struct{})
			m.lock, errs[i] = schedlock.New(m.store, schedlock.WithLogger(quiet))
		}
	}
	join(0) // which makes the tables
	var open sync.WaitGroup
	gate := make(chan struct{}, 8)
	for i := 1; i < size && errs[0] == nil; i++ {
		open.Go(func() {
			gate <- struct{}{}
			join(i)
			<-gate
		})
	}
	open.Wait()
	if err := errors.Join(errs...); err != nil {
		c.close()
		return nil, err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	for i := range c.members {
		c.running.Go(func() { c.members[i].campaign(ctx, c.won) })
	}
	return c, nil
}

// campaign waits for the lock again and again.
func (m *member) campaign(ctx context.Context, won chan<- win) {
	for {
		lease, err := m.lock.Wait(ctx)
		if err != nil {
			return
		}
		won <- win{m, lease, clock.System.Boot()}
		select {
		case <-m.rejoin:
		case <-ctx.Done():
			_ = lease.Release(ctx)
			return
		}
	}
}

// handOvers lets the leader release so many times, and returns what it took
// from when the release was sent until another leads.
func (c *crowd) handOvers(ctx context.Context, rounds int) (sample, error) {
	var took []time.Duration
	leader, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	for range rounds {
		if err := c.calm(ctx); err != nil {
			return nil, err
		}
		pause(ctx, 200*time.Millisecond)
		sent := clock.System.Boot()
		if err := leader.lease.Release(ctx); err != nil {
			return nil, err
		}
		next, err := c.next(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, next.at-sent)
		leader.rejoin <- struct{}{}
		leader = next
	}
	return newSample(took), nil
}

func (c *crowd) next(ctx context.Context) (win, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("nobody leads"))
	defer cancel()
	select {
	case w := <-c.won:
		return w, nil
	case <-ctx.Done():
		return win{}, context.Cause(ctx)
	}
}

// calm waits until the standbys wait for a hint, but for those few that look at
// this moment because a second has passed.
func (c *crowd) calm(ctx context.Context) error {
	standbys := int64(len(c.members) - 1)
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		errors.New("the standbys do not come to rest"))
	defer cancel()
	for quietFor := 0; quietFor < 5; quietFor++ {
		if c.seen.waiting.Load() < standbys-standbys/20 {
			quietFor = -1
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// close ends the campaigns and closes the stores.
func (c *crowd) close() {
	if c.cancel != nil {
		c.cancel()
	}
	c.running.Wait()
	var closing sync.WaitGroup
	for _, m := range c.members {
		if m.rejoin != nil { // it is open
			closing.Go(func() { _ = m.store.Close() })
		}
	}
	closing.Wait()
}

// crowdSizes are how many replicas a crowd has.
var crowdSizes = []int{3, 20, 100, thousand + 1}

const thousand = 1000

// crowds are the hand-overs of fleets of several sizes.
func (m *measurer) crowds(ctx context.Context) error {
	return m.onEach(ctx, func(db, dsn string) error {
		for _, size := range crowdSizes {
			if m.quick && size > 3 || db != dbPostgres && size > thousand {
				break
			}
			c, err := newCrowd(ctx, dsn, size)
			if err != nil {
				return err
			}
			m.report.Crowds[db][size], err = c.handOvers(ctx, m.rounds(25))
			c.close()
			if err != nil {
				return err
			}
		}
		return nil
	})
}
