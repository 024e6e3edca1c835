//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/pgtest"
)

// postgresServer is a PostgreSQL server under test, with one database. Every
// slot of the cluster comes to it through a proxy of its own, and with a role
// that is no superuser.
type postgresServer struct {
	t           testing.TB
	server      *pgtest.Server  // a promoted replica takes its place
	bouncer     *pgtest.Bouncer // nil: there is none
	wire                        // by slot
	appPool     bool
	data        string          // a small tmpfs, made by us; "" if it is none
	tunnel      string          // folder of the tunnels' ends; "": the proxies are no tunnels
	patroni     *pgtest.Patroni // nil: one server
	synchronous bool            // a commit waits for one of its standbys

	spare atomic.Pointer[pgx.Conn] // between two tasks of the harness; nil: there is none

	forgotten
}

var _ server = (*postgresServer)(nil)

const (
	pgDatabase = "app"
	pgRole     = "app"

	// pgSmallDisk is what a server needs, and little more.
	pgSmallDisk = 160 << 20

	pgConnections = 40
)

// sqlMakePostgres: clock_timestamp() of this schema comes first, so that the
// server's clock can be stepped.
const sqlMakePostgres = `
CREATE SCHEMA faults;
CREATE TABLE faults.clock (step interval NOT NULL);
INSERT INTO faults.clock VALUES ('0');
CREATE FUNCTION faults.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + (SELECT step FROM faults.clock)';
CREATE TABLE faults_writes (
    -- grows in the order of the terms: drawn behind the fence
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    term bigint NOT NULL,
    job  text NOT NULL,
    tick bigint NOT NULL
);
CREATE TABLE faults_locks (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- likewise
    name text NOT NULL,
    term bigint NOT NULL
)`

// newPostgres starts a server. With small its data lie on a file system small
// enough to be filled; errCannotInject if this process may not mount one. With
// tunnel the proxies are tunnels, which nobody vouches for, see serveTunnel;
// errCannotInject if this process may not make a network.
func newPostgres(t testing.TB, slots int, appPool, pooler, small,
	tunnel bool) (*postgresServer, error) {
	s := &postgresServer{t: t, appPool: appPool}
	if tunnel {
		if err := mayTunnel(); err != nil {
			return nil, fmt.Errorf("%w: a network of its own for each process: %w",
				errCannotInject, err)
		}
		s.tunnel = t.TempDir()
	}
	s.server = pgtest.Start(t, fmt.Sprintf("max_connections=%d", pgConnections),
		"min_wal_size=32MB", "max_wal_size=48MB")
	if small {
		s.server.Stop(t, "fast")
		data := filepath.Join(s.server.Dir(), "data")
		if err := shrink(data, pgSmallDisk); err != nil {
			return nil, err
		}
		s.data = data
		s.server.StartAgain(t)
	}
	return s, s.prepare(slots, pooler)
}

// newPatroni starts three servers, of which Patroni makes one the primary.
func newPatroni(t testing.TB, slots int, synchronous bool) (*postgresServer, error) {
	p := pgtest.StartPatroni(t, synchronous)
	s := &postgresServer{t: t, patroni: p, synchronous: synchronous,
		server: p.Server()}
	return s, s.prepare(slots, false)
}

// prepare makes the database, and the proxies.
func (s *postgresServer) prepare(slots int, pooler bool) error {
	ctx := s.t.Context()
	err := s.admin(ctx, "postgres", func(conn *pgx.Conn) error {
		return execAll(ctx, conn, `CREATE ROLE `+pgRole+` LOGIN`,
			`CREATE DATABASE `+pgDatabase+` OWNER `+pgRole,
			`ALTER DATABASE `+pgDatabase+` SET search_path = faults, public, pg_catalog`)
	})
	if err == nil {
		err = s.admin(ctx, pgDatabase, func(conn *pgx.Conn) error {
			return execAll(ctx, conn, `GRANT CREATE ON DATABASE `+pgDatabase+` TO `+pgRole,
				`SET ROLE `+pgRole, sqlMakePostgres)
		})
	}
	if err != nil {
		return err
	}
	if pooler {
		s.bouncer = pgtest.PgBouncer(s.t, s.server)
	}
	for range slots {
		p, err := newProxy(s.tunnelEnd(len(s.proxies)), s.target())
		if err != nil {
			return errors.Join(err, s.Close())
		}
		s.proxies = append(s.proxies, p)
	}
	return nil
}

func execAll(ctx context.Context, conn *pgx.Conn, queries ...string) error {
	for _, query := range queries {
		if _, err := conn.Exec(ctx, query); err != nil {
			return fmt.Errorf("%.60s: %w", query, err)
		}
	}
	return nil
}

// target is where the proxies lead to.
func (s *postgresServer) target() string {
	address := s.server.URL(pgDatabase)
	if s.bouncer != nil {
		address = s.bouncer.URL(pgDatabase)
	}
	u, err := url.Parse(address)
	if err != nil {
		panic(err) // pgtest made it
	}
	return u.Host
}

// Settings implements Database.
func (s *postgresServer) Settings(p *Settings) {
	query := url.Values{"sslmode": {"disable"}, "application_name": {p.Name}}
	if s.bouncer != nil {
		query.Set("default_query_exec_mode", "exec")
	}
	host := s.proxies[p.Slot].addr()
	if p.Tunnel = s.tunnelEnd(p.Slot); p.Tunnel != "" {
		host = s.target()
	}
	u := url.URL{Scheme: "postgres", User: url.User(pgRole), Host: host, Path: "/" + pgDatabase,
		RawQuery: query.Encode()}
	p.Kind, p.DSN, p.AppPool = kindPostgres, u.String(), s.appPool
}

// Close implements Database. The server itself ends with the test.
func (s *postgresServer) Close() error {
	s.wire.close()
	if conn := s.spare.Swap(nil); conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	}
	if s.data == "" {
		return nil
	}
	s.server.Stop(s.t, "immediate")
	return unix.Unmount(s.data, unix.MNT_DETACH)
}

// halt implements server.
func (s *postgresServer) halt(hard bool) {
	mode := "fast"
	if hard {
		mode = "immediate"
	}
	s.server.Stop(s.t, mode)
}

// ended implements server. The postmaster of a server whose disk is full may go on.
func (s *postgresServer) ended() bool { return false }

// start implements server.
func (s *postgresServer) start() { s.server.StartAgain(s.t) }

// setClock implements server.
func (s *postgresServer) setClock(ctx context.Context, ahead time.Duration) error {
	return s.exec(ctx, fmt.Sprintf(`UPDATE faults.clock SET step = '%d s'`,
		int64(ahead/time.Second)))
}

// smallDisk implements server.
func (s *postgresServer) smallDisk() (string, time.Duration) { return s.data, 3 * time.Second }

// write implements server.
func (s *postgresServer) write(ctx context.Context) error {
	return s.exec(ctx, `INSERT INTO faults.clock SELECT '0' WHERE false`, `SELECT pg_switch_wal()`)
}

// foreign implements server.
func (s *postgresServer) foreign(ctx context.Context) (end func(), err error) {
	config, err := pgx.ParseConfig(s.server.URL(pgDatabase))
	if err != nil {
		return nil, err
	}
	config.User = pgRole
	config.ConnectTimeout = time.Second
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return func() { conn.Close(context.WithoutCancel(ctx)) }, nil
}

func (s *postgresServer) pooled() bool { return s.bouncer != nil }

// wakes implements server, by LISTEN.
func (s *postgresServer) wakes() bool { return s.bouncer == nil }

// admin is a task of a superuser.
func (s *postgresServer) admin(ctx context.Context, database string,
	do func(*pgx.Conn) error) error {
	return connected(ctx, s.server.URL(database), do)
}

func connect(ctx context.Context, address string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = time.Minute // use has a limit of its own; a set-up needs none
	return pgx.ConnectConfig(ctx, config)
}

func connected(ctx context.Context, address string, do func(*pgx.Conn) error) error {
	conn, err := connect(ctx, address)
	if err != nil {
		return err
	}
	err = do(conn)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, conn.Close(closing))
}

// use does one task, over the connection of the task before if that still serves.
func (s *postgresServer) use(ctx context.Context, do func(*pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn := s.spare.Swap(nil)
	if conn != nil && (int(conn.Config().Port) != s.server.Port() || conn.Ping(ctx) != nil) {
		conn.Close(ctx)
		conn = nil
	}
	if conn == nil {
		var err error
		if conn, err = connect(ctx, s.server.URL(pgDatabase)); err != nil {
			return err
		}
	}
	err := do(conn)
	if conn.IsClosed() || conn.PgConn().TxStatus() != 'I' || !s.spare.CompareAndSwap(nil, conn) {
		conn.Close(ctx)
	}
	return err
}

func (s *postgresServer) exec(ctx context.Context, queries ...string) error {
	return s.use(ctx, func(conn *pgx.Conn) error { return execAll(ctx, conn, queries...) })
}

// Row implements Database.
func (s *postgresServer) Row(ctx context.Context) (row Row, ok bool, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx,
			`SELECT term, grace_ms IS NOT NULL FROM scheduler_lock`).Scan(&row.Term, &row.Session)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		ok = err == nil
		return err
	})
	return row, ok, err
}

// Proves implements Database: there is no kernel in common.
func (s *postgresServer) Proves(Row) bool { return false }

var postgresEdits = map[Edit]string{
	editDelete: `DELETE FROM scheduler_lock`,
	editToken:  `UPDATE scheduler_lock SET token = md5(random()::text)`,
	editTerm:   `UPDATE scheduler_lock SET term = term + 7`,
	editPID:    `UPDATE scheduler_lock SET pid = pid + 7`,
	editPast: `UPDATE scheduler_lock
		SET heartbeat_at = '2001-01-01T00:00:00Z', created_at = '2001-01-01T00:00:00Z'`,
	editFuture: `UPDATE scheduler_lock
		SET heartbeat_at = '2101-01-01T00:00:00Z', created_at = '2101-01-01T00:00:00Z'`,
	editTTL:    `UPDATE scheduler_lock SET ttl_ms = 1`,
	editRevoke: `UPDATE scheduler_lock SET state = 'revoked'`,
}

// Edit implements Database.
func (s *postgresServer) Edit(ctx context.Context, e Edit) error {
	if e != editJobs {
		return s.exec(ctx, postgresEdits[e])
	}
	return s.use(ctx, func(conn *pgx.Conn) error {
		// Whoever decides waits from here.
		if err := execAll(ctx, conn, `BEGIN`, `LOCK TABLE scheduler_jobs`); err != nil {
			return err
		}
		var anew Anew
		var err error
		if anew.Jobs, err = readJobRows(ctx, conn); err != nil {
			return err
		}
		if err := conn.QueryRow(ctx, sqlNewestRun).Scan(&anew.Newest); err != nil {
			return err
		}
		if err := execAll(ctx, conn, sqlForgetJobs, `COMMIT`); err != nil {
			return err
		}
		s.add(anew)
		return nil
	})
}

// Paused implements Database.
func (s *postgresServer) Paused(ctx context.Context) (paused bool, err error) {
	err = s.use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sqlPaused).Scan(&paused)
	})
	return paused, err
}

// Block implements Database: a session of the harness has locked all tables
// that the lock writes.
func (s *postgresServer) Block(ctx context.Context) (unblock func(), err error) {
	conn, err := pgx.Connect(ctx, s.server.URL(pgDatabase))
	if err != nil {
		return nil, err
	}
	unblock = func() { conn.Close(context.WithoutCancel(ctx)) }
	for {
		err := execAll(ctx, conn, `SET lock_timeout = '5s'`, `BEGIN`,
			`LOCK TABLE scheduler_lock, scheduler_terms, scheduler_jobs, scheduler_runs,
				scheduler_attempts, scheduler_requests, scheduler_pauses, scheduler_audit
				IN EXCLUSIVE MODE`)
		if err == nil {
			return unblock, nil
		}
		// The program locks its tables in another order: the server may end
		// either of the two.
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "40P01" {
			if err = execAll(ctx, conn, `ROLLBACK`); err == nil {
				continue
			}
		}
		unblock()
		return nil, err
	}
}

// Blocked implements Database: somebody has the row locked.
func (s *postgresServer) Blocked(ctx context.Context) bool {
	err := s.exec(ctx, `BEGIN`, `SELECT 1 FROM scheduler_lock FOR UPDATE NOWAIT`, `ROLLBACK`)
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "55P03" // lock_not_available
}
