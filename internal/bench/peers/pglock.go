//go:build linux

package main

import (
	"context"
	"database/sql"

	"cirello.io/pglock"
	_ "github.com/lib/pq" // the driver that pglock demands
)

// pgLock is cirello.io/pglock.
var pgLock = contestant{name: "pglock", here: onPostgres,
	renew: pglock.DefaultHeartbeatFrequency, poll: pglock.DefaultLeaseDuration,
	settings: "defaults: lease 20 s, heartbeat 5 s; a standby looks every 20 s",
	setup: func(_ context.Context, env environment, _ string) error {
		client, err := pgLockClient(env, "setup")
		if err != nil {
			return err
		}
		return client.TryCreateTable()
	},
	open: func(_ context.Context, env environment, lock, id string) (replica, error) {
		client, err := pgLockClient(env, id)
		return &pgLockReplica{client: client, name: lock}, err
	},
}

func pgLockClient(env environment, id string) (*pglock.Client, error) {
	db, err := sql.Open("postgres", env.Postgres)
	if err != nil {
		return nil, err
	}
	client, err := pglock.New(db, pglock.WithOwner(id))
	if err != nil {
		return nil, err
	}
	return client, db.Ping()
}

type pgLockReplica struct {
	client *pglock.Client
	name   string
	lock   *pglock.Lock
}

func (r *pgLockReplica) acquire(ctx context.Context) (err error) {
	r.lock, err = r.client.AcquireContext(ctx, r.name)
	return err
}

func (r *pgLockReplica) release(ctx context.Context) error {
	return r.client.ReleaseContext(ctx, r.lock)
}

func (r *pgLockReplica) renew(ctx context.Context) error {
	return r.client.SendHeartbeat(ctx, r.lock)
}

func (r *pgLockReplica) check() func() bool {
	return func() bool { return !r.lock.IsReleased() }
}
