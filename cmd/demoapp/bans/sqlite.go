package bans

import (
	"database/sql"
	"time"
)

// sqliteTime is UTC text of fixed width, so that it sorts as the times do and an
// operator can read it in any shell.
const sqliteTime = "2006-01-02T15:04:05.000000Z"

// SQLite is the dialect of SQLite 3.38 or newer. Serializable makes the driver
// begin with BEGIN IMMEDIATE, whatever the connection string says: a transaction
// that reads first and writes later fails under any other writer.
var SQLite = Dialect{
	name: "sqlite",
	queries: queries{
		exists: sqliteExists,
		create: []string{sqliteCreateTable, sqliteCreateIndexFirstSeen, sqliteCreateIndexExpires},
		upsert: sqliteUpsert,
		expire: sqliteExpire,
		latest: sqliteLatest,
		count:  sqliteCount,
	},
	txOpts:  &sql.TxOptions{Isolation: sql.LevelSerializable},
	timeArg: func(t time.Time) any { return t.UTC().Format(sqliteTime) },
}

const sqliteExists = `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'bans')`

const sqliteCreateTable = `
CREATE TABLE IF NOT EXISTS bans (
    prefix     TEXT NOT NULL PRIMARY KEY,
    list       TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen  TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT, WITHOUT ROWID`

const sqliteCreateIndexFirstSeen = `
CREATE INDEX IF NOT EXISTS bans_first_seen ON bans (first_seen DESC, prefix)`

const sqliteCreateIndexExpires = `
CREATE INDEX IF NOT EXISTS bans_expires_at ON bans (expires_at)`

// A row that this import has seen already is left alone, so that the number of
// rows written tells the bans from the duplicates without remembering either.
// "WHERE true" keeps the parser from taking ON CONFLICT for a join.
const sqliteUpsert = `
INSERT INTO bans (prefix, list, first_seen, last_seen, expires_at)
SELECT value, ?2, ?3, ?3, ?4 FROM json_each(?1) WHERE true
ON CONFLICT (prefix) DO UPDATE SET
    list = excluded.list,
    last_seen = excluded.last_seen,
    expires_at = excluded.expires_at
WHERE excluded.last_seen > bans.last_seen`

const sqliteExpire = `
DELETE FROM bans WHERE prefix IN (
    SELECT prefix FROM bans WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)`

const sqliteLatest = `
SELECT prefix, list, first_seen, last_seen, expires_at
FROM bans ORDER BY first_seen DESC, prefix LIMIT ?1`

const sqliteCount = `
SELECT count(*) FROM bans`
