package bans

import (
	"database/sql"
	"fmt"
	"time"
)

// Dialect is the kind of database a Store writes to: SQLite, PostgreSQL or MariaDB.
type Dialect struct {
	name    string
	queries queries
	txOpts  *sql.TxOptions // of a write transaction
	// timeArg turns a time into what the driver stores.
	timeArg func(time.Time) any
}

// queries holds the SQL of one dialect, see sqlite.go, postgres.go and mysql.go.
type queries struct {
	exists string
	create []string
	rights string // what the role may not do, as GRANT statements; "": there are no roles
	update string // before upsert, with its arguments: what that doesn't do; "": nothing
	upsert string // a JSON list of networks, list, seen, expires
	expire string // now, limit
	latest string // limit
	count  string
}

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
