package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pressly/goose/v3"
)

// An engine is what differs between the databases. A function that is nil is not needed there.
type engine struct {
	folder string // of its SQL files
	goose  goose.Dialect

	noSchemas string // what to do instead of WithSchema; "": it has schemas

	// read reads what the database says about itself, in the schema of that name, if it has one.
	read func(ctx context.Context, db *sql.DB, schema string) (state, error)

	// alone keeps every other process that migrates away while it calls do, or until this process
	// ends. It is nil where only one of several processes can commit a migration: the others fail,
	// have changed nothing, and look again.
	alone func(ctx context.Context, db *sql.DB, s state, do func(*sql.DB) error) error

	// prepare makes what the tables need, or says why they can't be made.
	prepare func(ctx context.Context, db *sql.DB, s state) error

	// explain adds to the error of a migration what to do about it.
	explain func(s state, err error) error

	// transient reports whether time may cure an error. The pauses before the next attempt grow
	// from the shortest to the longest.
	transient         func(error) bool
	shortest, longest time.Duration
}

var engines = map[Dialect]engine{SQLite: sqliteEngine, PostgreSQL: postgresEngine,
	MySQL: mysqlEngine}

// state is what a database says about itself. A database without schemas leaves the second part
// empty.
type state struct {
	database        string // what errors call the database
	version         int64  // 0: it has none of our tables
	minCode         int64  // the lowest code version that works with it
	hasVersionTable bool   // goose's

	role     string
	createIn string // schema where new tables land; "": none of the search_path exists
	foundIn  string // schema of scheduler_lock_schema; "": there is none
	named    bool   // the schema was asked for, by WithSchema
	noSchema bool   // it is not there yet
}

// current reports whether there is nothing to do, or returns an error if code of this version must
// not touch the database.
func (s state) current(code int64) (bool, error) {
	if s.minCode > code {
		return false, &TooNewError{Database: s.database, DatabaseVersion: s.version,
			MinCode: s.minCode, CodeVersion: code}
	}
	return s.version >= code, nil
}

// progressedFrom reports whether somebody has migrated since before was read.
func (s state) progressedFrom(before state) bool {
	return s.version > before.version || s.hasVersionTable && !before.hasVersionTable ||
		before.noSchema && !s.noSchema
}

// errLostRace says that another process has migrated meanwhile: look again.
var errLostRace = errors.New("another process has migrated the database meanwhile")

// up is one attempt of Up.
func (d engine) up(ctx context.Context, db *sql.DB, cfg config) error {
	before, err := d.read(ctx, db, cfg.schema)
	if err != nil {
		return err
	}
	if done, err := before.current(Latest); done || err != nil {
		return err
	}
	if d.alone == nil {
		return d.migrate(ctx, db, cfg, before)
	}
	return d.alone(ctx, db, before, func(db *sql.DB) error {
		// Another process may have done it while we waited.
		before, err := d.read(ctx, db, cfg.schema)
		if err != nil {
			return err
		}
		if done, err := before.current(Latest); done || err != nil {
			return err
		}
		return d.migrate(ctx, db, cfg, before)
	})
}

// migrate applies what is missing.
func (d engine) migrate(ctx context.Context, db *sql.DB, cfg config, before state) (err error) {
	start := time.Now()
	if d.prepare != nil {
		err = d.prepare(ctx, db, before)
	}
	if err == nil && before.version > 0 && !before.hasVersionTable {
		return fmt.Errorf("migrate %s: table scheduler_lock_schema knows version %d, but "+
			"table %s, which tells what is applied, was dropped: restore it from a backup",
			before.database, before.version, versionTable)
	}
	if err == nil {
		err = d.applyPending(ctx, db, cfg.schema, before.hasVersionTable)
	}
	if err != nil {
		return d.failed(ctx, db, cfg, before, err)
	}
	after, err := d.read(ctx, db, cfg.schema)
	if err != nil {
		return err
	}
	if after.version < Latest {
		return fmt.Errorf("migrate %s: table %s says that all is applied, "+
			"but table scheduler_lock_schema only knows version %d: "+
			"one of the two was edited by hand; restore it from a backup", before.database,
			versionTable, after.version)
	}
	cfg.logger.LogAttrs(ctx, slog.LevelInfo, "scheduler lock schema migrated",
		slog.String("database", after.database),
		slog.Int64("from", before.version),
		slog.Int64("to", after.version),
		slog.Duration("took", time.Since(start)))
	return nil
}

// failed is the error of a migration that has failed with cause. Where no lock keeps the others
// away, a conflict with another process shows once that has committed, so its work can be seen now.
// Without any, "already exists" means tables that are not ours.
func (d engine) failed(ctx context.Context, db *sql.DB, cfg config, before state,
	cause error) error {
	now, err := d.read(ctx, db, cfg.schema)
	switch {
	case err != nil && d.transient(err):
		return fmt.Errorf("%w: %w", err, cause) // under SERIALIZABLE a read can fail, too
	case err != nil:
		now = before
	case now.progressedFrom(before):
		return fmt.Errorf("%w: %w", errLostRace, cause)
	}
	if d.explain != nil {
		cause = d.explain(now, cause)
	}
	return fmt.Errorf("migrate %s from version %d to %d: %w", before.database, before.version,
		Latest, cause)
}

// retry repeats attempt until it succeeds, fails for good, or ctx ends.
func (d engine) retry(ctx context.Context, attempt func() error) error {
	var last error
	for pause := d.shortest; ; pause = min(2*pause, d.longest) {
		err := attempt()
		switch {
		case err == nil || last == nil && ctx.Err() != nil:
			return err
		case ctx.Err() != nil:
			// What ends an attempt half-way says less than what the attempts before ran into.
			return fmt.Errorf("%w; before that: %w", err, last)
		case !errors.Is(err, errLostRace) && !d.transient(err):
			return err
		}
		last = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w while waiting for the database: %w", ctx.Err(), err)
		case <-time.After(pause/2 + rand.N(pause/2)): // processes that collided must not meet again
		}
	}
}
