//go:build linux

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.com/schedlock/schedlock"
)

// A crowd is many replicas in this one process: each has a store, that is a
// connection, and a lock of its own.
type crowd struct {
	seen    meter
	members []*member
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
	c := &crowd{won: make(chan win, size)}
	first, err := openStore(ctx, dsn, &c.seen) // which makes the tables
	if err != nil {
		return nil, err
	}
	c.add(first)
	var (
		mu   sync.Mutex
		errs []error
		open sync.WaitGroup
	)
	gate := make(chan struct{}, 8)
	for range size - 1 {
		open.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			store, err := openStore(ctx, dsn, &c.seen)
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); err == nil {
				c.add(store)
			}
		})
	}
	open.Wait()
	for _, m := range c.members {
		m.lock, err = schedlock.New(m.store, schedlock.WithLogger(quiet))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		c.close()
		return nil, err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	for _, m := range c.members {
		c.running.Go(func() { m.campaign(ctx, c.won) })
	}
	return c, nil
}

func (c *crowd) add(store metered) {
	c.members = append(c.members, &member{store: store, rejoin: make(chan struct{})})
}

// campaign waits for the lock again and again.
func (m *member) campaign(ctx context.Context, won chan<- win) {
	for {
		lease, err := m.lock.Wait(ctx)
		if err != nil {
			return
		}
		won <- win{m, lease, bootTime()}
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
		sent := bootTime()
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
		closing.Go(func() { _ = m.store.Close() })
	}
	closing.Wait()
}

// crowds are the hand-overs of fleets of several sizes.
type crowds struct {
	Sizes []int
	Took  map[string]map[int]sample // by database, then size
}

const thousand = 1000

func (m *measurer) crowds(ctx context.Context) error {
	c := &crowds{Sizes: []int{3, 20, 100}, Took: map[string]map[int]sample{}}
	if m.quick {
		c.Sizes = []int{3}
	}
	m.report.Crowds = c
	err := m.onEach(ctx, func(db, dsn string) error {
		c.Took[db] = map[int]sample{}
		for _, size := range c.Sizes {
			took, err := crowdOf(ctx, dsn, size, m.rounds(25))
			if err != nil {
				return err
			}
			c.Took[db][size] = took
		}
		return nil
	})
	if err != nil || m.quick {
		return err
	}
	m.noise(ctx, "1,000 standbys")
	return m.onPostgres(func(dsn string) error {
		took, err := crowdOf(ctx, dsn, thousand+1, 25)
		c.Took[dbPostgres][thousand] = took
		return err
	})
}

func crowdOf(ctx context.Context, dsn string, size, rounds int) (sample, error) {
	c, err := newCrowd(ctx, dsn, size)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.handOvers(ctx, rounds)
}
