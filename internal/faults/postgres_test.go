//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/schedlock/internal/missing"
)

// Those that take long begin first.
var postgresGroups = []group{
	{name: "network and answers", on: kindPostgres, sameOwner: true, appPool: true, faults: []string{
		"partition of a standby", "partition of all", "partition for a quarter of the TTL",
		"answers after 2 s", "answers lost after the commit", "the app's pool exhausted",
	}},
	{name: "fail-over", on: kindPostgres, locks: true, faults: []string{
		"replica promoted, the last heartbeats lost", "replica promoted, the last acquisition lost",
	}, histories: []string{"a lost acquisition makes no second leader on a promoted replica"}},
	{name: "tables and restart", on: kindPostgres, two: true, sameOwner: true, faults: []string{
		"tables put back to a backup",
		"write lock held for 0.4 TTL",
		"write lock held beyond the TTL",
	}, histories: []string{"a restart of the server keeps the leader if it is short"}},
	{name: "sessions", on: kindPostgres, sessions: true, faults: []string{
		"kill -9 of the leader", "SIGSTOP, session ended, another leads, SIGCONT",
		"the leader's session ended every 200 ms",
		"kill -9 of the postmaster", "SIGSTOP in the middle of a heartbeat",
	}},
	{name: "small disk and full house", on: kindPostgres, two: true, small: true, faults: []string{
		"disk of the server full", "max_connections reached, the leader's backends terminated",
		"clock of the server stepped by an hour, and back",
	}},
	{name: "sessions in a partition", on: kindPostgres, sessions: true, faults: []string{
		"partition of the leader", "idle time-out in a partition",
	}},
	{name: "lost answer", on: kindPostgres, histories: []string{
		"a partitioned leader cancels its jobs before a standby leads",
		"an answer lost after the commit makes no second leader",
	}},
	{name: "pooler", on: kindPostgres, pooler: true, faults: []string{
		"PgBouncer restarted", "all backends terminated", "SIGTERM in the middle of a job",
		"SIGSTOP past the TTL, SIGCONT", "server restarted, fast",
	}},
	{name: "rows", on: kindPostgres, two: true, sameOwner: true, faults: []string{
		"row deleted, SIGSTOP for a moment", "row's token edited, SIGSTOP for a moment",
		"row's term edited, SIGSTOP for a moment",
		"row's TTL set to 1 ms, SIGSTOP for a moment",
		"false news of a release, SIGSTOP for a moment",
		"row deleted, false news of a release, SIGSTOP for a moment",
	}},
	{name: "server", on: kindPostgres, two: true, faults: []string{
		"server restarted, fast", "server restarted, immediate", "kill -9 of the postmaster",
		"all backends terminated", "all backends terminated, again and again",
		"the leader's backends terminated",
		"job fails, kill -9 of the leader before its next attempt",
		"SIGTERM in the middle of a job",
	}},
	{name: "tunnel", on: kindPostgres, sessions: true, tunnel: true, faults: []string{
		"forwarder in between", "kill -9 of the leader",
	}},
}

// histories are faults of several steps, which no storm injects.
var histories = []Fault{
	{Name: "a partitioned leader cancels its jobs before a standby leads", Restore: true,
		Inject: onBoth(partitionedLeader)},
	{Name: "a restart of the server keeps the leader if it is short", Restore: true,
		Inject: onBoth(shortAndLongRestart)},
	{Name: "a lost acquisition makes no second leader on a promoted replica", Restore: true,
		Inject: onReplica(lostAcquisition)},
	{Name: "an answer lost after the commit makes no second leader", Restore: true,
		Inject: onBoth(lostAnswer)},
}

// Every fault of a server and its network, and every history.
func TestNoFaultOfAServerMakesTwoLeadersOrNoneForLong(t *testing.T) {
	missing.Long(t, "takes a minute")
	var together together
	newTestRun(t).inject(&together, serverClusters(), 0, 1)
	together.Wait()
}

// cancelledAt is when a process wrote down that a run of the term was told to
// end, 0 if it was not.
func cancelledAt(p *process, term int64, since time.Duration) time.Duration {
	records, _ := readRecords(p.file("log"))
	for _, r := range records {
		if r.Kind == KindCancelled && r.Term == term && r.At > since {
			return r.At
		}
	}
	return 0
}

func partitionedLeader(ctx context.Context, c *Cluster, in *Injection, s *postgresServer,
	p *process, b Belief) error {
	// A job that is under way when the deadline comes, as it ignores all else.
	c.steer(p.slot, func(s *Control) { s.Ignore = 2 * c.TTL })
	defer c.steer(p.slot, func(s *Control) { s.Ignore = 0 })
	p.expect() // OnStuck may end it
	if !c.awaitStart(ctx, p, jobOdd) {
		return errors.New("no run of the odd job started")
	}
	if err := PartitionLeader(ctx, c, in, s); err != nil {
		return err
	}
	told := cancelledAt(p, b.Term, in.From)
	next, after, err := c.target(ctx)
	if err != nil {
		return err
	}
	switch {
	case told == 0:
		in.note("no job of %s was cancelled", p.name)
	case told > after.First.After:
		in.note("%s led at %v, before the jobs of %s were cancelled at %v", next.name,
			after.First.After, p.name, told)
	case after.Term <= b.Term:
		in.note("term %d after term %d", after.Term, b.Term)
	}
	c.Logf("jobs cancelled after %v, another leads after %v",
		(told - in.From).Round(time.Millisecond),
		(after.First.After - in.From).Round(time.Millisecond))
	return nil
}

func shortAndLongRestart(ctx context.Context, c *Cluster, in *Injection, s *postgresServer,
	_ *process, b Belief) error {
	from := bootTime()
	s.server.Restart(s.t, []string{"fast", "immediate"}[c.random.IntN(2)])
	took := bootTime() - from
	sleep(ctx, c.TTL)
	if _, now, err := c.target(ctx); err != nil {
		return err
	} else if took < c.TTL/4 && now.Term != b.Term {
		in.note("after a restart of %v term %d leads, not %d", took, now.Term, b.Term)
	}
	c.Logf("restart took %v", took.Round(time.Millisecond))
	return StopServer(ctx, c, in, s) // and a long one
}

// The replica saw the release of the term before, and nothing of the present
// one: to it the lock is free.
func lostAcquisition(ctx context.Context, c *Cluster, in *Injection, s replicated, r replica,
	p *process, before Belief) error {
	for slot := range c.Processes {
		if slot != p.slot {
			s.become(network{Hole: true}, slot)
		}
	}
	defer s.become(network{})
	p.terminate()
	<-p.exited
	s.become(network{Hole: true}, p.slot) // and whatever is started in its place
	if row, held, err := s.Row(ctx); err != nil || held {
		return fmt.Errorf("the row after the release: %+v, %v, %w", row, held, err)
	}
	if err := r.caughtUp(ctx); err != nil {
		return err
	}
	if err := r.detach(ctx); err != nil {
		return err
	}
	lucky := (p.slot + 1) % c.Processes
	s.become(network{}, lucky)
	old, lost, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	sleep(ctx, c.Heartbeat)
	s.become(network{Hole: true}, lucky)
	s.failOver(r)
	in.To, in.Bound = bootTime(), c.boundTTL()
	for slot := range c.Processes {
		if slot != lucky {
			s.become(network{}, slot)
		}
	}
	next, b, err := c.other(ctx, old)
	c.promoted(Span{in.From, bootTime()})
	if err != nil {
		return err
	}
	if b.Term <= lost.Term || lost.Term <= before.Term {
		in.note("terms %d, %d (lost), %d", before.Term, lost.Term, b.Term)
	}
	s.become(network{}, lucky)
	sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, in, next, b)
	if now, leads := old.leads(); leads && now.Term == lost.Term {
		in.note("%s still leads in the lost term %d", old.name, lost.Term)
	}
	return nil
}

// The answer to an acquisition is lost, and then those to all kinds of
// requests for a while.
func lostAnswer(ctx context.Context, c *Cluster, in *Injection, s *postgresServer, p *process,
	b Belief) error {
	if err := s.terminate(ctx, nil); err != nil { // so that statements are prepared anew
		return err
	}
	sleep(ctx, 2*c.Heartbeat)
	lost := make(chan struct{}, c.Processes)
	for slot := range c.Processes {
		one := make(chan struct{})
		s.become(network{LoseAfter: []byte("INSERT INTO scheduler_lock"), Lost: one}, slot)
		go func() {
			select {
			case <-one:
				lost <- struct{}{}
			case <-ctx.Done():
			}
		}()
	}
	defer s.become(network{})
	p.kill()
	select {
	case <-lost:
	case <-time.After(c.settleLimit()):
		return errors.New("nobody's acquisition was lost")
	}
	_, next, err := c.other(ctx, p)
	if err != nil {
		return err
	}
	if next.Term <= b.Term {
		in.note("term %d after term %d", next.Term, b.Term)
	}
	return LoseAnswers(ctx, c, in, s)
}
