package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

const (
	mysqlDatabase = `
SELECT coalesce(database(), ''), @@hostname, @@port, current_user(),
       EXISTS (SELECT 1 FROM information_schema.tables
               WHERE table_schema = database() AND table_name = 'scheduler_lock_schema')`

	mysqlSchema = `
SELECT coalesce(max(version), 0), coalesce(max(min_code), 0)
FROM scheduler_lock_schema`

	// The names of GET_LOCK belong to the whole server, and have 64 characters at most.
	mysqlLock = `
SELECT get_lock(concat('schedlock-migrate-', md5(database())), 1)`

	mysqlUnlock = `
DO release_lock(concat('schedlock-migrate-', md5(database())))`

	// Everybody who comes after an ALTER TABLE that waits for a reader waits with it, so it does
	// not wait at all. Whoever turns a strict sql_mode off must not have texts cut. Nothing else
	// commits what is written between the ALTER TABLEs.
	mysqlSession = `
SET SESSION lock_wait_timeout = 0, innodb_lock_wait_timeout = 1, time_zone = '+00:00',
    sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', foreign_key_checks = 1,
    autocommit = 1, sql_safe_updates = 0`
)

// mysqlVersions makes goose's table with its first row. Goose would make them one after the other,
// and never again work on a table without the row.
var mysqlVersions = []string{`
CREATE TABLE IF NOT EXISTS ` + versionTable + ` (
    id         bigint PRIMARY KEY AUTO_INCREMENT,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp     timestamp NOT NULL DEFAULT current_timestamp()
) ENGINE = InnoDB`, `
INSERT INTO ` + versionTable + ` (version_id, is_applied)
SELECT 0, true FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM ` + versionTable + ` WHERE version_id = 0)`,
}

var mysqlEngine = engine{
	folder: "mysql", goose: goose.DialectMySQL,
	noSchemas: "name another database in the URL",
	read:      readMySQL,
	alone:     aloneMySQL,
	prepare:   prepareMySQL,
	explain:   func(_ state, err error) error { return explainMySQL(err) },
	transient: isTransientMySQL,
	shortest:  50 * time.Millisecond, longest: 200 * time.Millisecond,
}

// readMySQL reads what the database says about itself.
func readMySQL(ctx context.Context, db *sql.DB, _ string) (state, error) {
	var (
		s          state
		name, host string
		port       int
		exists     bool
	)
	// prepareMySQL makes goose's table, whole or not
	s.hasVersionTable = true
	err := db.QueryRowContext(ctx, mysqlDatabase).Scan(&name, &host, &port, &s.role, &exists)
	if err != nil {
		return state{}, fmt.Errorf("open the MariaDB database: %w", explainMySQL(err))
	}
	if name == "" {
		return state{}, fmt.Errorf("server %s:%d: the connection has no database: "+
			"name one in the URL", host, port)
	}
	s.database = fmt.Sprintf("database %q on %s:%d", name, host, port)
	if !exists {
		return s, nil
	}
	if err := db.QueryRowContext(ctx, mysqlSchema).Scan(&s.version, &s.minCode); err != nil {
		return state{}, fmt.Errorf("read table scheduler_lock_schema in %s: %w", s.database,
			explainMySQL(err))
	}
	return s, nil
}

func prepareMySQL(ctx context.Context, db *sql.DB, _ state) error {
	for _, query := range mysqlVersions {
		if _, err := db.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("create table %s: %w", versionTable, err)
		}
	}
	return nil
}

// aloneMySQL calls do while no other process is in it for the same database. All that do does with
// its db happens in the one session that has the lock: if the session ends, and with it the lock,
// do can do no more. The session is ended afterwards, as its settings are not the app's.
func aloneMySQL(ctx context.Context, db *sql.DB, s state, do func(*sql.DB) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.Raw(func(session any) error {
		lent := sql.OpenDB(lentConn{session.(driver.Conn)})
		lent.SetMaxOpenConns(1)
		if err = lockMySQL(ctx, lent, s); err == nil {
			err = do(lent)
			_, _ = lent.ExecContext(ctx, mysqlUnlock) // else the end of the session does it
		}
		err = errors.Join(err, lent.Close())
		return driver.ErrBadConn
	})
	return err
}

// lockMySQL waits until no other process migrates.
func lockMySQL(ctx context.Context, db *sql.DB, s state) error {
	if _, err := db.ExecContext(ctx, mysqlSession); err != nil {
		return err
	}
	for got := false; !got; {
		err := db.QueryRowContext(ctx, mysqlLock).Scan(&got)
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the process that migrates %s: %w", s.database, ctx.Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lentConn is a connector whose only connection stays the lender's to close.
type lentConn struct{ driver.Conn }

func (c lentConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c lentConn) Driver() driver.Driver                        { return nil }
func (c lentConn) Close() error                                 { return nil }

// PrepareContext lets a server that does not answer be waited for no longer than ctx. The
// migrations of MariaDB begin no transaction.
func (c lentConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if conn, ok := c.Conn.(driver.ConnPrepareContext); ok {
		return conn.PrepareContext(ctx, query)
	}
	return c.Conn.Prepare(query)
}

// transientMySQL are the errors that time may cure.
var transientMySQL = []string{
	"1040", // too many connections
	"1047", // a node of Galera that its cluster has not taken in yet, or has lost
	"1053", // server shutdown in progress
	"1203", // too many connections of this user
	"1205", // lock wait timeout
	"1213", // deadlock
	"1226", // a limit of the account, such as MAX_USER_CONNECTIONS
	"1317", // query was interrupted
	"1927", // connection was killed
	"1969", // max_statement_time exceeded
}

func isTransientMySQL(err error) bool {
	if code := numberMySQL(err); code != "" {
		return slices.Contains(transientMySQL, code)
	}
	return lostConnection(err) || strings.Contains(err.Error(), "invalid connection")
}

func explainMySQL(err error) error {
	switch numberMySQL(err) {
	case "1044", "1142", "1227": // denied for a database, a table, an operation
		return fmt.Errorf("%w: let an administrator run the migrations, "+
			"or GRANT CREATE, ALTER, INDEX, REFERENCES, SELECT, INSERT, UPDATE, DELETE "+
			"on the database to this user", err)
	case "1045":
		return fmt.Errorf("%w: check the user and the password", err)
	case "1049":
		return fmt.Errorf("%w: create the database, or correct its name", err)
	case "1290", "1792", "1836": // read-only
		return fmt.Errorf("%w: this server is read-only: connect to the primary", err)
	case "1193": // unknown system variable
		return fmt.Errorf("%w: this needs MariaDB 10.11 or newer", err)
	}
	return err
}

var mysqlNumber = regexp.MustCompile(`Error (\d{4})[ :]`)

// numberMySQL returns the number of a server's error, "" for any other. It goes by the text of the
// error: an app that uses another database must not link a driver for our sake.
func numberMySQL(err error) string {
	if found := mysqlNumber.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return ""
}
