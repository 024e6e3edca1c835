//go:build unix

package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/require"
)

// sql does to the database what an operator would: rows are lines, columns are separated by |.
func (f *fleet) sql(statement string) string {
	f.t.Helper()
	out, err := f.trySQL(10*time.Second, statement)
	require.NoError(f.t, err, "%s: %s", statement, out)
	return out
}

func (f *fleet) trySQL(busy time.Duration, statement string) (string, error) {
	if f.server != "" {
		return queryServer(f.server, statement)
	}
	db := f.open(busy)
	defer db.Close()
	if !strings.HasPrefix(statement, "SELECT") {
		_, err := db.Exec(statement)
		return "", err
	}
	return query(db, statement)
}

// queryServer runs statements and returns the rows of the last.
func queryServer(url, statement string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		lines = append(lines, string(bytes.Join(row, []byte("|"))))
	}
	return strings.Join(lines, "\n"), nil
}

// open opens the database with the driver, on one connection.
func (f *fleet) open(busy time.Duration) *sql.DB {
	f.t.Helper()
	db, err := driver.Open(fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)",
		f.db, busy.Milliseconds()))
	require.NoError(f.t, err)
	db.SetMaxOpenConns(1)
	return db
}

func query(db *sql.DB, statement string) (string, error) {
	rows, err := db.Query(statement)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for rows.Next() {
		values, dest := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return "", err
		}
		for i, v := range values {
			if i > 0 {
				out.WriteByte('|')
			}
			out.WriteString(v.String)
		}
		out.WriteByte('\n')
	}
	return strings.TrimSpace(out.String()), rows.Err()
}

// holdWriteLock is another writer, which is at work until done is called.
func (f *fleet) holdWriteLock() (done func()) {
	f.t.Helper()
	db := f.open(10 * time.Second)
	f.t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(context.Background())
	require.NoError(f.t, err)
	_, err = conn.ExecContext(context.Background(), `BEGIN IMMEDIATE`)
	require.NoError(f.t, err)
	return func() {
		f.t.Helper()
		_, err := conn.ExecContext(context.Background(), `ROLLBACK`)
		require.NoError(f.t, errors.Join(err, conn.Close()))
	}
}

// requireNoRow checks that nobody holds the lock, and that every term and every run has an end.
func (f *fleet) requireNoRow() {
	f.t.Helper()
	require.Equal(f.t, "0", f.sql(`SELECT count(*) FROM scheduler_lock`), "lock rows")
	require.Equal(f.t, "0", f.sql(`SELECT count(*) FROM scheduler_terms WHERE ended_at IS NULL`),
		"terms without an end")
	require.Equal(f.t, "0", f.sql(`SELECT count(*) FROM scheduler_runs
		WHERE status = 'in_progress'`), "runs without an end")
}
