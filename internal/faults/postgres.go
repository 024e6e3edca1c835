//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
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

	db *sql.DB // the harness' own
	tables
}

var _ server = (*postgresServer)(nil)

const (
	pgDatabase = "postgres" // each server has it: to make another takes long
	pgRole     = "app"

	// pgSmallDisk is what a server needs, and little more.
	pgSmallDisk = 160 << 20

	pgConnections = 40
)

const sqlMakePostgres = `
CREATE SCHEMA faults;
CREATE TABLE faults_writes (
    -- grows in the order of the terms: drawn behind the fence
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL, -- of a named lock; '': of a run
    term bigint NOT NULL,
    job  text NOT NULL,
    tick bigint NOT NULL
)`

// sqlSetClock sets the server's clock so many seconds ahead: this schema comes first in the search
// path. The planner puts the body of such a function in the place of each call.
const sqlSetClock = `
CREATE OR REPLACE FUNCTION faults.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + interval ''%d s'''`

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
	settings := []string{fmt.Sprintf("max_connections=%d", pgConnections), "min_wal_size=32MB",
		"max_wal_size=48MB"}
	if small { // the full disk is to be met by what writes, and not by shared memory
		settings = append(settings, "dynamic_shared_memory_type=posix")
	}
	s.server = pgtest.Start(t, settings...)
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
	s.db = s.open(s.server)
	s.dialect, s.task = postgresDialect, s.use
	admin := s.open(s.server)
	defer admin.Close()
	if err := execOn(ctx, admin, `CREATE ROLE `+pgRole+` LOGIN`,
		`ALTER DATABASE `+pgDatabase+` OWNER TO `+pgRole,
		`ALTER DATABASE `+pgDatabase+` SET search_path = faults, public, pg_catalog`); err != nil {
		return err
	}
	// On a session of its own, which has that path.
	if err := execOn(ctx, s.db, `SET ROLE `+pgRole, sqlMakePostgres, `RESET ROLE`); err != nil {
		return err
	}
	if err := s.setClock(ctx, 0); err != nil {
		return err
	}
	if pooler {
		s.bouncer = pgtest.PgBouncer(s.t, s.server)
	}
	for range slots {
		p, err := servertest.ListenWire(s.tunnelEnd(len(s.proxies)), s.target())
		if err != nil {
			return errors.Join(err, s.Close())
		}
		s.proxies = append(s.proxies, p)
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

func (s *postgresServer) Settings(p *Settings) {
	query := url.Values{"sslmode": {"disable"}, "application_name": {p.Name}}
	if s.bouncer != nil {
		query.Set("default_query_exec_mode", "exec")
	}
	host := s.proxies[p.Slot].Address
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
	if s.data == "" {
		return nil
	}
	s.server.Stop(s.t, "immediate")
	return unix.Unmount(s.data, unix.MNT_DETACH)
}

func (s *postgresServer) halt(hard bool) {
	mode := "fast"
	if hard {
		mode = "immediate"
	}
	s.server.Stop(s.t, mode)
}

// ended implements server. The postmaster of a server whose disk is full may go on.
func (s *postgresServer) ended() bool { return false }

func (s *postgresServer) start() { s.server.StartAgain(s.t) }

func (s *postgresServer) setClock(ctx context.Context, ahead time.Duration) error {
	return s.exec(ctx, fmt.Sprintf(sqlSetClock, int64(ahead/time.Second)))
}

func (s *postgresServer) smallDisk() (string, time.Duration) { return s.data, 3 * time.Second }

func (s *postgresServer) write(ctx context.Context) error {
	return s.exec(ctx, `DELETE FROM faults_writes WHERE false`, `SELECT pg_switch_wal()`)
}

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

// open opens the database for the harness itself, as the superuser.
func (s *postgresServer) open(server *pgtest.Server) *sql.DB {
	config, err := pgx.ParseConfig(server.URL(pgDatabase))
	if err != nil {
		panic(err) // pgtest made it
	}
	config.ConnectTimeout = time.Minute // use has a limit of its own; a set-up needs none
	always := func(context.Context, stdlib.ShouldPingParams) bool { return true }
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(always)) // the server may be another now
	// With all of the server's connections taken, only three more are left for a superuser.
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	s.t.Cleanup(func() { db.Close() })
	return db
}

// use does one task.
func (s *postgresServer) use(ctx context.Context,
	do func(context.Context, *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return withConn(ctx, s.db, do)
}

// Block implements Database: a session of the harness has locked all tables
// that the lock writes.
func (s *postgresServer) Block(ctx context.Context) (unblock func(), err error) {
	return block(ctx, s.db, `ROLLBACK`, `SET lock_timeout = '5s'`, `BEGIN`,
		`LOCK TABLE scheduler_lock, scheduler_terms, scheduler_jobs, scheduler_runs,
			scheduler_attempts, scheduler_requests, scheduler_pauses, scheduler_audit
			IN EXCLUSIVE MODE`)
}

// Blocked implements Database: somebody has the row locked.
func (s *postgresServer) Blocked(ctx context.Context) bool {
	return pgCode(s.exec(ctx, `BEGIN`, `SELECT 1 FROM scheduler_lock FOR UPDATE NOWAIT`,
		`ROLLBACK`)) == "55P03" // lock_not_available
}
