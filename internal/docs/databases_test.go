package docs

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
)

// leads starts and stops an app, which leads meanwhile.
func leads(t *testing.T, app *startup.App, err error) {
	require.NoError(t, err)
	require.NoError(t, app.Start(t.Context()))
	eventually(t, func() bool { return app.Lock().IsLeader(t.Context()) == nil }, "leads")
	require.NoError(t, app.Stop(context.Background()))
}

// docs/databases.md: the app's own *sql.DB.
func TestAnAppsOwnSQLite(t *testing.T) {
	db := open(t).DB()
	app, err := startup.NewApp(startup.Config{
		Open: sqlite.Use(db), // the app's own *sql.DB, which may have 2 connections or more
	})
	leads(t, app, err)
}

// runOnPostgreSQL has the snippets of docs/databases.md.
func runOnPostgreSQL(t *testing.T, databaseURL string) {
	app, err := startup.NewApp(startup.Config{
		Open: postgres.Opener(databaseURL), // postgres://app@db/app
	})
	leads(t, app, err)
}

func runOnAPool(t *testing.T, databaseURL string) {
	pool, err := pgxpool.New(t.Context(), databaseURL)
	require.NoError(t, err)
	defer pool.Close()
	app, err := startup.NewApp(startup.Config{
		Open: postgres.Use(pool), // the app's own *pgxpool.Pool
	})
	leads(t, app, err)
}
