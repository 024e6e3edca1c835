//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/tempserver"
)

// pgReplica is a streaming replica.
type pgReplica struct {
	of  *postgresServer
	now *pgtest.Server
	db  *sql.DB
}

func (s *postgresServer) follow(ctx context.Context) (replica, error) {
	if s.bouncer != nil || s.data != "" {
		return nil, fmt.Errorf("%w: a pooler leads to one server only, "+
			"and a small disk is one server's", errCannotInject)
	}
	now := s.server.Standby(s.t)
	r := pgReplica{s, now, s.open(now)}
	return r, r.caughtUp(ctx)
}

func (r pgReplica) caughtUp(ctx context.Context) error {
	var lsn string
	if err := r.of.db.QueryRowContext(ctx,
		`SELECT pg_current_wal_lsn()::text`).Scan(&lsn); err != nil {
		return err
	}
	var there bool
	if !await(ctx, tempserver.Patience, func() bool {
		err := r.db.QueryRowContext(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`,
			lsn).Scan(&there)
		return err == nil && there
	}) {
		return errors.New("the replica does not catch up")
	}
	return nil
}

func (r pgReplica) detach(ctx context.Context) error {
	if err := execOn(ctx, r.db, `ALTER SYSTEM SET primary_conninfo = ''`,
		`SELECT pg_reload_conf()`); err != nil {
		return err
	}
	var n int
	if !await(ctx, tempserver.Patience, func() bool {
		err := r.of.db.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_replication`).Scan(&n)
		return err == nil && n == 0
	}) {
		return errors.New("the replica goes on streaming")
	}
	return nil
}

func (s *postgresServer) failOver(r replica) {
	old := s.server
	old.KillPostmaster(s.t)
	s.server, s.db = r.(pgReplica).now, r.(pgReplica).db
	s.server.Promote(s.t)
	for _, p := range s.proxies {
		p.LeadTo(s.target())
		p.End()
	}
	_ = os.RemoveAll(filepath.Join(old.Dir(), "data", "base")) // a soak makes many
}
