//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/internal/pgtest"
)

// follow makes a streaming replica that has caught up.
func (c *Cluster) follow(ctx context.Context, s *postgresServer) (*pgtest.Server, error) {
	if s.bouncer != nil || s.data != "" {
		return nil, fmt.Errorf("%w: a pooler leads to one server only, "+
			"and a small disk is one server's", errCannotInject)
	}
	replica := s.server.Standby(s.t)
	return replica, c.caughtUp(ctx, s, replica)
}

// caughtUp waits until the replica has replayed what the server has now.
func (c *Cluster) caughtUp(ctx context.Context, s *postgresServer, replica *pgtest.Server) error {
	var lsn string
	if err := s.use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&lsn)
	}); err != nil {
		return err
	}
	return connected(ctx, replica.URL(pgDatabase), func(conn *pgx.Conn) error {
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

// detach ends the stream to the replica. What is committed from now on is lost.
func (c *Cluster) detach(ctx context.Context, s *postgresServer, replica *pgtest.Server) error {
	err := connected(ctx, replica.URL(pgDatabase), func(conn *pgx.Conn) error {
		return execAll(ctx, conn, `ALTER SYSTEM SET primary_conninfo = ''`,
			`SELECT pg_reload_conf()`)
	})
	if err != nil {
		return err
	}
	return s.use(ctx, func(conn *pgx.Conn) error {
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

// failOver kills the primary, promotes the replica, and leads everybody to it.
func (s *postgresServer) failOver(replica *pgtest.Server) {
	old := s.server
	old.KillPostmaster(s.t)
	replica.Promote(s.t)
	s.server = replica
	for _, p := range s.proxies {
		p.point(s.target())
	}
	_ = os.RemoveAll(filepath.Join(old.Dir(), "data", "base")) // a soak makes many
}

// PromoteLosingBeats: the primary dies, and a replica that misses its last
// heartbeats and runs is promoted. The leader may stay. Bound: TTL + 2 s.
func PromoteLosingBeats(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	replica, err := c.follow(ctx, s)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := c.detach(ctx, s, replica); err != nil {
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
	s, err := c.postgres()
	if err != nil {
		return err
	}
	replica, err := c.follow(ctx, s)
	if err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := c.detach(ctx, s, replica); err != nil {
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
