//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
)

// The databases.
const (
	dbSQLite   = "SQLite"
	dbPostgres = "PostgreSQL"
	dbMariaDB  = "MariaDB"
)

var databases = []string{dbSQLite, dbPostgres, dbMariaDB}

// A measurer has what the parts need to measure, and their results.
type measurer struct {
	quick  bool // few rounds, to try the program out
	root   string
	dir    string // temporary, on the file system that is measured
	report *report

	host    host.Host
	servers map[string]*server
	made    int // databases
}

// A server makes databases, unless it could not be started.
type server struct {
	database func() (dsn string)
	version  string
	err      error
}

func newMeasurer(quick bool) (*measurer, error) {
	m := &measurer{quick: quick, report: newReport(), servers: map[string]*server{}}
	var err error
	if m.root, err = moduleRoot(); err != nil {
		return nil, err
	}
	if m.dir, err = os.MkdirTemp("", "schedlock-measure"); err != nil {
		return nil, err
	}
	return m, os.Chmod(m.dir, 0o755) // for the user that the servers of the benchmarks run as
}

// close ends the servers, and deletes what was made.
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

// newDatabase returns the address of a new database of a kind. A SQLite file has a folder of its
// own. A server is started for the first one.
func (m *measurer) newDatabase(db string) (dsn string, err error) {
	m.made++
	if db == dbSQLite {
		return "file:" + filepath.Join(m.dir, fmt.Sprint("db", m.made), "app.db"), nil
	}
	s := m.servers[db]
	if s == nil {
		s = &server{}
		m.servers[db] = s
		s.err = m.host.Try(func() {
			if db == dbPostgres {
				m.startPostgres(s)
			} else {
				m.startMariaDB(s)
			}
		})
		if missing := (*host.MissingError)(nil); errors.As(s.err, &missing) {
			m.report.Missing = append(m.report.Missing, db+": "+missing.Error())
		}
	}
	if s.err == nil {
		s.err = m.host.Try(func() { dsn = s.database() })
	}
	return dsn, s.err
}

// startPostgres starts a server with the durability that a server is run with. Its databases go
// with it: nobody drops them.
func (m *measurer) startPostgres(s *server) {
	durable := "fsync = on"
	if m.quick { // the figures say nothing, so the disk need not either
		durable = "fsync = off"
	}
	started := pgtest.Start(&m.host, durable, "synchronous_commit = on",
		"shared_buffers = 128MB", fmt.Sprint("max_connections = ", thousand+100))
	s.database = func() string { return started.Database(&host.Host{}) }
	s.version = postgresVersion(started.URL("postgres")) + ", on the same machine, with " + durable
}

// startMariaDB starts a server with a flush for each commit, and without a binlog.
func (m *measurer) startMariaDB(s *server) {
	started := mytest.Durable(&m.host)
	started.Exec(&m.host, `CREATE USER standby@'127.0.0.1'`)
	started.Exec(&m.host, `CREATE USER leader@'127.0.0.1'`)
	started.Exec(&m.host, `GRANT ALL ON *.* TO standby@'127.0.0.1', leader@'127.0.0.1'`)
	s.database = func() string {
		name := fmt.Sprint("measured_", m.made)
		started.Exec(&m.host, "CREATE DATABASE "+name)
		return started.URL(name)
	}
	err := started.Open(&m.host, started.URL("")).QueryRow(`SELECT version()`).Scan(&s.version)
	if err != nil {
		panic(err)
	}
	s.version += ", on the same machine, with a flush for each commit, without a binlog"
}

// on measures on a new database. It does nothing where this machine lacks the server.
func (m *measurer) on(db string, f func(dsn string) error) error {
	dsn, err := m.newDatabase(db)
	if missing := (*host.MissingError)(nil); errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = f(dsn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", db, err)
	}
	return nil
}

// onEach measures on a new database of each kind.
func (m *measurer) onEach(ctx context.Context, f func(db, dsn string) error) error {
	for _, db := range databases {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.on(db, func(dsn string) error { return f(db, dsn) }); err != nil {
			return err
		}
	}
	return nil
}
