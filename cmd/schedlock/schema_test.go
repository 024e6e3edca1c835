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
	server := pgtest.Shared(t)
	for _, pooled := range []bool{false, true} {
		direct := server.Database(t)
		config, err := pgx.ParseConfig(direct)
		require.NoError(t, err)
		url := direct
		if pooled {
			url = pgtest.PgBouncer(t, server).URL(config.Database)
		}
		in := func(schema string, args ...string) []string {
			return append(args, "--db", url, "--schema", schema)
		}
		for _, schema := range []string{"billing", "shop"} {
			require.Equal(t, exitUnknown, call(t, in(schema, "status")...).code,
				"there are no tables")
			r := call(t, in(schema, "migrate")...)
			require.Equal(t, exitDone, r.code, r)
			require.Contains(t, r.out,
				fmt.Sprintf("migrated from version 0 to %d", migrations.Latest))
			require.Contains(t, call(t, in(schema, "migrate", "--dry-run")...).out, "nothing to do")
		}
		store, err := postgres.Open(bg, url, postgres.WithLogger(discard),
			postgres.WithSchema("billing"))
		require.NoError(t, err)
		lock, err := schedlock.New(store, schedlock.WithLogger(discard),
			schedlock.WithApp("billing"))
		require.NoError(t, err)
		lease, err := lock.Acquire(bg)
		require.NoError(t, err)

		r := call(t, in("billing", "status")...)
		assert.Equal(t, exitDone, r.code, r)
		assert.Contains(t, r.out,
			"app        billing (program example.com/schedlock/cmd/schedlock)")
		assert.Contains(t, call(t, in("billing", "status", "--json")...).out, `"app": "billing"`)
		assert.Equal(t, exitNothing, call(t, in("shop", "status")...).code, "free")
		require.Equal(t, exitDone, call(t, in("billing", "pause", "--all", "--by", "ann")...).code)
		assert.Contains(t, call(t, in("billing", "status")...).out, "paused by ann")
		assert.NotContains(t, call(t, in("shop", "status")...).out, "paused")

		r = call(t, in("billing", "doctor")...)
		assert.Contains(t, r.out, "the tables are in schema billing, as --schema says")
		assert.Contains(t, r.out, "app: the lock is that of billing")
		assert.NotContains(t, r.out, "[error]")
		assert.NotContains(t, r.out, "not looked at")
		r = call(t, in("nobody", "doctor")...)
		assert.Contains(t, r.out,
			"schema nobody has no tables of the lock; schema billing, shop has")
		require.NoError(t, lease.Release(bg))
		require.NoError(t, store.Close())
	}
}

func TestASchemaThatCannotBeIsAMistakeOfTheCaller(t *testing.T) {
	t.Parallel()
	r := call(t, "status", "--db", "app.db", "--schema", "billing")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, `--schema "billing": a SQLite file has no schemas`)
	r = call(t, "status", "--db", "postgres://localhost/app", "--schema", "Billing")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.err, `--schema: schema "Billing": only a-z, 0-9 and _ are allowed`)
}
