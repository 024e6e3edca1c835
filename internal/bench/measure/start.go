//go:build linux

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// A started process: from just before it was started.
type started struct {
	Main sample // until its main function
	Open sample // from there until the database is open and its tables are up to date
	Held sample // until it holds the lock: all of it
}

// starts measures on new databases, and on one that has its tables and a free lock.
func (m *measurer) starts(ctx context.Context) error {
	return m.onEach(ctx, func(db, dsn string) (err error) {
		n := m.rounds(30)
		m.report.Starts[db+", new"], err = startTimes(ctx, n, func() (string, error) {
			return m.newDatabase(db)
		})
		if err != nil {
			return err
		}
		same := func() (string, error) { return dsn, nil }
		if _, err := startTimes(ctx, 1, same); err != nil {
			return err
		}
		m.report.Starts[db+", warm"], err = startTimes(ctx, n, same)
		return err
	})
}

// startTimes starts one replica after the other, each alone.
func startTimes(ctx context.Context, n int, next func() (string, error)) (s started, err error) {
	var main, open, held []time.Duration
	for range n {
		dsn, err := next()
		if err != nil {
			return s, err
		}
		f := newFleet(ctx, settings{DSN: dsn})
		r, err := f.start()
		if err != nil {
			return s, err
		}
		_, _, err = f.settle(1)
		if err == nil {
			r.Signal(syscall.SIGTERM) // leaves the lock free
			err = f.ended(r)
		}
		f.close()
		if err != nil {
			return s, err
		}
		began, ok := find(f.said, r, saysMain)
		opened, ok2 := find(f.said, r, saysOpened)
		elected, ok3 := find(f.said, r, saysElected)
		if !ok || !ok2 || !ok3 {
			return s, fmt.Errorf("replica %s did not say all", r.name)
		}
		main = append(main, began.at-r.spawned)
		open = append(open, opened.at-began.at)
		held = append(held, elected.at-r.spawned)
	}
	return started{newSample(main), newSample(open), newSample(held)}, nil
}
