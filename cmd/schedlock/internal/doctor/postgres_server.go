package doctor

import (
	"context"
	"fmt"
	"strings"
)

func (s postgreSQL) checkReadOnly(ctx context.Context) {
	var (
		recovery bool
		readOnly string
	)
	if !s.row(ctx, "role of the server",
		`SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')`, &recovery,
		&readOnly) {
		return
	}
	switch {
	case recovery:
		s.fail("role of the server", "it is in recovery: a hot standby, which cannot be written",
			"connect to the primary, or add target_session_attrs=read-write and all hosts to the "+
				"URL; if the primary is gone, promote this one")
	case readOnly == "on":
		s.fail("role of the server",
			"default_transaction_read_only is on for this role, database or server: "+
				"the lock cannot write",
			"find who has set it (pg_db_role_setting, ALTER SYSTEM; "+
				"managed servers do when the disk is full), and reset it")
	default:
		s.ok("role of the server", "a primary that can be written")
	}
}

// checkSchemas reports whether the tables are where this role looks.
func (s postgreSQL) checkSchemas(ctx context.Context) (found bool) {
	var path, current, here string
	if !s.row(ctx, "schema", `
SELECT current_setting('search_path'), coalesce(current_schema(), ''),
       coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.oid = to_regclass('scheduler_lock')), '')`, &path, &current, &here) {
		return true
	}
	all, ok := s.lines(ctx, "schema", `
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'scheduler_lock' AND c.relkind IN ('r', 'p')
  AND NOT pg_is_other_temp_schema(n.oid) ORDER BY 1`)
	if !ok {
		return true
	}
	switch {
	case here == "" && len(all) == 0:
		s.fail("tables", fmt.Sprintf("there are no tables of the lock in this database; "+
			"search_path %s", path),
			s.toMake(ctx))
		return false
	case here == "" && s.limits.schema != "":
		s.fail("tables", fmt.Sprintf("schema %s has no tables of the lock; schema %s has",
			s.limits.schema, strings.Join(all, ", ")),
			fmt.Sprintf("correct --schema, or start the app, which makes them; "+
				"or GRANT USAGE ON SCHEMA %q TO %q", s.limits.schema, s.user))
		return false
	case here == "":
		s.fail("search_path", fmt.Sprintf("the tables are in schema %s, which the search_path %s "+
			"does not have, or which role %s may not use",
			strings.Join(all, ", "), path, s.user),
			fmt.Sprintf(`ALTER ROLE %q SET search_path = %q, or ?search_path=%s in the URL; `+
				`or GRANT USAGE ON SCHEMA %q TO %q`,
				s.user, all[0], all[0], all[0], s.user))
		return false
	case s.limits.schema != "":
		s.ok("schema", fmt.Sprintf("the tables are in schema %s, as --schema says", here))
	case len(all) > 1:
		s.warn("search_path", fmt.Sprintf("several schemas have the tables: %s; this role uses %s",
			strings.Join(all, ", "), here),
			"replicas with another search_path form a fleet of their own, "+
				"with a leader of its own: if each is an app of its own (postgres.WithSchema), "+
				"name one with --schema; if that is not meant, give all of them one search_path, "+
				"and drop the other tables once nobody uses them")
	default:
		s.ok("search_path", fmt.Sprintf("the tables are in schema %s; search_path %s", here, path))
	}
	return true
}

// settings are read in one statement; a time-out of 0 is none.
type settings struct {
	commit, standbys, isolation, autovacuum string
	statement, lock, idle, transaction      float64 // milliseconds
	session                                 string  // idle_session_timeout, as it is shown
}

const sqlSettings = `
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       current_setting('default_transaction_isolation'), current_setting('autovacuum'),
       extract(epoch FROM current_setting('statement_timeout')::interval) * 1000,
       extract(epoch FROM current_setting('lock_timeout')::interval) * 1000,
       extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000,
       extract(epoch FROM
               coalesce(current_setting('transaction_timeout', true), '0')::interval) * 1000,
       coalesce(current_setting('idle_session_timeout', true), '0')`

func (s postgreSQL) checkSettings(ctx context.Context) {
	var x settings
	if s.row(ctx, "settings", sqlSettings, &x.commit, &x.standbys, &x.isolation, &x.autovacuum,
		&x.statement, &x.lock, &x.idle, &x.transaction, &x.session) {
		judgeSettings(s.findings, x, s.user)
	}
}

func judgeSettings(f *findings, x settings, role string) {
	const check = "settings"
	reset := func(name, value string) string {
		return fmt.Sprintf("ALTER ROLE %q SET %s = %s", role, name, value)
	}
	if x.commit == "off" {
		f.note(check, "synchronous_commit is off: the lock writes durably all the same; "+
			"the app's own commits may be lost with a crash")
	}
	if x.standbys != "" && x.commit != "off" && x.commit != "local" {
		f.note(check, fmt.Sprintf("synchronous replication (%s): acquisitions and starts of runs "+
			"wait for a replica, and hang if none answers; heartbeats do not", x.standbys))
	}
	for _, t := range []struct {
		name string
		ms   float64
	}{{"statement_timeout", x.statement}, {"transaction_timeout", x.transaction}} {
		if t.ms > 0 && t.ms < 1000 {
			f.warn(check, fmt.Sprintf("%s is %g ms: statements of the lock may wait a second "+
				"for another transaction, and are ended before", t.name, t.ms),
				reset(t.name, "'5s'")+", or higher")
		}
	}
	if x.lock > 0 && x.lock < 1000 {
		f.note(check, fmt.Sprintf("lock_timeout is %g ms: acquisitions set their own; a heartbeat "+
			"that another transaction delays fails sooner, and is repeated", x.lock))
	}
	if x.idle > 0 && x.idle < 1000 {
		f.warn(check, fmt.Sprintf("idle_in_transaction_session_timeout is %g ms: "+
			"a job's fenced transaction that thinks longer is ended with its session", x.idle),
			reset("idle_in_transaction_session_timeout", "'60s'"))
	}
	if x.session != "0" && x.session != "" {
		f.note(check, fmt.Sprintf("idle_session_timeout is %s: the lock turns it off "+
			"for its own session; others of this role that are idle are ended, and opened again",
			x.session))
	}
	if x.isolation != "read committed" {
		f.warn(check, fmt.Sprintf("default_transaction_isolation is %s: a pause is exact "+
			"only at read committed, and statements may fail with 40001", x.isolation),
			reset("default_transaction_isolation", "'read committed'"))
	}
	if x.autovacuum != "on" {
		f.warn(check, "autovacuum is off: each heartbeat and run leaves a dead row",
			"turn it on, or run VACUUM scheduler_lock, scheduler_terms, scheduler_jobs, "+
				"scheduler_runs often")
	}
	f.fine(check, "nothing that hurts the lock")
}

// A table that is UNLOGGED is empty after a crash of the server.
const sqlUndurable = `
SELECT name || ' is off' FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
UNION ALL
SELECT relname || ' is UNLOGGED' FROM pg_class
WHERE oid IN (to_regclass('scheduler_lock'), to_regclass('scheduler_terms'))
  AND relpersistence = 'u' ORDER BY 1`

// checkDurability says whether an acquisition that was acknowledged outlives a crash.
func (s postgreSQL) checkDurability(ctx context.Context) {
	undurable, ok := s.lines(ctx, "durability", sqlUndurable)
	switch {
	case !ok:
	case len(undurable) > 0:
		s.warn("durability", strings.Join(undurable, ", ")+": after a crash rows may be gone or "+
			"damaged, and another replica leads beside the holder until that notices",
			"turn the setting on in the server's configuration, or ALTER TABLE … SET LOGGED")
	default:
		s.ok("durability", "what was committed is on the server's disk")
	}
}

const sqlRowSecurity = `
SELECT format('%I', t.name)
FROM unnest(ARRAY['scheduler_lock', 'scheduler_terms', 'scheduler_jobs', 'scheduler_runs',
                  'scheduler_attempts', 'scheduler_requests', 'scheduler_pauses',
                  'scheduler_lock_schema']) AS t (name)
WHERE row_security_active(to_regclass(t.name)::oid) ORDER BY 1`

// checkRowSecurity reports whether this role sees all rows.
func (s postgreSQL) checkRowSecurity(ctx context.Context) (shown bool) {
	tables, ok := s.lines(ctx, "row-level security", sqlRowSecurity)
	switch {
	case !ok:
	case len(tables) > 0:
		s.fail("row-level security", fmt.Sprintf("it is active for role %s on %s: "+
			"rows may be hidden, so who holds the lock cannot be told, "+
			"and no replica with this role leads",
			s.user, strings.Join(tables, ", ")),
			fmt.Sprintf("as a superuser: ALTER ROLE %q BYPASSRLS; or as the owner of the tables: "+
				"ALTER TABLE %s DISABLE ROW LEVEL SECURITY",
				s.user, strings.Join(tables, " DISABLE ROW LEVEL SECURITY; ALTER TABLE ")))
		return false
	default:
		s.ok("row-level security", fmt.Sprintf("none hides rows from role %s", s.user))
	}
	return true
}

// sqlConnections counts in what every role may see.
const sqlConnections = `
SELECT current_setting('max_connections')::bigint,
       current_setting('superuser_reserved_connections')::bigint
           + coalesce(current_setting('reserved_connections', true), '0')::bigint,
       (SELECT sum(numbackends) FROM pg_stat_database),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
       (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)`

func (s postgreSQL) checkConnections(ctx context.Context) {
	var most, reserved, used, dbMost, dbUsed, roleMost, roleUsed int
	if !s.row(ctx, "connections", sqlConnections, &most, &reserved, &used, &dbMost, &dbUsed,
		&roleMost, &roleUsed) {
		return
	}
	s.judgeConnections("put a pooler in front, ", share{"server", used, most, reserved},
		share{"database", dbUsed, dbMost, 0}, share{"role", roleUsed, roleMost, 0})
}

// sqlLong: what a role may not see of others' sessions is empty.
const sqlLong = `
SELECT format('pid %s (%s%s), in a transaction since %s', pid, coalesce(usename::text, '?'),
              coalesce(', application "' || nullif(application_name, '') || '"', ''),
              to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
FROM pg_stat_activity
WHERE xact_start < clock_timestamp() - $1::bigint * interval '1 ms'
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
ORDER BY xact_start`

func (s postgreSQL) checkTransactions(ctx context.Context) {
	long, ok := s.lines(ctx, "transactions", sqlLong, s.limits.longTransaction.Milliseconds())
	switch {
	case !ok:
	case len(long) > 0:
		s.note("transactions", fmt.Sprintf("older than %s, which keeps the tables from vacuum: "+
			"%s; to end one: SELECT pg_terminate_backend(pid)",
			s.limits.longTransaction, list(long)))
	default:
		s.ok("transactions", fmt.Sprintf("none that this role sees is older than %s",
			s.limits.longTransaction))
	}
}

// sqlHolders is who has locked a table of the lock for longer than a heartbeat
// or a run takes. A reader's lock blocks only migrations.
const sqlHolders = `
SELECT DISTINCT format('pid %s (%s%s), %s since %s',
              coalesce(k.pid::text, '(prepared transaction)'), coalesce(a.usename::text, '?'),
              coalesce(', application "' || nullif(a.application_name, '') || '"', ''), k.mode,
              coalesce(to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                       'an unknown time'))
FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
WHERE k.locktype = 'relation' AND k.relation = to_regclass('scheduler_lock') AND k.granted
  AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND k.mode <> 'AccessShareLock' AND k.pid IS DISTINCT FROM pg_backend_pid()
  AND CASE WHEN k.pid IS NULL THEN true
           ELSE a.xact_start < clock_timestamp() - $1::bigint * interval '1 ms' END`

func (s postgreSQL) checkLocks(ctx context.Context) {
	holders, ok := s.lines(ctx, "locks", sqlHolders, s.limits.longLock.Milliseconds())
	switch {
	case !ok:
	case len(holders) > 0:
		s.warn("locks", fmt.Sprintf("scheduler_lock is locked for more than %s: %s",
			s.limits.longLock, list(holders)),
			"heartbeats or a take-over may wait for it: a fenced transaction of a job is too "+
				"long, or somebody has left one open; to end it: SELECT pg_terminate_backend(pid)")
	default:
		s.ok("locks", fmt.Sprintf("nobody locks scheduler_lock for more than %s",
			s.limits.longLock))
	}
}

const sqlBloat = `
SELECT n_dead_tup, n_tup_upd, n_tup_hot_upd, pg_relation_size(relid)
FROM pg_stat_user_tables WHERE relid = to_regclass('scheduler_lock')`

func (s postgreSQL) checkBloat(ctx context.Context) {
	var dead, updated, hot, bytes int64
	if s.row(ctx, "bloat", sqlBloat, &dead, &updated, &hot, &bytes) {
		judgeBloat(s.findings, dead, updated, hot, bytes)
	}
}

func judgeBloat(f *findings, dead, updated, hot, bytes int64) {
	const (
		manyDead    = 10_000
		large       = 8 << 20
		manyUpdates = 1000 // before that a ratio says nothing
	)
	found := fmt.Sprintf("scheduler_lock has %s and %d dead rows", size(bytes), dead)
	if updated > 0 {
		found += fmt.Sprintf("; %d %% of its updates were HOT", hot*100/updated)
	}
	switch {
	case dead > manyDead, bytes > large:
		f.warn("bloat", found,
			"end the long transactions above, then VACUUM scheduler_lock; "+
				"look whether autovacuum runs")
	case updated > manyUpdates && hot*2 < updated:
		f.warn("bloat", found,
			"a heartbeat should touch no index: is there an index on heartbeat_at, "+
				"beat or state (drop it), or a transaction that stays open for long?")
	default:
		f.ok("bloat", found)
	}
}
