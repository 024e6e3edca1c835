package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/mysql"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

// checkDSN returns what is wrong with the DSN, without touching a database. It
// shows no part of it that may be a password.
func checkDSN(dsn string) error {
	form := "a path or a file: URI"
	kind, err := datasource.Of(dsn)
	switch kind {
	case datasource.PostgreSQL:
		form = "a URL such as " + pgdsn.Form
		_, err = pgdsn.Parse(dsn)
	case datasource.MySQL:
		form = "a URL such as " + mydsn.Form
		_, err = mydsn.Parse(dsn)
	case datasource.File:
		return sqlite.CheckDSN(dsn)
	}
	if err != nil {
		return fmt.Errorf("%q is not %s: %w", datasource.Shown(dsn), form, err)
	}
	return nil
}

// checkInside returns what is wrong with --schema.
func (t *tool) checkInside() error {
	switch {
	case t.inside == "":
		return nil
	case isMySQL(t.dsn):
		return fmt.Errorf("--schema %.60q: MariaDB has no schemas: name another database in --db",
			t.inside)
	case !isPostgres(t.dsn):
		return fmt.Errorf("--schema %.60q: a SQLite file has no schemas", t.inside)
	}
	if err := names.CheckSchema(t.inside); err != nil {
		return fmt.Errorf("--schema: %w", err)
	}
	return nil
}

func (t *tool) serverOptions() []postgres.Option {
	opts := []postgres.Option{postgres.WithLogger(discard)}
	if t.inside != "" {
		opts = append(opts, postgres.WithSchema(t.inside))
	}
	return opts
}

// store is what all databases have.
type store interface {
	driver.Store
	ledger.Store
	Named() namedlock.Store
	Queue() taskqueue.Store
	Migrate(ctx context.Context) error
	Close() error
}

var discard = slog.New(slog.DiscardHandler)

func isPostgres(dsn string) bool { return is(dsn, datasource.PostgreSQL) }

func isMySQL(dsn string) bool { return is(dsn, datasource.MySQL) }

func is(dsn string, kind datasource.Kind) bool {
	of, err := datasource.Of(dsn)
	return err == nil && of == kind
}

// isAddress reports whether an argument is an address in the wrong place, which
// may have a password, so that it is not shown as the name of a job.
func isAddress(arg string) bool {
	return strings.Contains(arg, "://") || isPostgres(arg) || isMySQL(arg)
}

// keptReader is the connection to a server, from one look to the next. A
// SQLite file is opened anew for each: it may be replaced, or come into use.
type keptReader struct {
	store   store // nil: there is none yet, or it is a SQLite file
	checked bool  // its schema
}

func (r *keptReader) close() {
	if r.store != nil {
		r.store.Close()
	}
}

// look reads, within the time-out: do must keep nothing of an earlier call, as
// it may be called again. The schema is one that this code can read.
func (t *tool) look(ctx context.Context, do func(ctx context.Context, s store) error) error {
	return t.lookAtAny(ctx, func(ctx context.Context, s store) error {
		if t.reader.checked {
			return do(ctx, s)
		}
		version, err := t.checkSchema(ctx, s)
		if err != nil {
			return err
		}
		t.schema, t.reader.checked = version, t.reader.store != nil
		return do(ctx, s)
	})
}

// lookAtAny is look for a schema of any version, also none.
func (t *tool) lookAtAny(ctx context.Context, do func(ctx context.Context, s store) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if !isPostgres(t.dsn) && !isMySQL(t.dsn) {
		return t.advise(ctx, sqlite.Read(ctx, t.dsn,
			func(ctx context.Context, s *sqlite.Store) error {
				return do(ctx, s)
			}))
	}
	if t.reader.store == nil {
		s, err := t.openReader(ctx)
		if err != nil {
			return t.advise(ctx, err)
		}
		t.reader.store = s
	}
	return t.advise(ctx, do(ctx, t.reader.store))
}

func (t *tool) openReader(ctx context.Context) (store, error) {
	if isMySQL(t.dsn) {
		return opened(mysql.Open(ctx, t.dsn, mysql.WithLogger(discard)))
	}
	return opened(postgres.OpenReader(ctx, t.dsn, t.serverOptions()...))
}

// open opens the database for writing. It makes no SQLite file.
func (t *tool) open(ctx context.Context) (s store, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	switch {
	case isPostgres(t.dsn):
		s, err = opened(postgres.Open(ctx, t.dsn, t.serverOptions()...))
	case isMySQL(t.dsn):
		s, err = opened(mysql.Open(ctx, t.dsn, mysql.WithLogger(discard)))
	default:
		s, err = opened(sqlite.OpenExisting(ctx, t.dsn))
	}
	return s, t.advise(ctx, err)
}

// opened returns an interface that is nil after an error.
func opened[S store](s S, err error) (store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openLimit bounds openAndMigrate.
const openLimit = time.Minute

// openAndMigrate opens the database as an app does: it makes a SQLite file that is
// not there, and brings the tables up to date.
func (t *tool) openAndMigrate(ctx context.Context, log *slog.Logger,
	file ...sqlite.Option) (store, error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	switch {
	case isMySQL(t.dsn):
		return opened(mysql.Opener(t.dsn, mysql.WithLogger(log)).Open(ctx))
	case !isPostgres(t.dsn):
		return opened(sqlite.Opener(t.dsn, file...).Open(ctx))
	}
	opts := append(t.serverOptions(), postgres.WithLogger(log))
	return opened(postgres.Opener(t.dsn, opts...).Open(ctx))
}

// bounded runs one statement of a command that takes longer in all.
func (t *tool) bounded(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return t.advise(ctx, do(ctx))
}

// checkSchema returns the version of the tables, and an error unless this code
// can read them: it can those of its own version, and newer ones that say so.
func (t *tool) checkSchema(ctx context.Context, s store) (int64, error) {
	version, err := t.schemaVersion(ctx, s)
	switch {
	case err != nil:
		return 0, err
	case version == 0:
		return 0, fmt.Errorf("%s has no scheduler tables: correct --db, start the app, "+
			"or run schedlock migrate", t.database())
	case version < migrations.Latest:
		return 0, fmt.Errorf("%s has tables of version %d, older than this tool, "+
			"which reads version %d: run schedlock migrate, or deploy the app's newer release, "+
			"or use the schedlock of the older one", t.database(), version, migrations.Latest)
	case version > migrations.Latest:
		// writes nothing: it says whether the newer tables allow this code
		return version, s.Migrate(ctx)
	}
	return version, nil
}

func (t *tool) schemaVersion(ctx context.Context, s store) (int64, error) {
	switch s := s.(type) {
	case *sqlite.Store:
		version, err := migrations.Version(ctx, s.DB(), migrations.SQLite)
		if err != nil { // SQLite names no file that it cannot open
			return version, fmt.Errorf("%s: %w", t.database(), err)
		}
		return version, nil
	case *mysql.Store:
		return migrations.Version(ctx, s.DB(), migrations.MySQL)
	case *postgres.Store:
		db := stdlib.OpenDBFromPool(s.Pool())
		var in []migrations.Option
		if t.inside != "" {
			in = append(in, migrations.WithSchema(t.inside))
		}
		version, err := migrations.Version(ctx, db, migrations.PostgreSQL, in...)
		return version, errors.Join(err, db.Close())
	}
	return 0, fmt.Errorf("the tables of a %T have no version", s)
}

// advise adds what to do to an error that the database itself did not explain.
func (t *tool) advise(ctx context.Context, err error) error {
	var refused *pgconn.ConnectError
	var dial *net.OpError
	var answered *pgconn.PgError
	var said *mysqldriver.MySQLError
	switch {
	case err == nil, errors.As(err, &answered), errors.As(err, &said),
		errors.Is(err, driver.ErrConflict):
		return err
	case errors.As(err, &refused), errors.As(err, &dial) && dial.Op == "dial" && isMySQL(t.dsn):
		return fmt.Errorf("%w: see that the server runs and can be reached, or correct --db", err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("%s did not answer within %v (--timeout): %w", t.database(),
			t.timeout, err)
	}
	return err
}

// database is what messages call the database.
func (t *tool) database() string {
	if t.inside != "" {
		return fmt.Sprintf("schema %q of database %s", t.inside, shownDSN(t.dsn))
	}
	return "database " + shownDSN(t.dsn)
}

// shownDSN shows the parts of a DSN that are known to be no password.
func shownDSN(dsn string) string {
	if isPostgres(dsn) {
		if config, err := pgdsn.Parse(dsn); err == nil {
			return pgdsn.Shown(config.ConnConfig)
		}
	}
	if isMySQL(dsn) {
		if config, err := mydsn.Parse(dsn); err == nil {
			return mydsn.Shown(config)
		}
	}
	return datasource.Shown(dsn)
}
