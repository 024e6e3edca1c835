package bans

import "time"

// PostgreSQL is the dialect of PostgreSQL through pgx, also behind a transaction
// pooler. No statement depends on the isolation level. The casts name the types where a
// pooler keeps pgx from asking for them.
var PostgreSQL = Dialect{
	name:    "postgresql",
	timeArg: func(t time.Time) any { return t.UTC() },

	exists: `
SELECT to_regclass('bans') IS NOT NULL`,
	create: []string{`
CREATE TABLE IF NOT EXISTS bans (
    prefix     text        NOT NULL PRIMARY KEY,
    list       text        NOT NULL,
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
)`, createFirstSeen, createExpires},
	rights: `
SELECT coalesce(string_agg(format('GRANT %s ON %I.%I TO %I',
                                  g.privilege, n.nspname, c.relname, current_user),
                           '; ' ORDER BY g.privilege), '')
FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS g (privilege)
JOIN pg_class c ON c.oid = to_regclass('bans')
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(c.oid, g.privilege)`,
	upsert: `
INSERT INTO bans (prefix, list, first_seen, last_seen, expires_at)
SELECT value, $2::text, $3::timestamptz, $3::timestamptz, $4::timestamptz
FROM json_array_elements_text($1::text::json)` + onConflict,
	expire: `
DELETE FROM bans WHERE prefix IN (
    SELECT prefix FROM bans
    WHERE expires_at <= $1::timestamptz ORDER BY expires_at LIMIT $2::bigint)`,
	latest: latest + "$1::bigint",
}
