//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
)

// A replicated server can be followed by a replica, which takes its place at a fail-over.
type replicated interface {
	server

	// follow makes a replica, and waits until it has all that the server has.
	follow(ctx context.Context, c *Cluster) (replica, error)

	// failOver kills the server, promotes the replica, and leads everybody to it.
	failOver(replica)
}

// A replica follows a server.
type replica interface {
	// caughtUp waits until the replica has all that the server has now.
	caughtUp(ctx context.Context, c *Cluster) error

	// detach ends the stream to the replica. What is committed from now on is lost.
	detach(ctx context.Context, c *Cluster) error
}

// followed returns the server under test and a replica of it; errCannotInject if it can have
// none.
func (c *Cluster) followed(ctx context.Context) (replicated, replica, error) {
	s, ok := c.db.(replicated)
	if !ok {
		return nil, nil, fmt.Errorf("%w: the database has no replica", errCannotInject)
	}
	r, err := s.follow(ctx, c)
	return s, r, err
}

// pgReplica is a streaming replica.
type pgReplica struct {
	of  *postgresServer
	now *pgtest.Server
}

// follow implements replicated.
func (s *postgresServer) follow(ctx context.Context, c *Cluster) (replica, error) {
	if s.bouncer != nil || s.data != "" {
		return nil, fmt.Errorf("%w: a pooler leads to one server only, "+
			"and a small disk is one server's", errCannotInject)
	}
	r := pgReplica{s, s.server.Standby(s.t)}
	return r, r.caughtUp(ctx, c)
}

func (r pgReplica) caughtUp(ctx context.Context, c *Cluster) error {
	var lsn string
	if err := r.of.use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&lsn)
	}); err != nil {
		return err
	}
	return connected(ctx, r.now.URL(pgDatabase), func(conn *pgx.Conn) error {
		var there bool
		if !c.await(ctx, 20*time.Second, func() bool {
			err := conn.QueryRow(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`,
				lsn).Scan(&there)
			return err == nil && there
		}) {
			return errors.New("the replica does not catch up")
		}
		return nil
	})
}

func (r pgReplica) detach(ctx context.Context, c *Cluster) error {
	err := connected(ctx, r.now.URL(pgDatabase), func(conn *pgx.Conn) error {
		return execAll(ctx, conn, `ALTER SYSTEM SET primary_conninfo = ''`,
			`SELECT pg_reload_conf()`)
	})
	if err != nil {
		return err
	}
	return r.of.use(ctx, func(conn *pgx.Conn) error {
		var n int
		if !c.await(ctx, 20*time.Second, func() bool {
			err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_replication`).Scan(&n)
			return err == nil && n == 0
		}) {
			return errors.New("the replica goes on streaming")
		}
		return nil
	})
}

// failOver implements replicated.
func (s *postgresServer) failOver(r replica) {
	old := s.server
	old.KillPostmaster(s.t)
	s.server = r.(pgReplica).now
	s.server.Promote(s.t)
	for _, p := range s.proxies {
		p.point(s.target())
	}
	_ = os.RemoveAll(filepath.Join(old.Dir(), "data", "base")) // a soak makes many
}

// myReplica is an asynchronous replica.
type myReplica struct {
	of  *mysqlServer
	now *mytest.Server
	db  *sql.DB
}

// follow implements replicated. A replica begins with the first statement of the server.
func (s *mysqlServer) follow(ctx context.Context, c *Cluster) (replica, error) {
	if s.galera() || s.small != "" {
		return nil, fmt.Errorf("%w: nodes have no replica, and a small disk is one server's",
			errCannotInject)
	}
	now := s.nodes[0].Replica(s.t, connectionsOption)
	r := myReplica{s, now, s.admin(now)}
	return r, r.caughtUp(ctx, c)
}

func (r myReplica) caughtUp(ctx context.Context, _ *Cluster) error {
	var position string
	if err := r.of.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, `SELECT @@gtid_binlog_pos`).Scan(&position)
	}); err != nil {
		return err
	}
	var missed int
	err := r.db.QueryRowContext(ctx, `SELECT master_gtid_wait(?, 20)`, position).Scan(&missed)
	if err == nil && missed != 0 {
		err = errors.New("the replica does not catch up")
	}
	return err
}

func (r myReplica) detach(ctx context.Context, _ *Cluster) error {
	_, err := r.db.ExecContext(ctx, `STOP SLAVE`)
	return err
}

// failOver implements replicated.
func (s *mysqlServer) failOver(to replica) {
	old, r := s.nodes[0], to.(myReplica)
	old.Kill(s.t)
	r.now.Promote(s.t)
	s.nodes[0], s.dbs[0] = r.now, r.db
	for _, p := range s.proxies {
		p.point(r.now.Address())
	}
	_ = os.RemoveAll(old.Data()) // a soak makes many
}

// PromoteLosingBeats: the primary dies, and a replica that misses its last
// heartbeats and runs is promoted. The leader may stay. Bound: TTL + 2 s.
func PromoteLosingBeats(ctx context.Context, c *Cluster, in *Injection) error {
	s, replica, err := c.followed(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := replica.detach(ctx, c); err != nil {
		return err
	}
	c.sleep(ctx, 3*c.Heartbeat)
	s.failOver(replica)
	// a run may start a moment after its decision
	c.promoted(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	return nil
}

// PromoteLosingTerm: the leader is killed after the replica has lost the
// stream; another leads, of whom the replica knows nothing when it is
// promoted. That one must step down, and the next term be higher. Bound: TTL +
// 2 s.
func PromoteLosingTerm(ctx context.Context, c *Cluster, in *Injection) error {
	s, replica, err := c.followed(ctx)
	if err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := replica.detach(ctx, c); err != nil {
		return err
	}
	p.kill()
	next, lost, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	c.sleep(ctx, 2*c.Heartbeat)
	s.failOver(replica)
	c.promoted(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	if !c.await(ctx, c.TTL, func() bool {
		b, leads := next.leads()
		return !leads || b.Term != lost.Term
	}) {
		in.note("%s still leads a TTL after its acquisition was lost", next.name)
	}
	return nil
}
