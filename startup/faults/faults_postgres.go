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

	"example.com/schedlock/internal/pgtest"
)

// postgres returns the server under test; errCannotInject if the database has
// none.
func (c *Cluster) postgres() (*postgresServer, error) {
	if s, ok := c.db.(*postgresServer); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: the database has no server", errCannotInject)
}

// restart is a restart of the server. Where it is shorter than what the renew
// deadline leaves, the leader stays. Bound: that, or TTL + 2 s.
func restart(do func(s *postgresServer)) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, err := c.postgres()
		if err != nil {
			return err
		}
		_, b, err := c.target(ctx)
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
		in.note("%s leads in term %d, although no heartbeat can have succeeded for more than a TTL", p.name, b.Term)
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
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '` + pgRole + `' AND ($1 = '' OR application_name = $1)`

// terminate ends the sessions of one process, or with "" of all.
func (s *postgresServer) terminate(ctx context.Context, name string) error {
	return s.use(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlTerminate, name)
		return err
	})
}

func terminateBackends(times int, ofLeader bool) func(context.Context, *Cluster, *Injection) error {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		s, err := c.postgres()
		if err != nil {
			return err
		}
		p, b, err := c.target(ctx)
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

func (c *Cluster) endSessions(ctx context.Context, d time.Duration, in *Injection) error {
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
func StopSessionEnded(ctx context.Context, c *Cluster, in *Injection) error {
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
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
		in.note("%s led only %v after the session of its predecessor had ended; the grace is %v", next.name, early, c.Grace)
	}
	c.sleep(ctx, time.Duration(c.random.Int64N(int64(c.Grace))))
	p.resume()
	c.sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, next, b, in)
	return nil
}

// become changes the network of some slots, or of all.
func (s *postgresServer) become(n network, slots ...int) {
	if len(slots) == 0 {
		for _, p := range s.proxies {
			p.become(n)
		}
	}
	for _, slot := range slots {
		s.proxies[slot].become(n)
	}
}

// PartitionLeader: nothing passes between the leader and the server for more
// than a TTL. It steps down at its renew deadline, a standby leads only after
// that, and stays the leader when what was sent meanwhile arrives. Bound: TTL +
// 2 s from the partition.
func PartitionLeader(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	in.To, in.Bound = in.From, c.boundTTL()
	s.become(network{Hole: true}, p.slot)
	defer s.become(network{}, p.slot)
	next, b, err := c.other(ctx, p, c.settleLimit())
	if err != nil {
		return err
	}
	if _, leads := p.leads(); leads {
		in.note("%s leads while it can reach no server, and %s too", p.name, next.name)
	}
	// The last heartbeat may be as old as the interval.
	if early := b.First.After - in.From; early < c.TTL-c.Heartbeat-100*time.Millisecond {
		in.note("%s led only %v after its predecessor was cut off; the TTL is %v", next.name, early, c.TTL)
	}
	c.sleep(ctx, c.TTL/4)
	s.become(network{}, p.slot)
	c.sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, next, b, in)
	return nil
}

// PartitionStandby: the same for a standby. Bound: the leader stays.
func PartitionStandby(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	slot := (p.slot + 1 + c.random.IntN(c.Processes-1)) % c.Processes
	s.become(network{Hole: true}, slot)
	c.sleep(ctx, c.outage())
	s.become(network{}, slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// PartitionAll: nobody reaches the server for more than a TTL. Bound: TTL + 2 s
// after it is healed.
func PartitionAll(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	s.become(network{Hole: true})
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	s.become(network{})
	in.Bound = c.boundTTL()
	return nil
}

// PartitionShort: the leader does not reach the server for a quarter of the
// TTL. Bound: it stays the leader.
func PartitionShort(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	s.become(network{Hole: true}, p.slot)
	c.sleep(ctx, c.TTL/4)
	s.become(network{}, p.slot)
	in.Keeps, in.Bound = b.Term, c.TTL/4
	return nil
}

// Delay: every answer comes 2 s after its request, for more than a TTL. Nobody
// need lead meanwhile. Bound: TTL + 2 s after it is healed, and 2 s for what
// was on its way.
func Delay(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	s.become(network{Delay: time.Second})
	c.sleep(ctx, c.outage()+2*time.Second)
	s.become(network{})
	in.Bound = c.boundTTL() + 2*time.Second
	return nil
}

// LoseAnswers: for a TTL some requests arrive, but their answers do not, and
// the connection is cut. Nobody need lead meanwhile. Bound: TTL + 2 s.
func LoseAnswers(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	s.become(network{Lossy: true})
	c.sleep(ctx, c.TTL)
	s.become(network{})
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

// follow makes a streaming replica that has caught up.
func (c *Cluster) follow(ctx context.Context, s *postgresServer) (*pgtest.Server, error) {
	if s.bouncer != nil || s.data != "" {
		return nil, fmt.Errorf("%w: a pooler leads to one server only, and a small disk is one server's", errCannotInject)
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
			err := conn.QueryRow(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, lsn).Scan(&there)
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
		return execAll(ctx, conn, `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
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
	c.forget(Span{in.From, bootTime() + 500*time.Millisecond}) // a run may start a moment after its decision
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
	c.forget(Span{in.From, bootTime() + 500*time.Millisecond})
	in.Bound = c.boundTTL()
	if !c.await(ctx, c.TTL, func() bool { b, leads := next.leads(); return !leads || b.Term != lost.Term }) {
		in.note("%s still leads a TTL after its acquisition was lost", next.name)
	}
	return nil
}

var postgresTables = []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs", "scheduler_runs", "scheduler_requests", "scheduler_pauses", "faults_writes"}

// RestoreTables: all tables are put back to an earlier state, while the leader
// of then or another leads. Bound: TTL + 2 s.
func RestoreTables(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	backup := []string{`BEGIN ISOLATION LEVEL REPEATABLE READ`}
	restore := []string{`BEGIN`, `LOCK TABLE ` + strings.Join(postgresTables, ", ") + ` IN ACCESS EXCLUSIVE MODE`}
	for _, table := range postgresTables {
		backup = append(backup, fmt.Sprintf(`DROP TABLE IF EXISTS backup_%[1]s`, table), fmt.Sprintf(`CREATE TABLE backup_%[1]s AS TABLE %[1]s`, table))
		restore = append(restore, fmt.Sprintf(`DELETE FROM %s`, table), fmt.Sprintf(`INSERT INTO %[1]s OVERRIDING SYSTEM VALUE TABLE backup_%[1]s`, table))
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

// ExhaustServer: foreign sessions take all connections that the server allows,
// and the leader's are terminated, for more than a TTL. Who has a connection
// may lead. Bound: TTL + 2 s after they are gone.
func ExhaustServer(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.postgres()
	if err != nil {
		return err
	}
	p, _, err := c.target(ctx)
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
				c.sleep(ctx, 10*time.Millisecond)
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
		return fmt.Errorf("%w: needs a small file system, which only root can mount", errCannotInject)
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
	if err := errors.Join(file.Close(), os.Remove(ballast)); err != nil { // an open one keeps its room
		return err
	}
	if !c.await(ctx, 3*time.Second, func() bool { return s.exec(ctx, `SELECT 1`) == nil }) {
		s.server.Stop(s.t, "immediate") // it may have given up
		s.server.StartAgain(s.t)
	}
	in.Bound = c.boundTTL()
	return nil
}
