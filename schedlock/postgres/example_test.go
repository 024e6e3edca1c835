package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/startup"
)

// The lock has the settings of the app's own pool: server, role, TLS.
func ExampleUse() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	app, err := startup.NewApp(startup.Config{Open: postgres.Use(pool)})
	if err != nil {
		log.Fatal(err)
	}
	if err := app.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// Without package startup: the store is the app's to close, after the lock.
func ExampleOpenFunc_Open() {
	ctx := context.Background()
	store, err := postgres.Opener("postgres://app@db/app").Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	lock, err := schedlock.New(store)
	if err != nil {
		log.Fatal(err)
	}
	locks, err := named.New(store.Named())
	if err != nil {
		log.Fatal(err)
	}
	_, _ = lock, locks
}
