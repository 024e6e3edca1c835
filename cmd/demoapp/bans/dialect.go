package bans

import (
	"database/sql"
	"fmt"
	"time"
)

// Dialect is the kind of database a Store writes to: SQLite, PostgreSQL or MariaDB.
type Dialect struct {
	name   string
	txOpts *sql.TxOptions // of a write transaction
	// timeArg turns a time into what the driver stores.
	timeArg func(time.Time) any

	exists string
	create []string
	rights string // what the role may not do, as GRANT statements; "": there are no roles
	update string // before upsert, with its arguments: what that doesn't do; "": nothing
	upsert string // a JSON list of networks, list, seen, expires
	expire string // now, limit
	latest string // limit
}

// Statements that are the same in several dialects.
const (
	createFirstSeen = `
CREATE INDEX IF NOT EXISTS bans_first_seen ON bans (first_seen DESC, prefix)`
	createExpires = `
CREATE INDEX IF NOT EXISTS bans_expires_at ON bans (expires_at)`
	latest = `
SELECT prefix, list, first_seen, last_seen, expires_at
FROM bans ORDER BY first_seen DESC, prefix LIMIT `
	// A row that this import has seen already is left alone, so that the number of
	// rows written tells the bans from the duplicates without remembering either.
	onConflict = `
ON CONFLICT (prefix) DO UPDATE SET
    list = excluded.list,
    last_seen = excluded.last_seen,
    expires_at = excluded.expires_at
WHERE excluded.last_seen > bans.last_seen`
)

// String returns the dialect's name, as it is used in errors.
func (d Dialect) String() string { return d.name }

// stamp reads a time from any database: text on SQLite, a time on the servers.
type stamp time.Time

// Scan implements sql.Scanner.
func (s *stamp) Scan(src any) error {
	switch v := src.(type) {
	case time.Time:
		*s = stamp(v.UTC())
		return nil
	case string:
		t, err := time.Parse(sqliteTime, v)
		if err != nil {
			return fmt.Errorf("read the time %q: want the form %s", v, sqliteTime)
		}
		*s = stamp(t)
		return nil
	}
	return fmt.Errorf("read a time: unexpected type %T", src)
}
