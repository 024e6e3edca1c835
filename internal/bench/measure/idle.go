//go:build linux

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// idleCost is what standbys cost while nothing happens: the leader's next
// heartbeat is hours away, so everything that is counted is theirs.
type idleCost struct {
	DB         string
	Standbys   int
	Looks      float64       // per second, of each, as the store counts: each is one SELECT
	Statements float64       // the same, as the server counts; 0: there is no server
	Written    float64       // bytes an hour, by all of their processes together
	Changed    databaseState // by how much the database changed
	CPU        float64       // part of one core, of each
	Server     float64       // part of one core, of the server's processes, for each
	Memory     float64       // bytes of each: its proportional set size
	Conns      float64       // of each
}

// fleetCost is what a fleet with a leader costs, which has no run to start.
type fleetCost struct {
	Beats     int64         // heartbeats of the leader
	Written   int64         // bytes, by the processes of the standbys
	Leader    int64         // bytes, by the process of the leader
	Changed   databaseState // by how much the database changed
	LeaderCPU float64
	LeaderMem float64
}

func (m *measurer) idle(ctx context.Context) error {
	sizes, window := []int{1, 10, 100}, 10*time.Second
	if m.quick {
		sizes, window = []int{1, 2}, time.Second
	}
	err := m.onEach(ctx, func(db, dsn string) error {
		for _, n := range sizes {
			cost, err := idleStandbys(ctx, dsn, n, window)
			if err != nil {
				return err
			}
			cost.DB = db
			m.report.Idle = append(m.report.Idle, cost)
		}
		return nil
	})
	if err != nil || m.quick {
		return err
	}
	// All at a time: they sleep nearly always.
	var (
		fleets sync.WaitGroup
		mu     sync.Mutex
		errs   []error
	)
	err = m.onEach(ctx, func(db, dsn string) error {
		fleets.Go(func() {
			cost, err := idleFleet(ctx, dsn, 20, time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); err == nil {
				m.report.Fleets[db] = cost
			}
		})
		return nil
	})
	fleets.Wait()
	return errors.Join(append(errs, err)...)
}

// idleStandbys measures standbys of a leader in this process.
func idleStandbys(ctx context.Context, dsn string, n int, window time.Duration) (
	c idleCost, err error) {
	store, err := openStore(ctx, as(dsn, "leader"), &meter{}, false)
	if err != nil {
		return c, err
	}
	defer store.Close()
	lock, err := schedlock.New(store, schedlock.WithLogger(quiet), schedlock.WithTTL(driver.MaxTTL),
		schedlock.WithHeartbeatInterval(6*time.Hour))
	if err != nil {
		return c, err
	}
	lease, err := lock.Acquire(ctx)
	if err != nil {
		return c, err
	}
	defer func() { _ = lease.Release(ctx) }()

	f := newFleet(ctx, settings{DSN: as(dsn, "standby")})
	defer f.close()
	if err := f.fill(n); err != nil {
		return c, err
	}
	err = f.await("all stand by", func(said []remark) bool {
		for _, r := range f.replicas {
			if _, ok := find(said, r, saysStandby); !ok {
				return false
			}
		}
		return true
	})
	if err != nil {
		return c, err
	}
	// A session of the server reports what it did after its next statement, or 10 s.
	used, err := f.useWithin(dsn, window, func() error {
		_, err := store.Look(ctx)
		return err
	})
	each := used.at.Seconds() * float64(n)
	return idleCost{
		Standbys:   n,
		Looks:      float64(used.looks) / used.looked.Seconds(),
		Statements: float64(used.database.statements) / each,
		Written:    float64(used.written) / used.at.Hours(),
		Changed:    used.database,
		CPU:        used.cpu.Seconds() / each,
		Server:     used.database.cpu.Seconds() / each,
		Memory:     used.memory / float64(n),
		Conns:      float64(used.database.conns) / float64(n),
	}, err
}

// idleFleet measures a fleet as it is: its leader is one of the replicas.
func idleFleet(ctx context.Context, dsn string, standbys int, window time.Duration) (
	c fleetCost, err error) {
	f := newFleet(ctx, settings{DSN: dsn})
	defer f.close()
	if err := f.fill(standbys + 1); err != nil {
		return c, err
	}
	leader, _, err := f.settle(standbys + 1)
	if err != nil {
		return c, err
	}
	// The beat is read outside of what is counted.
	beat, err := readBeat(ctx, dsn)
	if err != nil {
		return c, err
	}
	var before usage
	used, err := f.useWithin(dsn, window, func() (err error) {
		before, err = processUsage(leader.PID())
		return err
	})
	if err != nil {
		return c, err
	}
	own, err := processUsage(leader.PID())
	if err != nil {
		return c, err
	}
	end, err := readBeat(ctx, dsn)
	byLeader := own.written - before.written
	return fleetCost{
		Beats:   end - beat,
		Written: used.written - byLeader, Leader: byLeader,
		Changed:   used.database,
		LeaderCPU: (own.cpu - before.cpu).Seconds() / used.at.Seconds(),
		LeaderMem: own.memory,
	}, err
}

// readBeat reads the leader's beat.
func readBeat(ctx context.Context, dsn string) (int64, error) {
	store, err := openStore(ctx, dsn, &meter{}, false)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	info, err := schedlock.GetLockInfo(ctx, store)
	if err != nil || info == nil {
		return 0, errors.Join(err, errors.New("nobody leads"))
	}
	return info.Beat, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
