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
