//go:build linux

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// fleetSize is how many replicas a fleet of the hand-overs has.
const fleetSize = 3

// A change is what the rounds of one way to change the leader took.
type change struct {
	Total sample // from the signal to IsLeader == nil on the next leader
	Held  sample // from when the release was sent; none after a kill
	Run   sample // from the same moment (after a kill: from it) to the start of the first run
	Own   sample // the release itself, of Held
}

// changes are measured on each database.
type changes struct {
	Handover map[string]*change // by database
	Takeover map[string]*change // SQLite, at the default TTL
	Signs    *change            // PostgreSQL, at the default TTL and session grace
	Short    *change            // the same, at shortGrace
	Expired  *change            // PostgreSQL, at expiredTTL, where the grace is longer
}

// At this TTL the take-over without a proof of death is measured: its heartbeat
// interval and what comes on top of the TTL are as with longer ones.
const (
	expiredTTL       = 4 * time.Second
	expiredHeartbeat = time.Second
)

// The session graces are that of package startup, and one for an app whose jobs return within a
// second of their cancellation.
const (
	defaultGrace = 5 * time.Second
	shortGrace   = 2 * time.Second
)

func (m *measurer) changes(ctx context.Context) error {
	m.report.Changes = &changes{Handover: map[string]*change{}, Takeover: map[string]*change{}}
	err := m.onEach(ctx, func(db, dsn string) error {
		c, err := rounds(ctx, newFleet(ctx, dsn), m.rounds(50), syscall.SIGTERM)
		m.report.Changes.Handover[db] = c
		return err
	})
	if err != nil {
		return err
	}
	m.noise(ctx, "take-over")
	if m.report.Changes.Takeover[dbSQLite], err = rounds(ctx, newFleet(ctx, m.sqliteFile()),
		m.rounds(50), syscall.SIGKILL); err != nil {
		return err
	}
	if m.quick {
		return nil
	}
	err = m.onPostgres(func(dsn string) error {
		m.report.Changes.Signs, err = rounds(ctx, newFleet(ctx, dsn), 50, syscall.SIGKILL)
		return err
	})
	if err != nil {
		return err
	}
	err = m.onPostgres(func(dsn string) error {
		f := newFleet(ctx, dsn)
		f.grace = shortGrace
		m.report.Changes.Short, err = rounds(ctx, f, 20, syscall.SIGKILL)
		return err
	})
	if err != nil {
		return err
	}
	return m.onPostgres(func(dsn string) error {
		f := newFleet(ctx, dsn)
		f.ttl, f.heartbeat = expiredTTL, expiredHeartbeat
		m.report.Changes.Expired, err = rounds(ctx, f, 5, syscall.SIGKILL)
		return err
	})
}

// rounds changes the leader n times by a signal.
func rounds(ctx context.Context, f *fleet, n int, signal syscall.Signal) (*change, error) {
	defer f.close()
	if err := f.fill(fleetSize); err != nil {
		return nil, err
	}
	var total, held, run, own []time.Duration
	for range n {
		f.forget()
		if err := f.fill(fleetSize); err != nil {
			return nil, err
		}
		leader, term, err := f.settle(fleetSize)
		if err != nil {
			return nil, err
		}
		pause(ctx, 100*time.Millisecond)
		begin := bootTime()
		if err := leader.cmd.Process.Signal(signal); err != nil {
			return nil, err
		}
		var elected, first remark
		err = f.await(fmt.Sprintf("the next leader after term %d has started a run", term),
			func(said []remark) bool {
				elected, _ = find(said, nil, saysElected)
				first, _ = find(said, elected.from, saysRun)
				return elected.number > term && first.number == elected.number
			})
		if err == nil {
			err = f.ended(leader)
		}
		if err != nil {
			return nil, err
		}
		total = append(total, elected.at-begin)
		if signal == syscall.SIGTERM {
			f.mu.Lock()
			sent, ok := find(f.said, leader, saysReleasing)
			done, ok2 := find(f.said, leader, saysReleased)
			f.mu.Unlock()
			if !ok || !ok2 {
				return nil, fmt.Errorf("the leader of term %d ended without a release", term)
			}
			held = append(held, elected.at-sent.at)
			own = append(own, done.at-sent.at)
			begin = sent.at
		}
		run = append(run, first.at-begin)
	}
	return &change{newSample(total), newSample(held), newSample(run), newSample(own)}, nil
}
