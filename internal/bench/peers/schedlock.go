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

// This module, with the settings of package startup.
var (
	moduleOnSQLite = contestant{name: onSQLite, here: onSQLite, renew: 10 * time.Second,
		settings: "defaults of package startup: TTL 60 s, heartbeat 10 s",
		setup:    setUpModule(sqliteStore), open: openModule(sqliteStore)}
	moduleOnPostgres = contestant{name: onPostgres, here: onPostgres, renew: 10 * time.Second,
		settings: "defaults of package startup: TTL 60 s, heartbeat 10 s, session grace 5 s",
		setup:    setUpModule(postgresStore), open: openModule(postgresStore)}
)

// A storeOpener opens a store whose tables are up to date.
type storeOpener func(ctx context.Context, env environment, lock string) (driver.Store, error)

func sqliteStore(ctx context.Context, env environment, lock string) (driver.Store, error) {
	return sqlite.Opener("file:" + filepath.Join(env.Dir, lock+".db"))(ctx)
}

// postgresStore has tables of its own, in a schema of its own.
func postgresStore(ctx context.Context, env environment, lock string) (driver.Store, error) {
	if err := newSchema(ctx, env, lock); err != nil {
		return nil, err
	}
	return postgres.Opener(env.Postgres+"&search_path="+lock, postgres.WithLogger(quiet))(ctx)
}

func setUpModule(store storeOpener) func(context.Context, environment, string) error {
	return func(ctx context.Context, env environment, lock string) error {
		s, err := store(ctx, env, lock)
		if err != nil {
			return err
		}
		return s.(io.Closer).Close()
	}
}

func openModule(store storeOpener) opener {
	return func(ctx context.Context, env environment, lock, id string) (replica, error) {
		s, err := store(ctx, env, lock)
		if err != nil {
			return nil, err
		}
		l, err := schedlock.New(s, schedlock.WithLogger(quiet),
			schedlock.WithSessionGrace(5*time.Second),
			schedlock.WithOwner(driver.Owner{PID: 1, Hostname: id}))
		return &moduleReplica{lock: l}, err
	}
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
