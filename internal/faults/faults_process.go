//go:build linux

package faults

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// KillLeader: kill -9. Bound: 250 ms where the kernel proves the death, else
// TTL + 2 s.
func KillLeader(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	c.kill(ctx, in, p)
	return nil
}

// KillAll: kill -9 of every process at once; all are restarted. Bound: that of
// KillLeader, counted from when the first one serves again.
func KillAll(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	in.Bound = c.boundDeath(ctx)
	c.killAll()
	c.awaitUp(ctx, in, bootTime())
	return nil
}

func (c *Cluster) killAll() {
	for _, p := range c.running() {
		p.kill()
	}
}

// awaitUp waits until a process that was started after a moment serves, and sets To.
func (c *Cluster) awaitUp(ctx context.Context, in *Injection, since time.Duration) {
	if !await(ctx, c.settleLimit(), func() bool { return c.up(since) > 0 }) {
		in.note("no process came up again")
	}
	in.To = bootTime()
}

// up is how many processes serve that were started after a moment.
func (c *Cluster) up(since time.Duration) (n int) {
	for _, p := range c.running() {
		if p.up() > since {
			n++
		}
	}
	return n
}

// awaitAll waits until every process serves, and reports whether they do: one that is being
// started would make a new file, should the next fault move this one away.
func (c *Cluster) awaitAll(ctx context.Context) bool {
	return await(ctx, c.settleLimit(), func() bool { return c.up(0) == c.Processes })
}

// StopPastTTL: SIGSTOP of the leader until another leads, and a while longer;
// then SIGCONT. The other must not lead before the TTL has passed, and must
// stay the leader; the first must start nothing (the rules see to that).
// Bound: TTL + 2 s from the SIGSTOP.
func StopPastTTL(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	next, b, err := c.stopUntilAnother(ctx, p, in)
	defer p.resume()
	if err != nil {
		return err
	}
	sleep(ctx, time.Duration(c.random.Int64N(int64(c.TTL)))/2)
	p.resume()
	sleep(ctx, 3*c.Heartbeat)
	c.mustStill(ctx, in, next, b)
	return nil
}

func (c *Cluster) stopUntilAnother(ctx context.Context, p *process,
	in *Injection) (*process, Belief, error) {
	if err := c.freeze(ctx, p); err != nil {
		return nil, Belief{}, err
	}
	in.From = bootTime()
	in.To, in.Bound = in.From, c.boundTTL()
	next, b, err := c.other(ctx, p)
	// The last heartbeat of a leader may be as old as the renew deadline.
	early := b.First.After - in.From
	if err == nil && early < 0 {
		return next, b, fmt.Errorf("%w: %s led before %s was stopped", errCannotInject, next.name,
			p.name)
	}
	if err == nil && early < c.TTL/4-100*time.Millisecond {
		in.early("%s led only %v after its predecessor was stopped; the TTL is %v", next.name,
			early, c.TTL)
	}
	return next, b, err
}

// StopThenKill: SIGSTOP of the leader until another leads; then kill -9 of the
// stopped one. Its death must not be taken for that of the second: the second
// stays. Bound: TTL + 2 s from the SIGSTOP.
func StopThenKill(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	next, b, err := c.stopUntilAnother(ctx, p, in)
	if err != nil {
		p.resume()
		return err
	}
	p.kill()
	sleep(ctx, c.TTL/2)
	c.mustStill(ctx, in, next, b)
	return nil
}

// StopOld: SIGSTOP of the leader until another leads; while it is still stopped,
// kill -9 of that one. The byte of the stopped one must not keep the third from
// seeing that the second is dead. Bound: that of KillLeader.
func StopOld(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	next, _, err := c.stopUntilAnother(ctx, p, in)
	defer p.resume()
	if err != nil {
		return err
	}
	c.kill(ctx, in, next)
	_, _, err = c.other(ctx, next)
	return err
}

// StopShort: SIGSTOP of the leader after a heartbeat, for less than the renew deadline leaves.
// Bound: it stays the leader, as with StopInHeartbeat.
func StopShort(ctx context.Context, c *Cluster, in *Injection, _ *process, _ Belief) error {
	p, beat, err := c.nextBeat(ctx)
	if err != nil {
		return err
	}
	_, b := c.leader()
	if err := c.freeze(ctx, p); err != nil {
		return err
	}
	sleep(ctx, c.TTL/4)
	p.resume()
	in.Bound = c.TTL / 4
	c.keeps(in, b, beat)
	return nil
}

// keeps says that the leader must stay that has sent a heartbeat since beat, unless a starved
// machine has made it so late that the renew deadline may have passed.
func (c *Cluster) keeps(in *Injection, b Belief, beat time.Duration) {
	if bootTime()-beat+c.Heartbeat < c.TTL*3/4 {
		in.Keeps = b.Term
	}
}

// StopSameOwner is StopPastTTL where all processes bear one pid and hostname:
// the heartbeat and the release of the resumed one must not touch the row of
// the other. Bound: TTL + 2 s from the SIGSTOP.
func StopSameOwner(ctx context.Context, c *Cluster, in *Injection, p *process, b Belief) error {
	if !c.SameOwner {
		return errCannotInject
	}
	return StopPastTTL(ctx, c, in, p, b)
}

// TerminateInJob: SIGTERM while a run is under way. It is drained, the row is
// released, the process exits with 0. Bound: 100 ms after the release where
// standbys are woken, else 1.5 s.
func TerminateInJob(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	if !c.awaitStart(ctx, p, jobSlow) {
		return nil // it lost the lock meanwhile
	}
	in.Bound = c.boundHandOver(ctx)
	p.terminate()
	c.mustEnd(ctx, in, p)
	in.To = bootTime()
	if r, ok := p.last(func(r Record) bool { return r.Kind == KindReleased }); ok {
		in.To = r.At
	}
	if p.code != 0 {
		in.note("%s exited with %d after SIGTERM: %s", p.name, p.code, tail(p.file("stderr"), 1000))
	}
	return nil
}

// Revoke: an operator tells the leader to leave while a run is under way. It
// must drain from its next heartbeat on, and release. Bound: that of
// TerminateInJob, after its release.
func Revoke(ctx context.Context, c *Cluster, in *Injection, p *process, b Belief) error {
	if !c.awaitStart(ctx, p, jobSlow) {
		return nil // it lost the lock meanwhile
	}
	if err := c.db.Edit(ctx, editRevoke); err != nil {
		return err
	}
	in.Bound = c.boundHandOver(ctx)
	if !await(ctx, c.Heartbeat+c.Drain+c.TTL, func() bool {
		r, released := p.last(func(r Record) bool {
			return r.Kind == KindReleased && r.Term == b.Term
		})
		in.To = r.At
		return released
	}) {
		in.note("%s has not released term %d, long after it was told to leave", p.name, b.Term)
	}
	return nil
}

// IgnoreCancel: SIGTERM while a run is under way that ignores its context for
// longer than the drain waits. While it runs the lock stays held; OnStuck lets
// it end, or exits. Bound: that of KillLeader, after the process has ended.
func IgnoreCancel(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	c.steer(p.slot, func(s *Control) { s.Ignore = c.Drain + 4*time.Second })
	defer c.steer(p.slot, func(s *Control) { s.Ignore = 0 })
	p.expect() // should it lose the lock meanwhile, it may exit at once
	sleep(ctx, heed)
	if !c.awaitStart(ctx, p, jobOdd) {
		return nil
	}
	in.Bound = c.boundDeath(ctx)
	p.terminate()
	c.mustEnd(ctx, in, p)
	in.To = p.endedAt
	return nil
}

// PanicJob: a job panics, again and again. Bound: the leader stays.
func PanicJob(ctx context.Context, c *Cluster, in *Injection, p *process, b Belief) error {
	in.Keeps, in.Bound = b.Term, c.TTL/4
	c.steer(p.slot, func(s *Control) { s.Panic = true })
	sleep(ctx, 6*c.Tick)
	c.steer(p.slot, func(s *Control) { s.Panic = false })
	return nil
}

// FailJob: the first attempts of the odd job fail, and the leader is killed
// with kill -9 before the next one starts, or just then. Bound: that of
// KillLeader; and the next leader starts that attempt.
func FailJob(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	c.steer(p.slot, func(s *Control) { s.Fail = true })
	defer c.steer(p.slot, func(s *Control) { s.Fail = false })
	failed, ended := c.awaitOdd(ctx, p)
	if !ended {
		return nil // it lost the lock meanwhile
	}
	// its end is written down meanwhile, or not
	sleep(ctx, time.Duration(c.random.Int64N(int64(c.Tick/4))))
	c.kill(ctx, in, p)
	// Unless p itself came so far. A pause, and what else the next leader has
	// missed, come before.
	if !await(ctx, in.Bound+answerLimit, func() bool { return c.startedAgain(failed) }) {
		in.note("the run of %s for %d was not started again", failed.Job, failed.Tick)
	}
	return nil
}

// awaitOdd waits until a first attempt of the odd job has ended that was told what the process
// was told before. It may take no time, so it is not seen under way.
func (c *Cluster) awaitOdd(ctx context.Context, p *process) (r Record, ended bool) {
	sleep(ctx, heed)
	since := bootTime()
	await(ctx, 10*c.Tick+5*time.Second, func() bool {
		r, ended = p.last(func(r Record) bool {
			return r.Kind == KindEnd && r.Job == jobOdd && r.Attempt == 1 && r.At > since
		})
		return ended
	})
	return r, ended
}

// startedAgain reports whether some process has started a later attempt.
func (c *Cluster) startedAgain(failed Record) bool {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	return slices.ContainsFunc(all, func(p *process) bool {
		_, again := p.last(func(r Record) bool {
			return r.Kind == KindStart && r.Job == failed.Job && r.Tick == failed.Tick &&
				r.Attempt > failed.Attempt
		})
		return again
	})
}

// ChildLeft: a job leaves a child process behind, then kill -9 of the leader.
// The child must not keep alive what proves its parent's death. Bound: that of
// KillLeader.
func ChildLeft(ctx context.Context, c *Cluster, in *Injection, p *process, _ Belief) error {
	c.steer(p.slot, func(s *Control) { s.Child = 2 * c.TTL })
	c.awaitOdd(ctx, p)
	c.steer(p.slot, func(s *Control) { s.Child = 0 })
	c.kill(ctx, in, p)
	return nil
}
