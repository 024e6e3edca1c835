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

// led returns the server under test, who leads, and its belief. errCannotInject
// if the database has no server.
func (c *Cluster) led(ctx context.Context) (*postgresServer, *process, Belief, error) {
	s, err := c.postgres()
	if err != nil {
		return nil, nil, Belief{}, err
	}
	p, b, err := c.target(ctx)
	return s, p, b, err
}

// restart is a restart of the server. Where it is shorter than what the renew
// deadline leaves, the leader stays. Bound: that, or TTL + 2 s.
func restart(do func(s *postgresServer)) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, _, b, err := c.led(ctx)
		if err != nil {
			return err
		}
		from := bootTime()
		do(s)
		in.Bound = c.boundTTL()
		// A pooler itself waits for a second before it logs in again.
		if most := c.TTL / 4; s.bouncer == nil && bootTime()-from < c.sightOr(most) {
			in.Keeps = b.Term
		}
		return nil
	}
}

// sightOr is for how long a leader may not see its session, with a margin; d
// where it does not watch one.
func (c *Cluster) sightOr(d time.Duration) time.Duration {
	if c.Grace == 0 {
		return d
	}
	return min(d, c.Grace/4)
}

// The ways to restart a server.
var (
	RestartFast      = restart(func(s *postgresServer) { s.server.Restart(s.t, "fast") })
	RestartImmediate = restart(func(s *postgresServer) { s.server.Restart(s.t, "immediate") })
)

// StopServer: the server is away for more than a TTL. At the end nobody leads.
// Bound: TTL + 2 s after it is back.
func StopServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	s.server.Stop(s.t, []string{"fast", "immediate"}[c.random.IntN(2)])
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.server.StartAgain(s.t)
	in.Bound = c.boundTTL()
	return nil
}

func (c *Cluster) mustBeNobody(in *Injection) {
	if p, b := c.leader(); p != nil {
		in.note("%s leads in term %d, although no heartbeat can have succeeded for more than a TTL",
			p.name, b.Term)
	}
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

const sqlTerminate = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = '` + pgRole + `' AND ($1 = '' OR application_name = $1)`

// terminate ends the sessions of one process, or with "" of all.
func (s *postgresServer) terminate(ctx context.Context, name string) error {
	return s.use(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlTerminate, name)
		return err
	})
}

func terminateBackends(times int, ofLeader bool) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, p, b, err := c.led(ctx)
		if err != nil {
			return err
		}
		name := ""
		if ofLeader {
			name = p.name
		}
		for n := range times {
			if n > 0 {
				c.sleep(ctx, c.TTL/20)
			}
			if err := s.terminate(ctx, name); err != nil {
				return err
			}
		}
		if in.Bound = c.boundTTL(); s.bouncer == nil {
			in.Keeps, in.Bound = b.Term, c.TTL/4
		}
		return nil
	}
}

// pg_terminate_backend for all sessions, or the leader's. Bound: the leader
// stays; behind a pooler, which waits before it logs in again, TTL + 2 s.
var (
	TerminateAll     = terminateBackends(1, false)
	TerminateAgain   = terminateBackends(6, false)
	TerminateLeaders = terminateBackends(1, true)
)

// sessions returns the server if the end of the leader's session is a sign.
func (c *Cluster) sessions(ctx context.Context) (*postgresServer, error) {
	s, err := c.postgres()
	if err != nil {
		return nil, err
	}
	row, ok, err := s.Row(ctx)
	if err == nil && (!ok || !row.Session) {
		err = fmt.Errorf("%w: the end of the leader's session is no sign", errCannotInject)
	}
	return s, err
}

// TerminateAlways: the leader's session is ended every 200 ms, for two graces.
// The leader stays.
func TerminateAlways(ctx context.Context, c *Cluster, in *Injection) error {
	return c.endSessions(ctx, 2*c.Grace, in)
}

// endSessions loses answers with the sessions: the leader asks on the next one what was committed.
func (c *Cluster) endSessions(ctx context.Context, d time.Duration, in *Injection) error {
	in.Muted = true
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	s, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	for end := bootTime() + d; bootTime() < end; c.sleep(ctx, 200*time.Millisecond) {
		if err := s.terminate(ctx, p.name); err != nil {
			return err
		}
	}
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// StopSessionEnded: SIGSTOP of the leader, whose session is ended meanwhile,
// until another leads and a while longer; then SIGCONT. The other must not lead
// before the grace has passed, and stay the leader. Bound: grace + 2 s.
func StopSessionEnded(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	s, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	defer p.resume()
	in.From = bootTime()
	in.To, in.Bound = in.From, c.Grace+boundSession
	if err := s.terminate(ctx, p.name); err != nil {
		return err
	}
	next, b, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	if early := b.First.After - in.From; early < c.Grace {
		in.early("%s led only %v after the session of its predecessor had ended; the grace is %v",
			next.name, early, c.Grace)
	}
	c.sleep(ctx, time.Duration(c.random.Int64N(int64(c.Grace))))
	p.resume()
	c.sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, next, b, in)
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
	s, _, b, err := c.led(ctx)
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

// ExhaustServer: foreign sessions take all connections that the server allows,
// and the leader's are terminated, for more than a TTL. Who has a connection
// may lead. Bound: TTL + 2 s after they are gone.
func ExhaustServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, p, _, err := c.led(ctx)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(s.server.URL(pgDatabase))
	if err != nil {
		return err
	}
	config.User = pgRole
	config.ConnectTimeout = time.Second
	var idle []*pgx.Conn
	defer func() {
		for _, conn := range idle {
			conn.Close(context.WithoutCancel(ctx))
		}
	}()
	refused := false
	hog := func(until time.Duration, enough func() bool) {
		for bootTime() < until && !enough() {
			conn, err := pgx.ConnectConfig(ctx, config)
			if err != nil {
				refused = true
				c.sleep(ctx, 50*time.Millisecond)
				continue
			}
			idle = append(idle, conn)
		}
	}
	hog(bootTime()+20*time.Second, func() bool { return refused })
	if !refused {
		return errors.New("the server refused no connection")
	}
	if err := s.terminate(ctx, p.name); err != nil {
		return err
	}
	hog(bootTime()+c.outage(), func() bool { return false })
	in.Bound = c.boundTTL()
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
