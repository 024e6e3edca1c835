package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// idleTimeout is what an administrator has set in these tests: long enough for a
// session to begin on a starved machine, which sends a statement or two first.
const idleTimeout = time.Second

// A partition and idle_session_timeout, whoever has set that and when: the
// server must keep the session of a leader of which it hears nothing.
func TestAPartitionedHolderIsNotTakenForDeadByAnIdleTimeOut(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	databaseURL := server.Database(t)
	migrate(t, databaseURL)
	role := newRole(t, databaseURL, "")
	admin := session(t, databaseURL)
	exec(t, admin, `SET idle_session_timeout = 0`)
	exec(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	exec(t, admin, `GRANT pg_read_all_stats TO `+role)
	for _, tc := range []struct{ name, before, after, undo string }{
		{name: "of the role", before: `ALTER ROLE ` + role + ` SET %s`,
			undo: `ALTER ROLE ` + role + ` RESET ALL`},
		{name: "of the database", before: `ALTER DATABASE ` +
			databaseName(t, databaseURL) + ` SET %s`,
			undo: `ALTER DATABASE ` + databaseName(t, databaseURL) + ` RESET ALL`},
		{name: "of the server", before: `ALTER SYSTEM SET %s`, undo: `ALTER SYSTEM RESET ALL`},
		{name: "of the server, later", after: `ALTER SYSTEM SET %s`,
			undo: `ALTER SYSTEM RESET ALL`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := func(query string) {
				if query != "" {
					exec(t, admin, fmt.Sprintf(query,
						fmt.Sprintf("idle_session_timeout = '%dms'", idleTimeout.Milliseconds())))
				}
				exec(t, admin, `SELECT pg_reload_conf()`)
			}
			set(tc.before)
			line, through := servertest.Through(t, as(t, databaseURL, role))
			holder := open(t, through, postgres.WithDirectConnection())
			standby := open(t, as(t, databaseURL, role, "idle_session_timeout", "0"))
			ref, s := acquireWatched(t, holder, time.Minute)
			heartbeat(t, holder, ref)
			require.NotNil(t, s)
			set(tc.after)
			line.Cut()
			// Other sessions of that role end meanwhile, one after the other.
			for range 2 {
				idle := session(t, as(t, databaseURL, role, "application_name", "idle"))
				eventually(t, "the time-out ends other sessions", func() bool {
					return value[int](t, admin,
						fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d`,
							idle.PgConn().PID())) == 0
				})
				require.Equal(t, driver.SignNone, lookAtSession(t, standby).Sign)
			}
			exec(t, admin, tc.undo)
			release(t, standby, ref)
		})
	}
}

// unset lets a role's set_config leave some settings alone, as a server might
// that does not allow to change them: silently, or with an error.
func unset(t testing.TB, admin *pgx.Conn, role string, refuse bool, settings ...string) {
	t.Helper()
	otherwise := `current_setting($1)`
	if refuse {
		otherwise = `pg_catalog.set_config('no.' || $1 || '!', $2, $3)` // an error
	}
	schema := role + "_forbid"
	exec(t, admin, fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS %s`, schema))
	exec(t, admin, fmt.Sprintf(`GRANT USAGE ON SCHEMA %s TO %s`, schema, role))
	exec(t, admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s.set_config(text, text, boolean)
		RETURNS text LANGUAGE sql VOLATILE
		AS $f$SELECT CASE WHEN $1 IN ('%s') THEN %s ELSE pg_catalog.set_config($1, $2, $3) END$f$`,
		schema, strings.Join(settings, "', '"), otherwise))
	exec(t, admin, fmt.Sprintf(`ALTER ROLE %s SET search_path = %s, pg_catalog, public`,
		role, schema))
}

// What the store asks of the server it reads back: the end of a session that
// ends too soon is no sign, and the row, the log and the status say why.
func TestATimeOutThatCannotBeSetTurnsTheSignOff(t *testing.T) {
	t.Parallel()
	databaseURL := migrated(t)
	admin := session(t, databaseURL)
	for _, tc := range []struct {
		setting, short, long string
		refuse               bool
	}{
		// a heartbeat restarts it, but a leader may have none to send
		{setting: "idle_session_timeout", short: "10min", long: "0"},
		{setting: "idle_session_timeout", short: "10min", long: "0", refuse: true},
		{setting: "tcp_user_timeout", short: "59999", long: "60000"},
		{setting: "tcp_keepalives_idle", short: "59", long: "60"},
		{setting: "idle_in_transaction_session_timeout", short: "59s", long: "0"},
		{setting: "idle_in_transaction_session_timeout", short: "59s", long: "1min"},
	} {
		name := fmt.Sprintf("%s %s", tc.setting, tc.short)
		t.Run(name, func(t *testing.T) {
			role := newRole(t, databaseURL, "")
			defer exec(t, admin, fmt.Sprintf(`DROP OWNED BY %s CASCADE; DROP ROLE %[1]s`, role))
			exec(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
			exec(t, admin, `GRANT pg_read_all_stats TO `+role)
			unset(t, admin, role, tc.refuse, tc.setting)
			for _, v := range []string{tc.short, tc.long} {
				exec(t, admin, fmt.Sprintf(`ALTER ROLE %s SET %s = '%s'`, role, tc.setting, v))
				var log logtest.Log
				holder := open(t, as(t, databaseURL, role),
					postgres.WithLogger(log.Logger()))
				ref, s := acquireWatched(t, holder, time.Minute)
				row := look(t, holder).Row
				if v == tc.long && !tc.refuse {
					require.NotNil(t, s)
					require.Equal(t, grace, row.Grace)
				} else {
					require.Nil(t, s)
					require.Zero(t, row.Grace)
					require.Contains(t, row.TTLOnly, tc.setting)
					if !tc.refuse {
						require.Contains(t, row.TTLOnly, v)
					}
					eventually(t, "the log says it", func() bool { // it is written beside
						return strings.Contains(log.String(), tc.setting)
					})
				}
				// The same on the next session.
				require.True(t, value[bool](t, admin,
					`SELECT count(pg_terminate_backend(pid, 5000)) > 0
						FROM pg_stat_activity WHERE usename = '`+role+`'`))
				eventually(t, "a heartbeat", func() bool {
					beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
					return err == nil && (beat.Session == nil) == (s == nil)
				})
				release(t, holder, ref)
			}
		})
	}
}
