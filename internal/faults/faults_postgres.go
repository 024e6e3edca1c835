//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

const sqlTerminate = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = '` + pgRole + `' AND ($1 = '' OR application_name = $1)`

func (s *postgresServer) terminate(ctx context.Context, p *process) error {
	name := ""
	if p != nil {
		name = p.name
	}
	return s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, sqlTerminate, name)
		return err
	})
}

// KillPostmaster: kill -9 of the postmaster; its backends notice each in its
// time. Bound: TTL + 2 s after it was started again.
func KillPostmaster(_ context.Context, c *Cluster, in *Injection, s *postgresServer) error {
	s.server.KillPostmaster(s.t)
	s.server.StartAgain(s.t)
	in.Bound = c.boundTTL()
	return nil
}

// RestartBouncer: the pooler is restarted, at once or after a TTL. Bound: TTL +
// 2 s. That a leader stays when it is fast is not asked: on a machine under load
// a new login through it can take longer than the renew deadline of this TTL.
func RestartBouncer(ctx context.Context, c *Cluster, in *Injection, s *postgresServer) error {
	if s.bouncer == nil {
		return fmt.Errorf("%w: there is no pooler", errCannotInject)
	}
	in.Bound = c.boundTTL()
	if c.random.IntN(2) == 0 {
		s.bouncer.Restart(s.t)
		return nil
	}
	s.bouncer.Stop(s.t)
	sleep(ctx, c.outage())
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
func RestoreTables(ctx context.Context, c *Cluster, in *Injection, s *postgresServer) error {
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
	if err := c.perhapsAnother(ctx); err != nil {
		return err
	}
	sleep(ctx, c.TTL/2)
	in.From = bootTime()
	if err := s.exec(ctx, append(restore, `COMMIT`)...); err != nil {
		return err
	}
	c.forget(Span{in.From, bootTime() + late})
	in.Bound = c.boundTTL()
	return nil
}
