package main_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/mysql"
)

// A mysqlLimit is one round trip with a prepared statement on the row of a table of the same shape,
// on a connection of its own, whatever the store does.
type mysqlLimit struct {
	b                 *testing.B
	update, selectOne *sql.Stmt
}

const (
	sqlFullHistoryOfMySQL = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms, server)
SELECT seq, md5(seq), 4711, 'a-host-name-of-a-usual-length', utc_timestamp(6), utc_timestamp(6),
    'released', seq + 1, 60000, 'another 1'
FROM seq_1_to_1000`

	sqlLimitUpdateOfMySQL = `
UPDATE limit_lock SET beat = beat + 1, heartbeat_at = utc_timestamp(6) WHERE id = 1`

	// The columns that LockInfo shows.
	sqlLimitInfoOfMySQL = `
SELECT pid, hostname, created_at, heartbeat_at, token, term, beat, state,
       ttl_ms, renew_deadline_ms, heartbeat_ms
FROM limit_lock WHERE id = 1`
)

func newMySQL(b *testing.B, _ bool) (*side, limit) { return startMySQL(b) }

// With a binlog, which is flushed, too, that is for information: it has no target.
func newMySQLBinlog(b *testing.B, _ bool) (*side, limit) {
	return startMySQL(b, "--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1",
		"--server-id=1")
}

func startMySQL(b *testing.B, settings ...string) (*side, limit) {
	server := mytest.Durable(b, settings...)
	url := server.Database(b)
	store, err := mysql.Opener(url, mysql.WithLogger(quiet)).Open(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	s := &side{b: b, store: store}
	db := server.Open(b, url)
	exec := func(query string) {
		_, err := db.ExecContext(b.Context(), query)
		require.NoError(b, err, query)
	}
	exec(sqlFullHistoryOfMySQL)
	require.NoError(b, s.look())
	require.NoError(b, s.claim(true)) // the history is of another server
	exec(`CREATE TABLE limit_lock LIKE scheduler_lock`)
	exec(`INSERT INTO limit_lock SELECT * FROM scheduler_lock`)
	conn, err := db.Conn(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	l := &mysqlLimit{b: b}
	for query, stmt := range map[string]**sql.Stmt{sqlLimitUpdateOfMySQL: &l.update,
		sqlLimitInfoOfMySQL: &l.selectOne} {
		*stmt, err = conn.PrepareContext(context.Background(), query)
		require.NoError(b, err)
	}
	return s, l
}

func (l *mysqlLimit) acquire() error { return l.heartbeat() }
func (l *mysqlLimit) release() error { return l.heartbeat() }

func (l *mysqlLimit) heartbeat() error {
	_, err := l.update.ExecContext(l.b.Context())
	return err
}

func (l *mysqlLimit) info() error {
	return scanInfo[string](l.selectOne.QueryRowContext(l.b.Context()))
}
