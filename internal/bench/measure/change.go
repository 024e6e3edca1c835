//go:build linux

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"example.com/schedlock/internal/clock"
)

// fleetSize is how many replicas a fleet has whose leader changes.
const fleetSize = 3

// A way is one way to change the leader.
type way struct {
	name string
	db   string
	settings
	signal syscall.Signal
	rounds int
}

// At this TTL the take-over without a proof of death is measured: its heartbeat
// interval and what comes on top of the TTL are as with longer ones.
const expiredTTL = 4 * time.Second

// shortGrace is the session grace of an app whose jobs return within a second of their
// cancellation. That of package startup is 5 s.
const shortGrace = 2 * time.Second

// The names of those that have a target.
const (
	takeOverSQLite  = "SQLite, take-over"
	takeOverGrace   = "PostgreSQL, take-over, session grace 5s"
	takeOverShort   = "PostgreSQL, take-over, session grace 2s"
	takeOverExpired = "PostgreSQL, take-over without signs of death, TTL 4s"
)

func handOver(db string) string { return db + ", hand-over" }

// ways are all of them, in the order of the table.
var ways = []way{
	{handOver(dbSQLite), dbSQLite, settings{}, syscall.SIGTERM, 50},
	{handOver(dbPostgres), dbPostgres, settings{}, syscall.SIGTERM, 50},
	{handOver(dbMariaDB), dbMariaDB, settings{}, syscall.SIGTERM, 50},
	{takeOverSQLite, dbSQLite, settings{}, syscall.SIGKILL, 50},
	{takeOverGrace, dbPostgres, settings{}, syscall.SIGKILL, 50},
	{takeOverShort, dbPostgres, settings{Grace: shortGrace}, syscall.SIGKILL, 20},
	{takeOverExpired, dbPostgres, settings{TTL: expiredTTL}, syscall.SIGKILL, 5},
	{"MariaDB, take-over, WithSessionSign, session grace 5s", dbMariaDB, settings{Sign: true},
		syscall.SIGKILL, 20},
	{"MariaDB, take-over without signs of death, TTL 4s", dbMariaDB, settings{TTL: expiredTTL},
		syscall.SIGKILL, 5},
}

// A change is what the rounds of a way took.
type change struct {
	Total sample // from the signal to IsLeader == nil on the next leader
	Held  sample // from when the release was sent; none after a kill
	Run   sample // from the same moment (after a kill: from it) to the start of the first run
	Own   sample // the release itself, of Held
}

func (m *measurer) changes(ctx context.Context) error {
	for _, w := range ways {
		if m.quick && w.signal == syscall.SIGKILL && w.TTL == 0 && w.db != dbSQLite {
			continue // it takes the grace
		}
		err := m.on(w.db, func(dsn string) (err error) {
			w.DSN = dsn
			m.report.Changes[w.name], err = w.change(ctx, m.rounds(w.rounds))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// change changes the leader n times by the signal.
func (w way) change(ctx context.Context, n int) (c change, err error) {
	f := newFleet(ctx, w.settings)
	defer f.close()
	var total, held, run, own []time.Duration
	for range n {
		f.forget()
		if err := f.fill(fleetSize); err != nil {
			return c, err
		}
		leader, term, err := f.settle(fleetSize)
		if err != nil {
			return c, err
		}
		pause(ctx, 100*time.Millisecond)
		begin := clock.System.Boot()
		leader.Signal(w.signal)
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
			return c, err
		}
		total = append(total, elected.at-begin)
		if w.signal == syscall.SIGTERM {
			f.mu.Lock()
			sent, ok := find(f.said, leader, saysReleasing)
			done, ok2 := find(f.said, leader, saysReleased)
			f.mu.Unlock()
			if !ok || !ok2 {
				return c, fmt.Errorf("the leader of term %d ended without a release", term)
			}
			held = append(held, elected.at-sent.at)
			own = append(own, done.at-sent.at)
			begin = sent.at
		}
		run = append(run, first.at-begin)
	}
	return change{newSample(total), newSample(held), newSample(run), newSample(own)}, nil
}
