package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"example.com/schedlock/internal/names"
)

// versionTable is where goose records what it has applied.
const versionTable = "scheduler_lock_migrations"

// applyPending lets goose apply the migrations that are missing, each in a transaction of its own.
// The caller must keep other processes away meanwhile, and says in hasVersionTable whether the
// table is there.
func (d engine) applyPending(ctx context.Context, db *sql.DB, schema string,
	hasVersionTable bool) error {
	table := versionTable
	if schema != "" {
		table = names.QuoteSchema(schema) + "." + table
	}
	versions, err := database.NewStore(d.goose, table)
	if err != nil {
		return err
	}
	if !hasVersionTable {
		if err := createVersionTable(ctx, db, versions); err != nil {
			return fmt.Errorf("create table %s: %w", versionTable, err)
		}
	}
	folder, err := fs.Sub(files, d.folder)
	if err != nil {
		return err
	}
	if schema != "" {
		folder = inSchema{folder, schema}
	}
	// The provider is never closed: that would close the caller's db.
	provider, err := goose.NewProvider(goose.DialectCustom, db, folder,
		goose.WithStore(versionStore{versions}),
		goose.WithDisableGlobalRegistry(true), // the app's own Go migrations are not ours to run
		goose.WithLogger(goose.NopLogger()),
	)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		var partial *goose.PartialError
		if errors.As(err, &partial) && partial.Failed != nil && partial.Failed.Source != nil {
			return fmt.Errorf("apply %s/%s: %w", d.folder, partial.Failed.Source.Path, partial.Err)
		}
		return err
	}
	return nil
}

// createVersionTable creates goose's version table as goose itself would. Goose tries that four
// times, a second apart, whatever the error; here a read-only database fails at once, and a busy
// one is tried again soon.
func createVersionTable(ctx context.Context, db *sql.DB, store database.Store) (err error) {
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

// versionStore is goose's own, with a table that is there: goose would look for
// the name of a schema with its quotes.
type versionStore struct{ database.Store }

func (versionStore) TableExists(context.Context, database.DBTxConn) (bool, error) {
	return true, nil
}

// inSchema are migrations whose unqualified names mean a schema: each begins by
// saying so, for its own transaction only, so that it works behind a pooler.
type inSchema struct {
	fs.FS
	schema string
}

const up = "-- +goose Up\n"

// Open implements fs.FS.
func (f inSchema) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.IsDir() {
		return file, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	first, rest, found := strings.Cut(string(text), up)
	if !found {
		return nil, errors.Join(fmt.Errorf("%s has no line %q", name, up), file.Close())
	}
	path := up + "SET LOCAL search_path = " + names.QuoteSchema(f.schema) + ";\n"
	return textFile{file, strings.NewReader(first + path + rest)}, nil
}

// textFile is a file with another text.
type textFile struct {
	fs.File
	text io.Reader
}

func (f textFile) Read(p []byte) (int, error) { return f.text.Read(p) }
