//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/pgtest"
)

// The databases.
const (
	dbSQLite   = "SQLite"
	dbPostgres = "PostgreSQL"
)

var databases = []string{dbSQLite, dbPostgres}

// A measurer has what the parts need to measure, and their results.
type measurer struct {
	quick  bool          // few rounds, to try the program out
	wait   time.Duration // what is left of the time to wait for a calm machine
	root   string
	dir    string // temporary, on the file system that is measured
	report *report

	host      host.Host
	server    *pgtest.Server
	serverErr error
	alone     bool // only MariaDB is measured
	files     int
}

func newMeasurer(quick bool) (*measurer, error) {
	m := &measurer{quick: quick, report: &report{Benchmarks: benchmarks{}}}
	var err error
	if m.root, err = moduleRoot(); err != nil {
		return nil, err
	}
	if m.dir, err = os.MkdirTemp("", "schedlock-measure"); err != nil {
		return nil, err
	}
	return m, os.Chmod(m.dir, 0o755) // for the user that the servers of the benchmarks run as
}

// close ends the server, and deletes what was made.
func (m *measurer) close() error {
	m.host.End()
	return os.RemoveAll(m.dir)
}

func (m *measurer) rounds(n int) int {
	if m.quick {
		return 2
	}
	return n
}

// sqliteFile names a new SQLite file, in a folder of its own.
func (m *measurer) sqliteFile() string {
	m.files++
	return "file:" + filepath.Join(m.dir, fmt.Sprint("db", m.files), "app.db")
}

// postgres returns the server, with the durability that a server is run with.
func (m *measurer) postgres() (*pgtest.Server, error) {
	if m.server == nil && m.serverErr == nil {
		m.serverErr = m.host.Try(func() {
			durable := "fsync = on"
			if m.quick { // the figures say nothing, so the disk need not either
				durable = "fsync = off"
			}
			m.server = pgtest.Start(&m.host, durable, "synchronous_commit = on",
				"shared_buffers = 128MB",
				fmt.Sprint("max_connections = ", thousand+100))
		})
	}
	return m.server, m.serverErr
}

// newDatabase returns the URL of a new PostgreSQL database.
func (m *measurer) newDatabase() (dsn string, err error) {
	server, err := m.postgres()
	if err == nil {
		// It goes with the server: a host of its own, so that nobody drops it.
		err = m.host.Try(func() { dsn = server.Database(&host.Host{}) })
	}
	return dsn, err
}

// onPostgres measures on a new database; it does nothing where there is no
// server to be had.
func (m *measurer) onPostgres(f func(dsn string) error) error {
	dsn, err := m.newDatabase()
	if missing := (*host.MissingError)(nil); errors.As(err, &missing) {
		m.report.Missing = missing.Error()
		return nil
	}
	if err != nil {
		return err
	}
	return f(dsn)
}

// onEach measures on a new database of each kind.
func (m *measurer) onEach(ctx context.Context, f func(db, dsn string) error) error {
	if err := f(dbSQLite, m.sqliteFile()); err != nil {
		return fmt.Errorf("%s: %w", dbSQLite, err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := m.onPostgres(func(dsn string) error { return f(dbPostgres, dsn) })
	if err != nil {
		return fmt.Errorf("%s: %w", dbPostgres, err)
	}
	return nil
}
