//go:build linux

package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// advisory is a session advisory lock of PostgreSQL, written by hand.
type advisory struct {
	noSetup
	poll time.Duration
}

func (c *advisory) about() about {
	a := about{name: "advisory lock, blocking", here: onPostgres,
		settings: "pg_advisory_lock on a connection of its own. The end of the connection " +
			"frees it, while the holder may not know"}
	if c.poll > 0 {
		a.name, a.poll = "advisory lock, tried", c.poll
		a.settings = "pg_try_advisory_lock every second"
	}
	return a
}

func (c *advisory) open(ctx context.Context, env environment, lock, _ string) (replica, error) {
	conn, err := pgx.Connect(ctx, env.Postgres)
	return &advisoryReplica{c: c, conn: conn, lock: lock}, err
}

type advisoryReplica struct {
	c    *advisory
	conn *pgx.Conn
	lock string
	held atomic.Bool
}

func (r *advisoryReplica) acquire(ctx context.Context) (err error) {
	for ok := false; !ok; {
		if r.c.poll == 0 {
			_, err = r.conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", r.lock)
			ok = true
		} else {
			err = r.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext($1))",
				r.lock).Scan(&ok)
		}
		if err != nil {
			return err
		}
		if !ok {
			time.Sleep(r.c.poll)
		}
	}
	r.held.Store(true)
	return nil
}

func (r *advisoryReplica) release(ctx context.Context) error {
	r.held.Store(false)
	_, err := r.conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtext($1))", r.lock)
	return err
}

func (r *advisoryReplica) renew(context.Context) error { return errNone }

func (r *advisoryReplica) check() func() bool {
	return func() bool { return r.held.Load() && !r.conn.IsClosed() }
}
