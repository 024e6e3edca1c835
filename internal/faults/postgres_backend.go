//go:build linux

package faults

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/schedlock/postgres"
)

const kindPostgres = "postgres"

const sqlWritePostgres = `
INSERT INTO faults_writes (name, term, job, tick) VALUES ($1, $2, $3, $4)`

// openPostgres opens the database for the test program: with a pool of the
// app's own, and a store that has its settings from the URL or from the pool.
// There is no clock of the process to step: the server's counts.
func openPostgres(ctx context.Context, s Settings, _ func() time.Time) (b backend, err error) {
	config, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		return b, err
	}
	config.MaxConns = appPool
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return b, err
	}
	// The proxies of the harness pass on the end of a connection at once, and
	// have no time-out. A tunnel may have one.
	var opts []postgres.Option
	if s.Tunnel == "" {
		opts = append(opts, postgres.WithDirectConnection())
	}
	open := postgres.Opener(s.DSN, opts...)
	if s.AppPool {
		open = postgres.Use(pool, opts...)
	}
	store, err := open.Open(ctx)
	if err != nil {
		return b, err
	}
	b.store, b.locks, b.queue = store, store.Named(), store.Queue()
	b.exhaust = exhauster(stdlib.OpenDBFromPool(pool))
	b.write = func(ctx context.Context, w written, agreed fence) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = tx.Rollback(ctx)
		}()
		if err := agreed(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlWritePostgres, w.name, w.term, w.job, w.tick); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	return b, nil
}
