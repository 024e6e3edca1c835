package main_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

func openSQLite(b *testing.B, path string) *sqlite.Store {
	store, err := sqlite.Opener("file:" + path).Open(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	return store
}

func openPostgres(b *testing.B, url string) *postgres.Store {
	opened, err := postgres.Opener(url, postgres.WithLogger(quiet))(b.Context())
	require.NoError(b, err)
	store := opened.(*postgres.Store)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	return store
}

// connect opens a connection beside the store.
func connect(b *testing.B, url string) *pgx.Conn {
	conn, err := pgx.Connect(b.Context(), url)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.Background())) })
	return conn
}

// durable is a server that flushes what is committed: the default of pgtest does not.
func durable(b *testing.B) *pgtest.Server {
	return pgtest.Start(b, "fsync = on", "synchronous_commit = on", "shared_buffers = 128MB")
}

func onSQLite(b *testing.B, store *sqlite.Store) func(query, _ string) {
	return func(query, _ string) {
		_, err := store.DB().ExecContext(b.Context(), query)
		require.NoError(b, err)
	}
}

func onPostgres(b *testing.B, store *postgres.Store) func(_, query string) {
	return func(_, query string) {
		_, err := store.Pool().Exec(b.Context(), query)
		require.NoError(b, err)
	}
}

// onEach runs a benchmark on a new database of each kind.
func onEach(b *testing.B, f func(b *testing.B, store driver.Store)) {
	b.Run("sqlite", func(b *testing.B) {
		f(b, openSQLite(b, filepath.Join(b.TempDir(), "app.db")))
	})
	b.Run("postgres", func(b *testing.B) { f(b, openPostgres(b, durable(b).Database(b))) })
}

// prepared are the prepared statements of one connection to SQLite.
type prepared struct {
	b     *testing.B
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

func prepare(b *testing.B, store *sqlite.Store) *prepared {
	conn, err := store.DB().Conn(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	return &prepared{b, conn, map[string]*sql.Stmt{}}
}

func (p *prepared) stmt(query string) (stmt *sql.Stmt, err error) {
	if stmt = p.stmts[query]; stmt != nil {
		return stmt, nil
	}
	if stmt, err = p.conn.PrepareContext(p.b.Context(), query); err == nil {
		p.b.Cleanup(func() { stmt.Close() })
		p.stmts[query] = stmt
	}
	return stmt, err
}

func (p *prepared) exec(query string, args ...any) (changed int64, err error) {
	stmt, err := p.stmt(query)
	if err != nil {
		return 0, err
	}
	result, err := stmt.ExecContext(p.b.Context(), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// A side is the store on one database. Its history is full, as it is wherever the
// lock has been used for a while: each acquisition deletes the oldest term.
type side struct {
	b     *testing.B
	store driver.Store
	tidy  func() // with every hundredth look; nil: nothing is to be done
	view  driver.Snapshot
	ref   driver.Ref // in the lock row
	looks int
}

// look judges, and draws the token, for the next acquire.
func (s *side) look() (err error) {
	if s.looks++; s.looks%100 == 0 && s.tidy != nil {
		s.tidy()
	}
	s.ref = driver.Ref{Owner: driver.Owner{PID: 4711, Hostname: "a-host-name-of-a-usual-length"},
		Token: driver.NewToken()}
	s.view, err = s.store.Look(s.b.Context())
	return err
}

func (s *side) acquire() error { return s.claim(false) }

// claim may be one of a lock that was watched for its TTL.
func (s *side) claim(watched bool) error {
	grant, err := s.store.Acquire(s.b.Context(), driver.Claim{
		Ref: s.ref,
		Timing: driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
			HeartbeatInterval: 10 * time.Second},
		Expected: s.view,
		Reason:   driver.EndExpired,
		Watched:  watched,
	})
	s.ref.Term = grant.Term
	return err
}

func (s *side) heartbeat() error {
	_, err := s.store.Heartbeat(s.b.Context(), s.ref, driver.StateLeading)
	return err
}

func (s *side) release() error {
	deleted, err := s.store.Release(s.b.Context(), s.ref, driver.EndReleased)
	if err == nil && !deleted {
		err = fmt.Errorf("term %d was not in the lock row", s.ref.Term)
	}
	return err
}

func (s *side) info() error {
	info, err := schedlock.GetLockInfo(s.b.Context(), s.store)
	if err == nil && info == nil {
		err = errors.New("there is no row")
	}
	return err
}
