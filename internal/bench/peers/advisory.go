//go:build linux

package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// These are session advisory locks of PostgreSQL, written by hand.
var (
	advisoryBlocking = contestant{name: "advisory lock, blocking", here: onPostgres,
		settings: "pg_advisory_lock on a connection of its own. The end of the connection " +
			"frees it, while the holder may not know",
		open: openAdvisory(0)}
	advisoryTried = contestant{name: "advisory lock, tried", here: onPostgres, poll: time.Second,
		settings: "pg_try_advisory_lock every second", open: openAdvisory(time.Second)}
)

func openAdvisory(poll time.Duration) opener {
	return func(ctx context.Context, env environment, lock, _ string) (replica, error) {
		conn, err := pgx.Connect(ctx, env.Postgres)
		return &advisoryReplica{poll: poll, conn: conn, lock: lock}, err
	}
}

type advisoryReplica struct {
	poll time.Duration // 0: the statement waits
	conn *pgx.Conn
	lock string
	held atomic.Bool
}

func (r *advisoryReplica) acquire(ctx context.Context) (err error) {
	for ok := false; !ok; {
		if r.poll == 0 {
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
			time.Sleep(r.poll)
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

func (r *advisoryReplica) check() func() bool {
	return func() bool { return r.held.Load() && !r.conn.IsClosed() }
}
