//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgres returns the server under test; errCannotInject if the database has
// none.
func (c *Cluster) postgres() (*postgresServer, error) {
	if s, ok := c.db.(*postgresServer); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: the database has no server", errCannotInject)
}

const sqlTerminate = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = '` + pgRole + `' AND ($1 = '' OR application_name = $1)`

// terminate implements server.
func (s *postgresServer) terminate(ctx context.Context, p *process) error {
	name := ""
	if p != nil {
		name = p.name
	}
	return s.use(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlTerminate, name)
		return err
	})
}

// KillPostmaster: kill -9 of the postmaster; its backends notice each in its
// time. Bound: TTL + 2 s after it was started again.
func KillPostmaster(_ context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	s.server.KillPostmaster(s.t)
	s.server.StartAgain(s.t)
	in.Bound = c.boundTTL()
	return nil
}

// RestartBouncer: the pooler is restarted, at once or after a TTL. Bound: TTL +
// 2 s. That a leader stays when it is fast is not asked: on a machine under load
// a new login through it can take longer than the renew deadline of this TTL.
func RestartBouncer(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	if s.bouncer == nil {
		return fmt.Errorf("%w: there is no pooler", errCannotInject)
	}
	in.Bound = c.boundTTL()
	if c.random.IntN(2) == 0 {
		s.bouncer.Restart(s.t)
		return nil
	}
	s.bouncer.Stop(s.t)
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.bouncer.StartAgain(s.t)
	return nil
}

var postgresTables = []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs",
	"scheduler_runs", "scheduler_attempts", "scheduler_requests", "scheduler_pauses",
	"scheduler_audit",
	"faults_writes"}

// RestoreTables: all tables are put back to an earlier state, while the leader
// of then or another leads. Bound: TTL + 2 s.
func RestoreTables(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	backup := []string{`BEGIN ISOLATION LEVEL REPEATABLE READ`}
	restore := []string{`BEGIN`, `LOCK TABLE ` + strings.Join(postgresTables,
		", ") + ` IN ACCESS EXCLUSIVE MODE`}
	for _, table := range postgresTables {
		backup = append(backup, fmt.Sprintf(`DROP TABLE IF EXISTS backup_%[1]s`, table),
			fmt.Sprintf(`CREATE TABLE backup_%[1]s AS TABLE %[1]s`, table))
		restore = append(restore, fmt.Sprintf(`DELETE FROM %s`, table),
			fmt.Sprintf(`INSERT INTO %[1]s OVERRIDING SYSTEM VALUE TABLE backup_%[1]s`, table))
	}
	if err := s.exec(ctx, append(backup, `COMMIT`)...); err != nil {
		return err
	}
	if c.random.IntN(2) == 0 { // a backup that knows another leader
		p, _, err := c.target(ctx)
		if err != nil {
			return err
		}
		p.kill()
		if _, _, err := c.other(ctx, p, c.settleLimit()); err != nil {
			return err
		}
	}
	c.sleep(ctx, c.TTL/2)
	in.From = bootTime()
	if err := s.exec(ctx, append(restore, `COMMIT`)...); err != nil {
		return err
	}
	c.forget(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	return nil
}

// ClockOfServer: the clock of the server is set an hour ahead, or back, and
// after a while right again. As ClockOfLeader.
func ClockOfServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	_, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	step := []string{"1 hour", "-1 hour"}[c.random.IntN(2)]
	for _, offset := range []string{step, "0"} {
		if err := s.exec(ctx, `UPDATE faults.clock SET step = '`+offset+`'`); err != nil {
			return err
		}
		c.sleep(ctx, 3*c.Heartbeat)
	}
	c.step(Span{in.From, bootTime()})
	in.Keeps, in.Bound, in.idle = b.Term, c.Heartbeat, true
	in.after = c.forgetCursors
	return nil
}

// FillServerDisk: the file system of the server is full for more than a TTL,
// and its WAL has to grow: it crashes, and may not come up. Bound: TTL + 2 s
// after there is room and it runs.
func FillServerDisk(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	if s.data == "" {
		return fmt.Errorf("%w: needs a small file system, which only root can mount",
			errCannotInject)
	}
	ballast := filepath.Join(s.data, "ballast")
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	defer file.Close()
	for chunk := make([]byte, 1<<16); len(chunk) > 0; {
		if _, err := file.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	for until := bootTime() + c.outage(); bootTime() < until; c.sleep(ctx, 100*time.Millisecond) {
		_ = s.exec(ctx, `INSERT INTO faults.clock SELECT '0' WHERE false`, `SELECT pg_switch_wal()`)
	}
	// An open one keeps its room.
	if err := errors.Join(file.Close(), os.Remove(ballast)); err != nil {
		return err
	}
	if !c.await(ctx, 3*time.Second, func() bool { return s.exec(ctx, `SELECT 1`) == nil }) {
		s.server.Stop(s.t, "immediate") // it may have given up
		s.server.StartAgain(s.t)
	}
	in.Bound = c.boundTTL()
	return nil
}
