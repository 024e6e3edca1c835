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

// starts are measured on each database, new and not.
type starts struct {
	Fresh map[string]*started // the database is empty: the tables are made
	Warm  map[string]*started // the tables are there, the lock is free
}

func (m *measurer) starts(ctx context.Context) error {
	s := &starts{Fresh: map[string]*started{}, Warm: map[string]*started{}}
	m.report.Starts = s
	return m.onEach(ctx, func(db, dsn string) (err error) {
		another := func() (string, error) { return m.sqliteFile(), nil }
		if db == dbPostgres {
			another = m.newDatabase
		}
		if s.Fresh[db], err = startTimes(ctx, m.rounds(30), another); err != nil {
			return err
		}
		if _, err := startTimes(ctx, 1, func() (string, error) { return dsn, nil }); err != nil {
			return err
		}
		s.Warm[db], err = startTimes(ctx, m.rounds(30), func() (string, error) { return dsn, nil })
		return err
	})
}

// startTimes starts one replica after the other, each alone.
func startTimes(ctx context.Context, n int, next func() (dsn string, err error)) (*started, error) {
	var main, open, held []time.Duration
	for range n {
		dsn, err := next()
		if err != nil {
			return nil, err
		}
		f := newFleet(ctx, dsn)
		r, err := f.start()
		if err != nil {
			return nil, err
		}
		_, _, err = f.settle(1)
		if err == nil {
			_ = r.cmd.Process.Signal(syscall.SIGTERM) // leaves the lock free
			err = f.ended(r)
		}
		f.close()
		if err != nil {
			return nil, err
		}
		began, ok := find(f.said, r, saysMain)
		opened, ok2 := find(f.said, r, saysOpened)
		elected, ok3 := find(f.said, r, saysElected)
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("replica %s did not say all", r.name)
		}
		main = append(main, began.at-r.spawned)
		open = append(open, opened.at-began.at)
		held = append(held, elected.at-r.spawned)
	}
	return &started{newSample(main), newSample(open), newSample(held)}, nil
}
