package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"example.com/schedlock/internal/names"
)

const (
	// None of them needs a parameter, so none needs a prepared statement.
	postgresDatabase = `
SELECT
    current_database()::text,
    coalesce(host(inet_server_addr()), ''),
    coalesce(inet_server_port(), 0),
    current_user::text,
    coalesce(current_schema()::text, ''),
    coalesce((
        SELECT n.nspname::text
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass('scheduler_lock_schema')
    ), ''),
    coalesce(to_regclass(quote_ident(current_schema()) || '.scheduler_lock_migrations') IS NOT NULL,
             false), true`

	// postgresNamed tells the same of a schema that has a name, by the catalogs,
	// which every role may read, whatever it may do in the schema.
	postgresNamed = `
SELECT
    current_database()::text,
    coalesce(host(inet_server_addr()), ''),
    coalesce(inet_server_port(), 0),
    current_user::text,
    s.name,
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_class c
                      WHERE c.relnamespace = n.oid AND c.relname = 'scheduler_lock_schema')
         THEN s.name ELSE '' END,
    EXISTS (SELECT FROM pg_catalog.pg_class c
            WHERE c.relnamespace = n.oid AND c.relname = 'scheduler_lock_migrations'),
    n.oid IS NOT NULL
FROM (SELECT '%s'::text AS name) AS s LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.name`

	postgresSchema = `
SELECT coalesce(max(version), 0), coalesce(max(min_code), 0)
FROM %sscheduler_lock_schema`
)

var postgresEngine = engine{
	folder: "postgres", goose: goose.DialectPostgres,
	read:      readPostgres,
	prepare:   preparePostgres,
	explain:   explainPostgres,
	transient: isTransient,
	shortest:  50 * time.Millisecond, longest: 200 * time.Millisecond,
}

// preparePostgres makes the schema of WithSchema. Without that, all tables must lie in one.
func preparePostgres(ctx context.Context, db *sql.DB, s state) error {
	if s.foundIn != "" && s.foundIn != s.createIn {
		return fmt.Errorf("its tables are there, but the search_path would let new ones land "+
			"in schema %q: put %q first", s.createIn, s.foundIn)
	}
	if !s.noSchema {
		return nil
	}
	_, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+names.QuoteSchema(s.createIn))
	return err
}

// readPostgres reads what the database says about itself, in two statements that need no
// transaction: a migration creates and fills scheduler_lock_schema at once.
func readPostgres(ctx context.Context, db *sql.DB, in string) (state, error) {
	query, prefix := postgresDatabase, ""
	if in != "" {
		query, prefix = fmt.Sprintf(postgresNamed, in), names.QuoteSchema(in)+"."
	}
	var (
		s          state
		name, host string
		port       int
		hasSchema  bool
	)
	s.named = in != ""
	err := db.QueryRowContext(ctx, query).
		Scan(&name, &host, &port, &s.role, &s.createIn, &s.foundIn, &s.hasVersionTable,
			&hasSchema)
	if err != nil {
		return state{}, fmt.Errorf("open the PostgreSQL database: %w", explainConnect(err))
	}
	s.noSchema = !hasSchema
	s.database = describePostgres(name, host, port, cmp.Or(s.foundIn, s.createIn))
	if s.foundIn == "" {
		return s, nil
	}
	if err := db.QueryRowContext(ctx, fmt.Sprintf(postgresSchema, prefix)).Scan(&s.version,
		&s.minCode); err != nil {
		switch {
		case sqlState(err) == "42501" && s.named:
			err = fmt.Errorf("%w: GRANT USAGE ON SCHEMA %q, "+
				"and SELECT ON %sscheduler_lock_schema, and what the lock needs, to role %q",
				err, in, prefix, s.role)
		case sqlState(err) == "42501":
			err = fmt.Errorf("%w: GRANT SELECT ON scheduler_lock_schema, "+
				"and what the lock needs, to role %q", err, s.role)
		}
		return state{}, fmt.Errorf("read table scheduler_lock_schema in %s: %w",
			s.database, err)
	}
	return s, nil
}

// describePostgres is how errors and logs name a database. The address is the server's own, also
// behind a pooler.
func describePostgres(name, host string, port int, schema string) string {
	server := "a Unix socket"
	if host != "" {
		server = net.JoinHostPort(host, fmt.Sprint(port))
	}
	return fmt.Sprintf("database %q on %s, schema %q", name, server, schema)
}

func explainPostgres(s state, err error) error {
	switch code := sqlState(err); {
	case takesNoTransaction(err):
		return fmt.Errorf("%w: a pooler is in between: set pool_mode = transaction there", err)
	case code == "42501" && s.noSchema:
		return fmt.Errorf("%w: let an administrator run CREATE SCHEMA %q AUTHORIZATION %q, "+
			"or GRANT CREATE ON DATABASE to that role", err, s.createIn, s.role)
	case code == "42501" && s.named:
		return fmt.Errorf("%w: let an administrator run the migrations, "+
			"or GRANT USAGE, CREATE ON SCHEMA %q TO %q; "+
			"tables that are there already must belong to that role", err, s.createIn, s.role)
	case code == "42501": // insufficient_privilege
		return fmt.Errorf("%w: let an administrator run the migrations, "+
			"or GRANT CREATE ON SCHEMA %q TO %q; "+
			"tables that are there already must belong to that role", err, s.createIn, s.role)
	case code == "25006": // read_only_sql_transaction
		return fmt.Errorf("%w: this server is read-only: connect to the primary; "+
			"or default_transaction_read_only is on: find who has set it", err)
	case code == "3F000": // invalid_schema_name
		return fmt.Errorf("%w: no schema of the search_path exists, or role %q may not use it: "+
			"create one, or GRANT USAGE, CREATE on it",
			err, s.role)
	case code == "42P07": // duplicate_table
		return fmt.Errorf("%w: the tables in the way are not of this program: "+
			"move them, or choose another schema", err)
	}
	return explainConnect(err)
}

// explainConnect adds to the error of a refused connection what to do about it.
func explainConnect(err error) error {
	switch sqlState(err) {
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		return fmt.Errorf("%w: check the user, the password and pg_hba.conf", err)
	case "3D000": // invalid_catalog_name
		return fmt.Errorf("%w: create the database, or correct its name", err)
	case "42501":
		return fmt.Errorf("%w: GRANT CONNECT ON DATABASE to this role", err)
	}
	return err
}

// transientStates are the SQLSTATEs that time may cure.
var transientStates = []string{
	"40001", // serialization_failure
	"40P01", // deadlock_detected
	"53300", // too_many_connections
	"55P03", // lock_not_available: lock_timeout
	"57014", // query_canceled: statement_timeout, as the end of ctx ends retrying anyway
	"57P01", // admin_shutdown
	"57P02", // crash_shutdown
	"57P03", // cannot_connect_now: the server starts or stops
}

// isTransient reports whether another attempt may succeed: the connection was lost or refused, the
// server is busy.
func isTransient(err error) bool {
	if code := sqlState(err); code != "" && !takesNoTransaction(err) {
		return strings.HasPrefix(code, "08") || slices.Contains(transientStates, code)
	}
	// pgx says so of a connection that it has closed itself
	return lostConnection(err) || strings.Contains(err.Error(), "conn closed")
}

// takesNoTransaction reports an error of PgBouncer, which has one SQLSTATE for all of its own.
func takesNoTransaction(err error) bool {
	return strings.Contains(err.Error(), "statement pooling mode")
}

// lostConnection reports whether the connection to a server was lost or refused.
func lostConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) ||
		errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, sql.ErrConnDone)
}

// sqlState returns the SQLSTATE of a server's error, "" for any other. The drivers agree on this
// method: an app that uses SQLite, or another driver, must not link one for our sake.
func sqlState(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}
