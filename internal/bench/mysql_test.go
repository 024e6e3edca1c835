package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

// With a binlog, which is flushed, too, that is for information: it has no target.
func init() {
	for name, settings := range map[string][]string{"mysql": nil,
		"mysql-binlog": {"--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1",
			"--server-id=1"}} {
		acquireOn[name] = func(b *testing.B) { mysqlAcquire(newMySQL(b, settings)) }
		acquireOn[name+"-take-over"] = func(b *testing.B) { mysqlTakeOver(newMySQL(b, settings)) }
		acquireOn[name+"-refused"] = func(b *testing.B) { mysqlRefused(newMySQL(b, settings)) }
		heartbeatOn[name] = func(b *testing.B) { mysqlHeartbeat(newMySQL(b, settings)) }
		releaseOn[name] = func(b *testing.B) { mysqlRelease(newMySQL(b, settings)) }
		lockInfoOn[name] = func(b *testing.B) { mysqlLockInfo(newMySQL(b, settings)) }
	}
}

// A mysqlSide is the store on one database, beside the limit: one round trip with a
// prepared statement on the row of a table of the same shape, on a connection of its own.
type mysqlSide struct {
	side
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

// newMySQL has the lock.
func newMySQL(b *testing.B, settings []string) *mysqlSide {
	server := mytest.Durable(b, settings...)
	url := server.Database(b)
	opened, err := mysql.Opener(url, mysql.WithLogger(quiet))(b.Context())
	require.NoError(b, err)
	store := opened.(*mysql.Store)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	s := &mysqlSide{side: side{b: b, store: store}}
	db := server.Open(b, url)
	exec := func(query string) {
		_, err := db.ExecContext(b.Context(), query)
		require.NoError(b, err, query)
	}
	exec(sqlFullHistoryOfMySQL)
	require.NoError(b, s.look())
	require.NoError(b, s.takeOver())
	exec(`CREATE TABLE limit_lock LIKE scheduler_lock`)
	exec(`INSERT INTO limit_lock SELECT * FROM scheduler_lock`)
	conn, err := db.Conn(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	for query, stmt := range map[string]**sql.Stmt{sqlLimitUpdateOfMySQL: &s.update,
		sqlLimitInfoOfMySQL: &s.selectOne} {
		*stmt, err = conn.PrepareContext(context.Background(), query)
		require.NoError(b, err)
	}
	return s
}

func (s *mysqlSide) limit() error {
	_, err := s.update.ExecContext(s.b.Context())
	return err
}

// An acquisition of a lock that was released.
func mysqlAcquire(s *mysqlSide) {
	compareAfter(s.b, func() error { return errors.Join(s.release(), s.look()) },
		s.acquire, s.limit)
}

// An acquisition that ends a holder who was judged dead.
func mysqlTakeOver(s *mysqlSide) { compareAfter(s.b, s.look, s.takeOver, s.limit) }

// A claim that comes too late: it writes nothing.
func mysqlRefused(s *mysqlSide) {
	require.NoError(s.b, s.look())
	require.NoError(s.b, s.takeOver())
	compare(s.b, func() error {
		if err := s.takeOver(); !errors.Is(err, driver.ErrConflict) {
			return fmt.Errorf("it is not refused: %w", err)
		}
		return nil
	}, s.limit)
}

func mysqlRelease(s *mysqlSide) {
	require.NoError(s.b, s.release())
	compareAfter(s.b, func() error { return errors.Join(s.look(), s.acquire()) },
		s.release, s.limit)
}

func mysqlHeartbeat(s *mysqlSide) { compare(s.b, s.heartbeat, s.limit) }

// The limit is one round trip with a SELECT of one row by its key.
func mysqlLockInfo(s *mysqlSide) {
	compare(s.b, s.info, func() error {
		var (
			pid, term, beat, ttl, renew, interval int64
			hostname, token, state                string
			created, heartbeat                    string
		)
		return s.selectOne.QueryRowContext(s.b.Context()).
			Scan(&pid, &hostname, &created, &heartbeat, &token, &term, &beat, &state, &ttl, &renew,
				&interval)
	})
}
