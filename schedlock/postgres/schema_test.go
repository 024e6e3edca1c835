package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

const sqlTablesIn = `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r'`

func TestTheTablesMayLiveInASchemaOfTheirOwn(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	pooler := pgtest.PgBouncer(t, server)
	for _, tc := range []struct {
		name string
		url  func(t *testing.T, direct, role string) string
	}{
		{"by a parameter of the URL", func(t *testing.T, direct, role string) string {
			return as(t, direct, role, "search_path", "app")
		}},
		{"by a setting of the role, through a pooler", func(t *testing.T,
			direct, role string) string {
			exec(t, session(t, direct), fmt.Sprintf(`ALTER ROLE %s SET search_path = app`, role))
			return as(t, pooler.URL(databaseName(t, direct)), role)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			direct := server.Database(t)
			admin, role := session(t, direct), newRole(t, direct, "")
			exec(t, admin, fmt.Sprintf(`CREATE SCHEMA app AUTHORIZATION %s`, role))
			store := opened(t, tc.url(t, direct, role))
			ref := acquire(t, store, time.Minute)
			heartbeat(t, store, ref)
			require.Equal(t, int64(1), value[int64](t, admin,
				`SELECT beat FROM app.scheduler_lock`))
			release(t, store, ref)
			acquire(t, store, time.Minute)
			require.NotZero(t, value[int](t, admin, sqlTablesIn, "app"))
			require.Zero(t, value[int](t, admin, sqlTablesIn, "public"))
		})
	}
}
