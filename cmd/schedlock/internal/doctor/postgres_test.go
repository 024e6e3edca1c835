package doctor

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

const secret = "hunter2/secret@x"

// migrated is a new database that has its tables.
func migrated(t testing.TB) string {
	t.Helper()
	return pgtest.Shared(t).Filled(t, func(url string) { migrate(t, url) })
}

func migrate(t testing.TB, url string) {
	t.Helper()
	s, err := postgres.Open(bg, url, postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, s.Migrate(bg))
	require.NoError(t, s.Close())
}

func open(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(bg, url, postgres.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func session(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(bg, url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn := session(t, url)
	for _, s := range statements {
		_, err := conn.Exec(bg, s)
		require.NoError(t, err, s)
	}
	require.NoError(t, conn.Close(bg))
}

func databaseName(t testing.TB, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return config.Database
}

// edit changes a URL.
func edit(t testing.TB, dsn string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	change(u)
	return u.String()
}

func with(t testing.TB, dsn, name, value string) string {
	return edit(t, dsn, func(u *url.URL) {
		q := u.Query()
		q.Set(name, value)
		u.RawQuery = q.Encode()
	})
}

// role makes a role that may log in, and returns the URL with it.
func role(t testing.TB, dsn, attributes string) (name, as string) {
	t.Helper()
	name = databaseName(t, dsn) + "_app"
	execute(t, dsn, fmt.Sprintf(`CREATE ROLE %s LOGIN %s`, name, attributes))
	return name, edit(t, dsn, func(u *url.URL) { u.User = url.UserPassword(name, secret) })
}

func TestAHeldDatabaseOnPostgreSQLIsHealthyAndIsLeftAlone(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Start(t).Database(t)
	migrate(t, dsn)
	lead(t, open(t, dsn))
	conn := session(t, dsn)
	// What tests trade for speed. On a disk it would take seconds.
	execute(t, dsn, `ALTER SYSTEM SET fsync = on`, `ALTER SYSTEM SET full_page_writes = on`,
		`SELECT pg_reload_conf()`)
	require.Eventually(t, func() bool {
		var fsync string
		require.NoError(t, conn.QueryRow(bg, `SHOW fsync`).Scan(&fsync))
		return fsync == "on"
	}, 2*time.Minute, time.Millisecond)
	state := func() (s string) {
		require.NoError(t, conn.QueryRow(bg, `
			SELECT (SELECT string_agg(x::text || x.xmin::text, '') FROM scheduler_lock x)
			|| (SELECT string_agg(x::text || x.xmin::text, '') FROM scheduler_terms x)
			|| (SELECT count(*) FROM pg_class)`).Scan(&s))
		return s
	}
	before := state()
	r := examined(dsn)
	assert.Equal(t, before, state())
	healthy(t, r)
	for _, check := range []string{"connection", "version", "pooler", "role of the server",
		"search_path", "server clock", "settings", "durability", "connections",
		"transactions", "grants", "locks", "bloat", "schema", "lock", "timing", "clock",
		"flapping"} {
		finding(t, r, check, OK)
	}
	execute(t, dsn, `ALTER TABLE scheduler_lock SET UNLOGGED`)
	finding(t, examined(dsn), "durability", Warning, "scheduler_lock is UNLOGGED", "SET LOGGED")
	finding(t, examined(migrated(t)), "durability", Warning, "fsync is off")
}

func TestAServerThatNoReplicaCanUseIsAnError(t *testing.T) {
	t.Parallel()
	finding(t, found(func(f *findings) {
		server{findings: f, kind: postgresKind, limits: usual,
			open: func(context.Context) (store, error) {
				return nil, fmt.Errorf("%w: PostgreSQL 12 is too old", driver.ErrPermanent)
			}}.checkGrants(bg)
	}), "grants", Error, "no replica starts", "PostgreSQL 12 is too old")
}

func TestNoConnection(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	name, dsn := role(t, server.Database(t), "")

	other := func(change func(*url.URL)) string { return edit(t, dsn, change) }
	listener, err := net.Listen("tcp4", "127.0.0.1:0") // it accepts, and says nothing
	require.NoError(t, err)
	defer listener.Close()
	silent := other(func(u *url.URL) { u.Host = listener.Addr().String() })
	noConnection(t, map[string][2]string{
		other(func(u *url.URL) { u.Path = "/nowhere" }): {"no such database", "correct its name"},
		// There is no password to be wrong with trust authentication: a role that is
		// not there is refused as well.
		other(func(u *url.URL) { u.User = url.UserPassword("nobody_"+name, secret) }): {
			"may not log in", "pg_hba.conf"},
		other(func(u *url.URL) { u.Host = "no-such-host.invalid:5432" }): {
			"host name is not known", "DNS"},
		with(t, dsn, "sslmode", "require"):                 {"TLS does not work", "sslmode"},
		with(t, silent, "connect_timeout", "1"):            {"no answer", "firewall"},
		other(func(u *url.URL) { u.Host = "127.0.0.1:1" }): {"nobody listens", "start the server"},
	})
	execute(t, dsn2super(t, dsn), fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT 0`, name))
	noConnection(t, map[string][2]string{dsn: {"too many connections", "pools smaller"}})
	why, do := postgresKind.explainConnect(&pgconn.PgError{Code: "28P01"})
	assert.Contains(t, why, "password is wrong")
	assert.Contains(t, do, "ALTER ROLE")
}

// dsn2super is the same database as the superuser.
func dsn2super(t testing.TB, dsn string) string {
	return edit(t, dsn, func(u *url.URL) { u.User = url.User("postgres") })
}

func TestAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "autovacuum=off", "max_connections=14",
		"superuser_reserved_connections=3")
	dsn := server.Database(t)
	migrate(t, dsn)
	finding(t, examined(dsn), "settings", Warning, "autovacuum is off")
	for range 8 {
		session(t, dsn)
	}
	finding(t, examined(dsn), "connections", Warning, "of the server's 14 connections are used",
		"pools smaller")

	standby := server.Standby(t)
	replica := edit(t, dsn, func(u *url.URL) {
		u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(standby.Port()))
	})
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(bg, replica)
		if err == nil {
			conn.Close(bg)
		}
		return err == nil
	}, 2*time.Minute, 20*time.Millisecond)
	finding(t, examined(replica), "role of the server", Error, "hot standby", "primary")

	server.Stop(t, "fast")
	finding(t, examined(dsn), "connection", Error, "nobody listens")
}

func TestBehindAPooler(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	dsn := migrated(t)
	bouncer := pgtest.PgBouncer(t, server)
	lead(t, open(t, dsn))
	r := examined(bouncer.URL(databaseName(t, dsn)))
	healthy(t, r, "durability")
	finding(t, r, "pooler", Note, "PgBouncer", "LISTEN", "polling")
	finding(t, r, "lock", OK)
}

func TestSettings(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	name, as := role(t, dsn, "SUPERUSER")
	execute(t, dsn,
		fmt.Sprintf(`ALTER ROLE %s SET synchronous_commit = off`, name),
		fmt.Sprintf(`ALTER ROLE %s SET statement_timeout = '900ms'`, name),
		fmt.Sprintf(`ALTER ROLE %s SET lock_timeout = '500ms'`, name),
		fmt.Sprintf(`ALTER ROLE %s SET idle_in_transaction_session_timeout = '100ms'`, name),
		fmt.Sprintf(`ALTER ROLE %s SET default_transaction_isolation = 'serializable'`, name))
	r := examined(as)
	for _, says := range []string{"synchronous_commit is off", "lock_timeout is 500 ms"} {
		assert.Contains(t, text(r), "note     settings: "+says)
	}
	for _, says := range []string{"statement_timeout is 900 ms",
		"idle_in_transaction_session_timeout is 100 ms",
		"default_transaction_isolation is serializable"} {
		assert.Contains(t, text(r), "warning  settings: "+says)
	}
	assert.Contains(t, text(r), `ALTER ROLE "`+name+`" SET statement_timeout = '5s'`)

	execute(t, dsn, fmt.Sprintf(`ALTER ROLE %s RESET ALL`, name),
		fmt.Sprintf(`ALTER ROLE %s SET default_transaction_read_only = on`, name))
	finding(t, examined(as), "role of the server", Error, "default_transaction_read_only")

	r = found(func(f *findings) {
		judgeSettings(f, settings{commit: "on", standbys: "ANY 1 (a, b)",
			isolation: "read committed", autovacuum: "on", transaction: 10, session: "9min"}, "app")
	})
	finding(t, r, "settings", Note, "ANY 1 (a, b)")
	finding(t, r, "settings", Warning, "transaction_timeout is 10 ms")
	assert.Contains(t, text(r), "note     settings: idle_session_timeout is 9min: the lock turns")
}

func TestAPoolerWithoutTransactionsIsAnError(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	bouncer := pgtest.PgBouncer(t, pgtest.Shared(t), "pool_mode=statement")
	finding(t, examined(bouncer.URL(databaseName(t, dsn))), "pooler", Error, "takes no transaction",
		"pool_mode = transaction")
}

func TestADroppedTableIsRestoredFromABackup(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	execute(t, dsn, `DROP TABLE scheduler_lock_migrations`)
	finding(t, examined(dsn), "tables", Error, "scheduler_lock_migrations", "restore a backup")
	execute(t, dsn, `DROP TABLE scheduler_jobs`)
	finding(t, examined(dsn), "tables", Error, "scheduler_jobs", "restore a backup")
	execute(t, dsn, `DROP TABLE scheduler_lock`)
	finding(t, examined(dsn), "tables", Error, "no tables of the lock", "restore a backup")
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	empty := pgtest.Shared(t).Database(t)
	r := examined(empty)
	finding(t, r, "tables", Error, "schedlock migrate")

	dsn := migrated(t)
	execute(t, dsn, `CREATE SCHEMA other`, `CREATE SCHEMA none`)
	migrate(t, with(t, dsn, "search_path", "other"))
	finding(t, examined(dsn), "search_path", Warning, "other, public", "uses public",
		"a fleet of their own")
	finding(t, examined(with(t, dsn, "search_path", "none")), "search_path", Error,
		"in schema other, public", "ALTER ROLE")
}

func TestGrants(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	name, as := role(t, dsn, "")
	execute(t, dsn, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+name,
		`GRANT INSERT, UPDATE ON scheduler_lock TO `+name)
	r := examined(as)
	f := finding(t, r, "grants", Error, "GRANT DELETE ON public.scheduler_lock TO "+name,
		"GRANT DELETE, INSERT ON public.scheduler_attempts, public.scheduler_audit, "+
			"public.scheduler_requests TO "+name)
	assert.Equal(t, 4, strings.Count(f.Do, "GRANT "), f.Do)
	execute(t, dsn, f.Do[strings.Index(f.Do, "GRANT"):])
	finding(t, examined(as), "grants", OK)
	execute(t, dsn, `REVOKE DELETE ON scheduler_lock FROM `+name)
	r = examined(as)
	finding(t, r, "grants", Error, ": GRANT DELETE ON public.scheduler_lock TO "+name)
	finding(t, r, "lock", Note) // it could be read

	execute(t, dsn, `REVOKE SELECT ON scheduler_terms FROM `+name)
	finding(t, examined(as), "tables", Error, "permission denied")
	execute(t, dsn, `REVOKE USAGE ON SCHEMA public FROM PUBLIC`)
	finding(t, examined(as), "search_path", Error, "GRANT USAGE ON SCHEMA")
}

func TestWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	lead(t, open(t, dsn))
	conn := session(t, with(t, dsn, "application_name", "forgotten"))
	_, err := conn.Exec(bg,
		`BEGIN; SELECT FROM scheduler_lock FOR KEY SHARE; CREATE TEMPORARY TABLE x ()`)
	require.NoError(t, err)
	limits := usual
	limits.longLock, limits.longTransaction = 0, 0
	r := examine(bg, dsn, limits)
	pid := fmt.Sprintf("pid %d ", conn.PgConn().PID())
	finding(t, r, "locks", Warning, pid, "forgotten", "RowShareLock", "pg_terminate_backend")
	finding(t, r, "transactions", Note, pid, "forgotten")
	finding(t, examined(dsn), "locks", OK)

	_, as := role(t, dsn, "CONNECTION LIMIT 3")
	finding(t, examined(as), "connections", Warning, "of the role's 3 connections")
}

func TestTablesThatAreLocked(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	_, err := session(t, dsn).Exec(bg, `BEGIN; LOCK TABLE scheduler_lock`)
	require.NoError(t, err)
	limits := usual
	limits.longLock, limits.statement = 0, time.Second
	r := examine(bg, dsn, limits)
	finding(t, r, "locks", Warning, "AccessExclusiveLock")
	finding(t, r, "tables", Error, "within 1s", "locks above")
}

func TestClocks(t *testing.T) {
	t.Parallel()
	judged := func(apart time.Duration) Report {
		return found(func(f *findings) { judgeClocks(f, apart, true) })
	}
	finding(t, judged(time.Second), "server clock", OK)
	finding(t, judged(3*time.Second), "server clock", Note, "3s ahead of")
	finding(t, judged(2*time.Minute), "server clock", Warning, "2m0s ahead of", "NTP")
}

func TestBloat(t *testing.T) {
	t.Parallel()
	judged := func(dead, updated, hot, bytes int64) Report {
		return found(func(f *findings) { judgeBloat(f, dead, updated, hot, bytes) })
	}
	finding(t, judged(10, 5000, 4900, 8192), "bloat", OK, "98 %")
	finding(t, judged(20_000, 0, 0, 8192), "bloat", Warning, "20000 dead rows", "VACUUM")
	finding(t, judged(10, 5000, 4900, 64<<20), "bloat", Warning, "64.0 MiB")
	finding(t, judged(10, 5000, 100, 8192), "bloat", Warning, "2 %", "index")
}

// What a policy hides must not pass for a lock that nobody has ever held.
func TestRowLevelSecurity(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	lead(t, open(t, dsn))
	name, as := role(t, dsn, "")
	execute(t, dsn, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+name)
	r := examined(as)
	healthy(t, r, "durability")
	finding(t, r, "row-level security", OK)
	for _, table := range []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs",
		"scheduler_runs", "scheduler_attempts", "scheduler_requests", "scheduler_pauses",
		"scheduler_lock_schema"} {
		execute(t, dsn, `ALTER TABLE `+table+` ENABLE ROW LEVEL SECURITY`)
		r := examined(as)
		finding(t, r, "row-level security", Error, name, table, "BYPASSRLS",
			"ALTER TABLE "+table+" DISABLE ROW LEVEL SECURITY")
		assert.NotContains(t, text(r), "nobody leads", table)
		assert.NotContains(t, text(r), "not there", table)
		execute(t, dsn, `ALTER TABLE `+table+` DISABLE ROW LEVEL SECURITY`)
	}
	for _, table := range []string{"scheduler_lock", "scheduler_jobs"} {
		execute(t, dsn, `ALTER TABLE `+table+` ENABLE ROW LEVEL SECURITY`)
	}
	finding(t, examined(dsn), "row-level security", OK) // a superuser
	finding(t, examined(as), "row-level security", Error, "scheduler_jobs, scheduler_lock",
		"ALTER TABLE scheduler_jobs DISABLE ROW LEVEL SECURITY; "+
			"ALTER TABLE scheduler_lock DISABLE ROW LEVEL SECURITY")
}

func TestTheSignOfDeath(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	lease := lead(t, open(t, dsn))
	finding(t, examined(dsn), "sign of death", Note, "after its TTL", "without a session grace")
	require.NoError(t, lease.Release(bg))
	lead(t, open(t, dsn), schedlock.WithSessionGrace(5*time.Second))
	finding(t, examined(dsn), "sign of death", OK, "wait for 5s only")
}
