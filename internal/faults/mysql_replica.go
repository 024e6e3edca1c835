//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/tempserver"
)

// myReplica is an asynchronous replica.
type myReplica struct {
	of  *mysqlServer
	now *mytest.Server
	db  *sql.DB
}

// follow implements replicated. A replica begins with the first statement of the server.
func (s *mysqlServer) follow(ctx context.Context) (replica, error) {
	if s.galera() || s.small != "" {
		return nil, fmt.Errorf("%w: nodes have no replica, and a small disk is one server's",
			errCannotInject)
	}
	now := s.nodes[0].Replica(s.t, connectionsOption)
	r := myReplica{s, now, s.admin(now)}
	return r, r.caughtUp(ctx)
}

// caughtUp waits for long: the replica repeats all that its server has ever done.
func (r myReplica) caughtUp(ctx context.Context) error {
	var position string
	if err := r.of.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, `SELECT @@gtid_binlog_pos`).Scan(&position)
	}); err != nil {
		return err
	}
	var missed int
	err := r.db.QueryRowContext(ctx, `SELECT master_gtid_wait(?, ?)`, position,
		tempserver.Patience.Seconds()).Scan(&missed)
	if err == nil && missed != 0 {
		err = fmt.Errorf("the replica does not catch up with %s: %s", position,
			r.now.Log())
	}
	return err
}

func (r myReplica) detach(ctx context.Context) error {
	_, err := r.db.ExecContext(ctx, `STOP SLAVE`)
	return err
}

func (s *mysqlServer) failOver(to replica) {
	old := s.nodes[0]
	old.Kill(s.t)
	s.promote(to.(myReplica), nil)
	_ = os.RemoveAll(old.Data()) // a soak makes many
}

// promote leads everybody to the replica, but who comes through one of the proxies.
func (s *mysqlServer) promote(r myReplica, but *proxy) {
	r.now.Promote(s.t)
	s.nodes[0], s.dbs[0] = r.now, r.db
	for _, p := range s.proxies {
		if p != but {
			p.LeadTo(r.now.Address())
			p.End()
		}
	}
}
