package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/names"
)

// Latest is the version of this code: that of the newest migration it embeds.
const Latest int64 = 13

// Dialect says which database the *sql.DB is connected to. Its value is the name of the folder with
// its SQL files.
type Dialect string

const (
	// SQLite is any SQLite driver for database/sql.
	SQLite Dialect = "sqlite"
	// PostgreSQL is any PostgreSQL driver for database/sql, directly or through PgBouncer.
	PostgreSQL Dialect = "postgres"
	// MySQL is the driver github.com/go-sql-driver/mysql, connected to MariaDB 10.11.
	MySQL Dialect = "mysql"
)

//go:embed sqlite/*.sql postgres/*.sql mysql/*.sql
var files embed.FS

// defaultTimeout bounds a call whose context has no deadline.
const defaultTimeout = 30 * time.Second

// Up brings the schema to version [Latest]. A schema that is current, or newer and still compatible
// (see the package comment), is left alone: nothing is written.
//
// It may be called by any number of processes and goroutines at once, and again. It
// waits for others that migrate, for writers that hold the database, and for a
// server that cannot be reached, until the deadline of ctx, or for 30 seconds if
// ctx has none. It needs one free connection of db at a time, and does not close
// db.
//
// A migration is applied wholly or not at all. The error is a [*TooNewError] if
// this code is too old for the database; it wraps the error of ctx if time ran out;
// else it wraps that of the driver. It names the database wherever a connection
// could be opened, on SQLite by its file, and never a password; where none could,
// for example because the DSN sets a pragma on a file that is not a database, the
// driver's error is all there is, and the caller knows its DSN.
func Up(ctx context.Context, db *sql.DB, dialect Dialect, opts ...Option) error {
	return run(ctx, dialect, opts, func(ctx context.Context, d engine, cfg config) error {
		return d.up(ctx, db, cfg)
	})
}

// Version returns the version of the schema in the database, 0 if it has none of our tables. It
// only reads. It waits for a busy database as [Up] does, and says nothing about compatibility.
func Version(ctx context.Context, db *sql.DB, dialect Dialect, opts ...Option) (int64, error) {
	var version int64
	err := run(ctx, dialect, opts, func(ctx context.Context, d engine, cfg config) error {
		s, err := d.read(ctx, db, cfg.schema)
		version = s.version
		return err
	})
	if err != nil {
		return 0, err
	}
	return version, nil
}

// run does what a call asks for, with its options, again and again until its context ends.
func run(ctx context.Context, dialect Dialect, opts []Option,
	do func(context.Context, engine, config) error) error {
	d, cfg, err := configure(dialect, opts)
	if err == nil {
		err = withDeadline(ctx, func(ctx context.Context) error {
			return d.retry(ctx, func() error { return do(ctx, d, cfg) })
		})
	}
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	return nil
}

// Option changes how [Up] works.
type Option func(*config) error

type config struct {
	logger *slog.Logger
	schema string // "": the first of the search_path
}

func configure(dialect Dialect, opts []Option) (d engine, cfg config, err error) {
	d, known := engines[dialect]
	if !known {
		return d, cfg, fmt.Errorf("dialect %q is unknown: use %q, %q or %q", dialect, SQLite,
			PostgreSQL, MySQL)
	}
	cfg = config{logger: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		if err := opt(&cfg); err != nil {
			return d, cfg, err
		}
	}
	if cfg.schema != "" && d.noSchemas != "" {
		return d, cfg, fmt.Errorf("option WithSchema: schema %q: %s has no schemas, %s", cfg.schema,
			dialect, d.noSchemas)
	}
	return d, cfg, nil
}

// WithSchema keeps the tables, also that of the versions, in a schema of that
// name, which [Up] makes if it is missing, on PostgreSQL only. The search_path
// does not matter then. See postgres.WithSchema for the names that are allowed.
func WithSchema(name string) Option {
	return func(c *config) error {
		if err := names.CheckSchema(name); err != nil {
			return fmt.Errorf("option WithSchema: %w", err)
		}
		c.schema = name
		return nil
	}
}

// WithLogger makes [Up] log one line when it has changed the schema. Without it, it is silent.
func WithLogger(logger *slog.Logger) Option {
	return func(c *config) error {
		if logger == nil {
			return errors.New("option WithLogger: the logger must not be nil")
		}
		c.logger = logger
		return nil
	}
}

// TooNewError says that the database was migrated by newer code, in a way that this code cannot
// work with.
type TooNewError struct {
	Database        string // its file, or its name, address and, on PostgreSQL, schema
	DatabaseVersion int64  // version of the schema in the database
	MinCode         int64  // lowest code version that works with it
	CodeVersion     int64  // version of this code: Latest
}

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the schema in %s has version %d, which needs code of version %d or newer, "+
		"and this code has version %d: "+
		"deploy a newer release of this program, or restore the backup from before the upgrade",
		e.Database, e.DatabaseVersion, e.MinCode, e.CodeVersion)
}

// withDeadline gives do a context that has a deadline, and makes sure that an error after
// its end wraps the error of the context: a driver reports an interrupted statement in
// words of its own.
func withDeadline(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := bounded.Context(ctx, defaultTimeout)
	defer cancel()
	err := do(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
