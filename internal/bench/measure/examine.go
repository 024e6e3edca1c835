//go:build linux

package main

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// databaseState is what can be seen of a database from outside.
type databaseState struct {
	size, log int64     // bytes of the database, and of its WAL or redo log
	written   time.Time // SQLite: when the file or its WAL was last changed
	// PostgreSQL counts transactions, which are statements here. MariaDB counts the whole server,
	// which nobody else uses.
	statements, rows int64
	conns            int64         // of standbys
	cpu              time.Duration // of what serves them
}

// since is what has changed, with the connections of now.
func (s databaseState) since(before databaseState) databaseState {
	s.size -= before.size
	s.log -= before.log
	s.statements -= before.statements
	s.rows -= before.rows
	s.cpu -= before.cpu
	if s.written.Equal(before.written) {
		s.written = time.Time{}
	}
	return s
}

// changed reports whether a SQLite database has changed.
func (s databaseState) changed() bool { return s.size != 0 || s.log != 0 || !s.written.IsZero() }

// An examined database, from outside.
type examined interface {
	state(ctx context.Context) (databaseState, error)
	close()
}

func examine(ctx context.Context, dsn string) (examined, error) {
	if !isPostgres(dsn) && !isMariaDB(dsn) {
		return examinedFile(strings.TrimPrefix(dsn, "file:")), nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(u.Path, "/")
	if isMariaDB(dsn) {
		db, err := sql.Open("mysql", "root@tcp("+u.Host+")/?interpolateParams=true")
		return &examinedMariaDB{db: db, name: name}, err
	}
	u.Path = "/postgres"
	conn, err := pgx.Connect(ctx, u.String())
	return &examinedPostgres{conn, name}, err
}

// as adds a name under which the server shows the connections.
func as(dsn, name string) string {
	switch {
	case isPostgres(dsn):
		return dsn + "&application_name=" + name
	case isMariaDB(dsn): // as a user of that name
		return strings.Replace(dsn, "//root@", "//"+name+"@", 1)
	}
	return dsn
}

// examinedFile is the path of a SQLite file.
type examinedFile string

func (path examinedFile) state(context.Context) (s databaseState, err error) {
	file, err := os.Stat(string(path))
	if err != nil {
		return s, err
	}
	s.size, s.written = file.Size(), file.ModTime()
	if wal, err := os.Stat(string(path) + "-wal"); err == nil {
		s.log = wal.Size()
		if wal.ModTime().After(s.written) {
			s.written = wal.ModTime()
		}
	}
	return s, nil
}

func (path examinedFile) close() {}

// examinedPostgres looks from another database of the server.
type examinedPostgres struct {
	conn *pgx.Conn
	name string
}

func (e *examinedPostgres) state(ctx context.Context) (s databaseState, err error) {
	const sqlState = `
SELECT pg_database_size(d.datid), (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint,
       d.xact_commit + d.xact_rollback, d.tup_inserted + d.tup_updated + d.tup_deleted,
       array(SELECT a.pid FROM pg_stat_activity a
             WHERE a.datid = d.datid AND a.application_name = 'standby')
FROM pg_stat_database d WHERE d.datname = $1`
	var pids []int
	if err := e.conn.QueryRow(ctx, sqlState, e.name).Scan(&s.size, &s.log, &s.statements, &s.rows,
		&pids); err != nil {
		return s, err
	}
	return s, s.serve(pids, processCPU)
}

func (e *examinedPostgres) close() { _ = e.conn.Close(context.Background()) }

// serve counts the processes or threads that serve standbys.
func (s *databaseState) serve(ids []int, cpuOf func(int) (time.Duration, error)) error {
	for _, id := range ids {
		cpu, err := cpuOf(id)
		if err != nil {
			return err
		}
		s.conns++
		s.cpu += cpu
	}
	return nil
}

type examinedMariaDB struct {
	db    *sql.DB
	name  string
	asked int64 // statements, which do not count
}

func (e *examinedMariaDB) state(ctx context.Context) (s databaseState, err error) {
	const sqlStatus = `
SELECT coalesce(sum(CASE WHEN variable_name = 'QUESTIONS' THEN variable_value END), 0),
       coalesce(sum(CASE WHEN variable_name = 'INNODB_LSN_CURRENT' THEN variable_value END), 0),
       coalesce(sum(CASE WHEN variable_name LIKE 'HANDLER%' THEN variable_value END), 0)
FROM information_schema.global_status
WHERE variable_name IN ('QUESTIONS', 'INNODB_LSN_CURRENT', 'HANDLER_WRITE', 'HANDLER_UPDATE',
    'HANDLER_DELETE')`
	var statements, log, rows float64
	if err := e.db.QueryRowContext(ctx, sqlStatus).Scan(&statements, &log, &rows); err != nil {
		return s, err
	}
	s.statements, s.log, s.rows = int64(statements)-e.asked, int64(log), int64(rows)
	threads, err := e.db.QueryContext(ctx, `
SELECT tid FROM information_schema.processlist WHERE user = 'standby' AND db = ?`, e.name)
	if err != nil {
		return s, err
	}
	defer threads.Close()
	e.asked += 2
	var ids []int
	for threads.Next() {
		var id int
		if err := threads.Scan(&id); err != nil {
			return s, err
		}
		ids = append(ids, id)
	}
	if err := threads.Err(); err != nil {
		return s, err
	}
	return s, s.serve(ids, threadCPU)
}

func (e *examinedMariaDB) close() { _ = e.db.Close() }
