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
	name:    "sqlite",
	txOpts:  &sql.TxOptions{Isolation: sql.LevelSerializable},
	timeArg: func(t time.Time) any { return t.UTC().Format(sqliteTime) },

	exists: `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'bans')`,
	create: []string{`
CREATE TABLE IF NOT EXISTS bans (
    prefix     TEXT NOT NULL PRIMARY KEY,
    list       TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen  TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT, WITHOUT ROWID`, createFirstSeen, createExpires},
	// "WHERE true" keeps the parser from taking ON CONFLICT for a join.
	upsert: `
INSERT INTO bans (prefix, list, first_seen, last_seen, expires_at)
SELECT value, ?2, ?3, ?3, ?4 FROM json_each(?1) WHERE true` + onConflict,
	expire: `
DELETE FROM bans WHERE prefix IN (
    SELECT prefix FROM bans WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)`,
	latest: latest + "?1",
}
