package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

// checkDSN returns what is wrong with the DSN, without touching a database.
func checkDSN(dsn string) error {
	if !isPostgres(dsn) {
		return sqlite.CheckDSN(dsn)
	}
	if _, err := pgxpool.ParseConfig(dsn); err != nil { // which may quote a part of the password
		return fmt.Errorf("%q is not a URL such as postgres://app@db:5432/app?sslmode=require, with special characters as %%XX", message.WithoutPassword(dsn))
	}
	return nil
}

// store is what both databases have.
type store interface {
	schedlock.RevocableStore
	ledger.Store
	Migrate(ctx context.Context) error
	Close() error
}

var discard = slog.New(slog.DiscardHandler)

func isPostgres(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// keptReader is the connection to PostgreSQL, from one look to the next. A
// SQLite file is opened anew for each: it may be replaced, or come into use.
type keptReader struct {
	store   *postgres.Store // nil: there is none yet, or it is a SQLite file
	checked bool            // its schema
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
	if !isPostgres(t.dsn) {
		return t.advise(ctx, sqlite.Read(ctx, t.dsn, func(ctx context.Context, s *sqlite.Store) error { return do(ctx, s) }))
	}
	if t.reader.store == nil {
		s, err := postgres.OpenReader(ctx, t.dsn, postgres.WithLogger(discard))
		if err != nil {
			return t.advise(ctx, err)
		}
		t.reader.store = s
	}
	return t.advise(ctx, do(ctx, t.reader.store))
}

// open opens the database for writing. It makes no SQLite file.
func (t *tool) open(ctx context.Context) (s store, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if isPostgres(t.dsn) {
		s, err = openServer(ctx, t.dsn)
	} else {
		s, err = openFile(ctx, t.dsn)
	}
	return s, t.advise(ctx, err)
}

// The two return an interface that is nil after an error.

func openServer(ctx context.Context, dsn string) (store, error) {
	s, err := postgres.Open(ctx, dsn, postgres.WithLogger(discard))
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openFile(ctx context.Context, dsn string) (store, error) {
	s, err := sqlite.OpenExisting(ctx, dsn)
	if err != nil {
		return nil, err
	}
	return s, nil
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
	version, err := schemaVersion(ctx, s)
	switch {
	case err != nil:
		return 0, err
	case version == 0:
		return 0, fmt.Errorf("%s has no scheduler tables: correct --db, start the app, or run schedlock migrate", t.database())
	case version < migrations.Latest:
		return 0, fmt.Errorf("%s has tables of version %d, older than this tool, which reads version %d: "+
			"run schedlock migrate, or deploy the app's newer release, or use the schedlock of the older one", t.database(), version, migrations.Latest)
	case version > migrations.Latest:
		return version, s.Migrate(ctx) // writes nothing: it says whether the newer tables allow this code
	}
	return version, nil
}

func schemaVersion(ctx context.Context, s store) (int64, error) {
	switch s := s.(type) {
	case *sqlite.Store:
		return migrations.Version(ctx, s.DB(), migrations.SQLite)
	case *postgres.Store:
		db := stdlib.OpenDBFromPool(s.Pool())
		version, err := migrations.Version(ctx, db, migrations.PostgreSQL)
		return version, errors.Join(err, db.Close())
	}
	return 0, fmt.Errorf("the tables of a %T have no version", s)
}

// advise adds what to do to an error that the database itself did not explain.
func (t *tool) advise(ctx context.Context, err error) error {
	var refused *pgconn.ConnectError
	var answered *pgconn.PgError
	switch {
	case err == nil, errors.As(err, &answered), errors.Is(err, schedlock.ErrMoved):
		return err
	case errors.As(err, &refused):
		return fmt.Errorf("%w: see that the server runs and can be reached, or correct --db", err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("%s did not answer within %v (--timeout): %w", t.database(), t.timeout, err)
	}
	return err
}

// database is what messages call the database; it shows no password.
func (t *tool) database() string { return "database " + t.shownDSN() }

func (t *tool) shownDSN() string {
	if isPostgres(t.dsn) {
		return message.WithoutPassword(t.dsn)
	}
	return t.dsn
}

var (
	urlPassword  = regexp.MustCompile(`(\w+://[^\s:/@]*):[^\s"]*@`)
	pairPassword = regexp.MustCompile(`(?i)(password\s*=\s*)(?:'[^']*'|[^\s&]+)`)
)

// hide removes passwords from a message, whoever wrote it there: also the one
// of a URL that was given in the wrong place.
func (t *tool) hide(message string) string {
	message = urlPassword.ReplaceAllString(message, "$1:xxxxx@")
	message = pairPassword.ReplaceAllString(message, "${1}xxxxx")
	for _, secret := range secrets(t.dsn) {
		message = strings.ReplaceAll(message, secret, "xxxxx")
	}
	return message
}

// secrets are the passwords in a URL, as they are and as the URL has them.
func secrets(dsn string) (found []string) {
	u, err := url.Parse(dsn)
	if err != nil || !isPostgres(dsn) {
		return nil
	}
	all := u.Query()["password"]
	if u.User != nil {
		secret, _ := u.User.Password()
		all = append(all, secret)
	}
	for _, s := range all {
		if len(s) > 2 { // a shorter one would spoil every message
			found = append(found, s, url.QueryEscape(s))
		}
	}
	return found
}
