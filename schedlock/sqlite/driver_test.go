package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What an app reads from the pool of a store is what it would read through the
// driver of github.com/ncruces/go-sqlite3.
func TestOurDriverAnswersAsThatOfTheModule(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	theirs := appPool(t, "file:"+s.Path()+"?_txlock=immediate&_pragma=busy_timeout(500)")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	_, err := s.DB().ExecContext(bg, `
		CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, f REAL, x TEXT, b BLOB, ok BOOLEAN,
			at DATETIME, free);
		CREATE INDEX i ON t (n)`)
	require.NoError(t, err)
	values := [][]any{
		{int64(1), 1.5, "text", []byte("blob"), true, at, nil},
		{nil, nil, nil, nil, nil, nil, "2026-01-02T03:04:05Z"},
		{-1, 2.0, "2026-01-02T03:04:05Z", []byte{}, false, "2026-01-02 03:04:05",
			"2026-01-02T03:04:05+00:00"},
		{7, 0.1, "", []byte{0}, 7, 1.7e9, at.In(time.FixedZone("", 3600))},
	}
	for _, db := range []*sql.DB{s.DB(), theirs} {
		for _, row := range values {
			res, err := db.ExecContext(bg,
				`INSERT INTO t (n, f, x, b, ok, at, free) VALUES (?, ?, ?, ?, ?, ?, ?)`, row...)
			require.NoError(t, err)
			n, err := res.RowsAffected()
			require.NoError(t, err)
			assert.EqualValues(t, 1, n)
			id, err := res.LastInsertId()
			require.NoError(t, err)
			assert.Positive(t, id)
		}
	}
	read := func(db *sql.DB, query string, args ...any) (all [][]any) {
		rows, err := db.QueryContext(bg, query, args...)
		require.NoError(t, err)
		defer rows.Close()
		columns, err := rows.ColumnTypes()
		require.NoError(t, err)
		for rows.Next() {
			row, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range row {
				dest[i] = &row[i]
			}
			require.NoError(t, rows.Scan(dest...))
			all = append(all, row)
		}
		require.NoError(t, rows.Err())
		names := []any{}
		for _, c := range columns {
			names = append(names, c.Name(), c.DatabaseTypeName())
		}
		return append(all, names)
	}
	for _, query := range []string{
		`SELECT * FROM t ORDER BY id`,
		`SELECT typeof(n), typeof(f), typeof(x), typeof(b), typeof(ok), typeof(at), typeof(free)
			FROM t ORDER BY id`,
		`SELECT n + 1, f * 2, x || '', max(at), max(ok)
			FROM t GROUP BY id ORDER BY id; -- a comment`,
	} {
		assert.Equal(t, read(theirs, query), read(s.DB(), query), query)
	}
	named := []any{sql.Named("id", 1), sql.Named("n", 1)}
	assert.Equal(t, read(theirs, `SELECT x FROM t WHERE id = :id AND n = @n`, named...),
		read(s.DB(), `SELECT x FROM t WHERE id = :id AND n = @n`, named...))
}

func TestOurDriverKeepsToTransactionsAndContexts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	db := s.DB()
	_, err := db.ExecContext(bg, `CREATE TABLE t (n INTEGER)`)
	require.NoError(t, err)

	tx, err := db.BeginTx(bg, &sql.TxOptions{ReadOnly: true})
	require.NoError(t, err)
	_, err = tx.ExecContext(bg, `INSERT INTO t VALUES (1)`)
	require.ErrorIs(t, err, sqlite3.READONLY)
	require.NoError(t, tx.Rollback())

	tx = begin(t, db)
	// Two transactions of the pool do not fail each other at their first write.
	_, err = foreign(t, s).ExecContext(bg, `BEGIN IMMEDIATE`)
	require.ErrorIs(t, err, sqlite3.BUSY, "a transaction is immediate")
	_, err = tx.ExecContext(bg, `INSERT INTO t VALUES (?)`, 1)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())

	const forever = `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)
		SELECT count(*) FROM c`
	var n int
	require.Error(t, db.QueryRowContext(lasting(t, 50*time.Millisecond), forever).Scan(&n))
	assert.Equal(t, 1, ask[int](t, db, `SELECT count(*) FROM t`))

	_, err = db.QueryContext(bg, `SELECT 1; SELECT 2`)
	require.ErrorContains(t, err, "one statement")
	_, err = db.BeginTx(bg, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.ErrorContains(t, err, "isolation level Read Committed")
	_, err = db.ExecContext(bg, `INSERT INTO t VALUES (?, ?)`, 1)
	require.Error(t, err)
	require.NotNil(t, db.Driver())
}

// SQLite ends one by itself after some errors, such as those of the disk.
func TestATransactionThatHasEndedAlreadyLeavesNoConnectionReadOnly(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sql.Tx) error{
		"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.DB().SetMaxOpenConns(2) // the store has one of them
			tx, err := s.DB().BeginTx(bg, &sql.TxOptions{ReadOnly: true})
			require.NoError(t, err)
			_, err = tx.ExecContext(bg, `ROLLBACK`)
			require.NoError(t, err)
			require.ErrorContains(t, end(tx), "no transaction is active")
			_, err = s.DB().ExecContext(bg, `CREATE TABLE t (n INTEGER)`)
			require.NoError(t, err)
		})
	}
}

// anotherDriver hides whose driver it is.
type anotherDriver struct{ sqldriver.Connector }

func (a anotherDriver) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := a.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	type plain interface {
		sqldriver.Conn
		sqldriver.ConnPrepareContext
		sqldriver.ConnBeginTx
		sqldriver.ExecerContext
	}
	return struct{ plain }{conn.(plain)}, nil
}

func TestAnotherDriverDoesToo(t *testing.T) {
	t.Parallel()
	connector, err := new(sqlite3driver.SQLite).OpenConnector("file:" + newStore(t).Path() +
		"?_txlock=immediate")
	require.NoError(t, err)
	db := sql.OpenDB(anotherDriver{connector})
	t.Cleanup(func() { db.Close() })
	s := storeOn(t, db)
	require.Nil(t, look(t, s).Newest, "without a history")
	ref := acquire(t, s)
	assert.Equal(t, ref, look(t, s).Row.Ref)
	beat(t, s, ref)
	release(t, s, ref)
	assert.Equal(t, ref.Term, look(t, s).Newest.Term)
	assert.Empty(t, s.rows, "the test sees the other way")
}

// As after somebody has emptied the history by hand.
func TestARowWithoutAHistoryIsRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	run(t, foreign(t, s), `DELETE FROM scheduler_terms`)
	v := look(t, s)
	require.NotNil(t, v.Row)
	assert.Equal(t, ref, v.Row.Ref)
	assert.Nil(t, v.Newest)
	assert.NotEmpty(t, s.rows, "read as fast as can be")
}
