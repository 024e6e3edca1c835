//go:build linux

package main

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

// module is this module, with the settings of package startup.
type module struct{ database string }

func (c *module) about() about {
	a := about{name: onSQLite, here: onSQLite, renew: 10 * time.Second,
		settings: "defaults of package startup: TTL 60 s, heartbeat 10 s"}
	if c.database == "PostgreSQL" {
		a.name, a.here = onPostgres, onPostgres
		a.settings += ", session grace 5 s"
	}
	return a
}

func (c *module) store(ctx context.Context, env environment, lock string) (driver.Store, error) {
	if c.database == "PostgreSQL" {
		return postgres.Opener(env.Postgres+"&search_path="+lock, postgres.WithLogger(quiet))(ctx)
	}
	return sqlite.Opener("file:" + filepath.Join(env.Dir, lock+".db"))(ctx)
}

func (c *module) setup(ctx context.Context, env environment, lock string) error {
	if c.database == "PostgreSQL" {
		if err := newSchema(ctx, env, lock); err != nil {
			return err
		}
	}
	s, err := c.store(ctx, env, lock)
	if err != nil {
		return err
	}
	return s.(io.Closer).Close()
}

// newSchema makes a schema, so that each lock has tables of its own.
func newSchema(ctx context.Context, env environment, name string) error {
	conn, err := pgx.Connect(ctx, env.Postgres)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{name}.Sanitize())
	return err
}

func (c *module) open(ctx context.Context, env environment, lock, id string) (replica, error) {
	s, err := c.store(ctx, env, lock)
	if err != nil {
		return nil, err
	}
	l, err := schedlock.New(s, schedlock.WithLogger(quiet),
		schedlock.WithSessionGrace(5*time.Second),
		schedlock.WithOwner(driver.Owner{PID: 1, Hostname: id}))
	return &moduleReplica{lock: l}, err
}

var quiet = slog.New(slog.DiscardHandler)

type moduleReplica struct {
	lock  *schedlock.Lock
	lease *schedlock.Lease // it renews itself
}

func (r *moduleReplica) acquire(ctx context.Context) (err error) {
	r.lease, err = r.lock.Wait(ctx)
	return err
}

func (r *moduleReplica) release(ctx context.Context) error { return r.lease.Release(ctx) }
func (r *moduleReplica) renew(ctx context.Context) error   { return r.lease.Heartbeat(ctx) }
func (r *moduleReplica) check() func() bool {
	return func() bool { return r.lock.IsLeader(context.Background()) == nil }
}
