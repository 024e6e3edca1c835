package main

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/postgres"
)

// Every command works on the schema of an app, and on no other.
func TestCommandsActOnTheSchemaThatTheyAreGiven(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	for _, pooled := range []bool{false, true} {
		direct := server.Database(t)
		config, err := pgx.ParseConfig(direct)
		require.NoError(t, err)
		url := direct
		if pooled {
			url = pgtest.PgBouncer(t, server).URL(config.Database)
		}
		billing := expecting(t, "--db", url, "--schema", "billing")
		shop := expecting(t, "--db", url, "--schema", "shop")
		for _, says := range []func(int, ...string) string{billing, shop} {
			says(exitUnknown, "status") // there are no tables
			require.Contains(t, says(exitDone, "migrate"),
				fmt.Sprintf("migrated from version 0 to %d", migrations.Latest))
			require.Contains(t, says(exitDone, "migrate", "--dry-run"), "nothing to do")
		}
		store, err := postgres.Open(bg, url, postgres.WithLogger(discard),
			postgres.WithSchema("billing"))
		require.NoError(t, err)
		lease := acquired(t, store, schedlock.WithApp("billing"))

		assert.Contains(t, billing(exitDone, "status"),
			"app        billing (program example.com/schedlock/cmd/schedlock)")
		assert.Contains(t, billing(exitDone, "status", "--json"), `"app": "billing"`)
		shop(exitNothing, "status") // free
		billing(exitDone, "pause", "--all", "--by", "ann")
		assert.Contains(t, billing(exitDone, "status"), "paused by ann")
		assert.NotContains(t, shop(exitNothing, "status"), "paused")

		report := call(t, "doctor", "--db", url, "--schema", "billing").out
		assert.Contains(t, report, "the tables are in schema billing, as --schema says")
		assert.Contains(t, report, "app: the lock is that of billing")
		assert.NotContains(t, report, "[error]")
		assert.NotContains(t, report, "not looked at")
		assert.Contains(t, call(t, "doctor", "--db", url, "--schema", "nobody").out,
			"schema nobody has no tables of the lock; schema billing, shop has")
		require.NoError(t, lease.Release(bg))
		require.NoError(t, store.Close())
	}
}
