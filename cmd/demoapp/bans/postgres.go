package bans

import "time"

// PostgreSQL is the dialect of PostgreSQL through pgx, also behind a transaction
// pooler. No statement depends on the isolation level.
var PostgreSQL = Dialect{
	name: "postgresql",
	queries: queries{
		exists: postgresExists,
		create: []string{postgresCreateTable, postgresCreateIndexFirstSeen,
			postgresCreateIndexExpires},
		rights: postgresRights,
		upsert: postgresUpsert,
		expire: postgresExpire,
		latest: postgresLatest,
		count:  postgresCount,
	},
	timeArg: func(t time.Time) any { return t.UTC() },
}

const postgresExists = `
SELECT to_regclass('bans') IS NOT NULL`

const postgresCreateTable = `
CREATE TABLE IF NOT EXISTS bans (
    prefix     text        NOT NULL PRIMARY KEY,
    list       text        NOT NULL,
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
)`

const postgresCreateIndexFirstSeen = `
CREATE INDEX IF NOT EXISTS bans_first_seen ON bans (first_seen DESC, prefix)`

const postgresCreateIndexExpires = `
CREATE INDEX IF NOT EXISTS bans_expires_at ON bans (expires_at)`

const postgresRights = `
SELECT coalesce(string_agg(format('GRANT %s ON %I.%I TO %I',
                                  g.privilege, n.nspname, c.relname, current_user),
                           '; ' ORDER BY g.privilege), '')
FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS g (privilege)
JOIN pg_class c ON c.oid = to_regclass('bans')
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(c.oid, g.privilege)`

// See sqliteUpsert. The casts name the types where a pooler keeps pgx from asking
// for them.
const postgresUpsert = `
INSERT INTO bans (prefix, list, first_seen, last_seen, expires_at)
SELECT value, $2::text, $3::timestamptz, $3::timestamptz, $4::timestamptz
FROM json_array_elements_text($1::text::json)
ON CONFLICT (prefix) DO UPDATE SET
    list = excluded.list,
    last_seen = excluded.last_seen,
    expires_at = excluded.expires_at
WHERE excluded.last_seen > bans.last_seen`

const postgresExpire = `
DELETE FROM bans WHERE prefix IN (
    SELECT prefix FROM bans
    WHERE expires_at <= $1::timestamptz ORDER BY expires_at LIMIT $2::bigint)`

const postgresLatest = `
SELECT prefix, list, first_seen, last_seen, expires_at
FROM bans ORDER BY first_seen DESC, prefix LIMIT $1::bigint`

const postgresCount = `
SELECT count(*) FROM bans`
