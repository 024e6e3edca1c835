package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// versionTable is where goose records what it has applied.
const versionTable = "scheduler_lock_migrations"

// applyPending lets goose apply the migrations that are missing, each in a transaction of its own.
// The caller must keep other processes away meanwhile, and says in hasVersionTable whether the
// table is there.
func applyPending(ctx context.Context, db *sql.DB, dialect Dialect, gooseDialect goose.Dialect, hasVersionTable bool) error {
	if !hasVersionTable {
		if err := createVersionTable(ctx, db, gooseDialect); err != nil {
			return fmt.Errorf("create table %s: %w", versionTable, err)
		}
	}
	folder, err := fs.Sub(files, string(dialect))
	if err != nil {
		return err
	}
	// The provider is never closed: that would close the caller's db.
	provider, err := goose.NewProvider(gooseDialect, db, folder,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true), // the app's own Go migrations are not ours to run
		goose.WithLogger(goose.NopLogger()),
	)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		var partial *goose.PartialError
		if errors.As(err, &partial) && partial.Failed != nil && partial.Failed.Source != nil {
			return fmt.Errorf("apply %s/%s: %w", dialect, partial.Failed.Source.Path, partial.Err)
		}
		return err
	}
	return nil
}

// createVersionTable creates goose's version table as goose itself would. Goose tries that four
// times, a second apart, whatever the error; here a read-only database fails at once, and a busy
// one is tried again soon.
func createVersionTable(ctx context.Context, db *sql.DB, gooseDialect goose.Dialect) (err error) {
	store, err := database.NewStore(gooseDialect, versionTable)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	if err := store.CreateVersionTable(ctx, tx); err != nil {
		return err
	}
	if err := store.Insert(ctx, tx, database.InsertRequest{Version: 0}); err != nil {
		return err
	}
	return tx.Commit()
}
