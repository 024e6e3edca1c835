//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/schedlock/internal/linear"
)

// A Fault is one way to hurt a cluster. Inject does it and heals it, and fills
// in the injection: when it was over (default: when Inject returns), the bound,
// what must stay.
type Fault struct {
	Name   string
	Inject inject

	// Last: the cluster is of no use afterwards.
	Last bool
	// Clock and Restore must not meet in one cluster: after the machines'
	// clocks went back and the database was lost, nothing knows which terms
	// there were.
	Clock, Restore bool
	// Rewrites: afterwards the lock row is as no statement of a replica has left it.
	Rewrites bool
	// Alone: it makes no sense while another fault is under way.
	Alone bool
}

type inject = func(ctx context.Context, c *Cluster, in *Injection) error

// Inject injects one fault and waits until somebody leads and works again. It
// returns an error that wraps errCannotInject if it could not; everything else
// that goes wrong is in the history.
func (c *Cluster) Inject(ctx context.Context, f Fault) error {
	if f.Restore || f.Last {
		defer c.users.keepFromPausing(f.Last)()
	}
	if f.Clock {
		c.clockSet.Store(true)
	}
	in := Injection{Fault: f.Name, From: bootTime()}
	if f.Rewrites || f.Restore || f.Last {
		defer func() { c.rewrite(ctx, in.From) }()
	}
	err := f.Inject(ctx, c, &in)
	if errors.Is(err, errCannotInject) || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err != nil {
		in.note("%v", err)
	}
	if in.To == 0 {
		in.To = bootTime()
	}
	if !in.Silent {
		if _, err := c.settle(ctx, in.To, in.idle); err != nil && ctx.Err() == nil {
			in.note("%v", err)
		}
	}
	in.Until = bootTime()
	c.mu.Lock()
	c.injections = append(c.injections, in)
	c.mu.Unlock()
	c.Logf("%s: took %v, settled after %v", f.Name, (in.To - in.From).Round(time.Millisecond),
		(in.Until - in.To).Round(time.Millisecond))
	if in.after != nil {
		if err := in.after(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("after %s: %w", f.Name, err)
		}
	}
	return nil
}

// rewrite ends the time from a moment to now in which the lock row was rewritten. Of a fault that
// was cut short nothing says when that ended.
func (c *Cluster) rewrite(ctx context.Context, from time.Duration) {
	to := bootTime()
	if ctx.Err() != nil {
		to = linear.Never
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rewritten = append(c.rewritten, Span{from, to})
}

// early adds a take-over that came too soon.
func (in *Injection) early(format string, args ...any) {
	in.Early = strings.TrimPrefix(in.Early+"; "+fmt.Sprintf(format, args...), "; ")
}

// note adds a problem.
func (in *Injection) note(format string, args ...any) {
	if in.Problem != "" {
		in.Problem += "; "
	}
	in.Problem += fmt.Sprintf(format, args...)
}

// The bounds of the design, from the fault to the next leader.
const (
	boundProven  = 250 * time.Millisecond // a crash, where the kernel proves it
	boundRelease = 100 * time.Millisecond // a clean release, where standbys are woken
	boundSession = 2 * time.Second        // after the grace, where the end of a session is a sign
)

// boundTTL holds where nothing proves or tells the end of the holder, and for
// everything that heals by itself.
func (c *Cluster) boundTTL() time.Duration { return c.TTL + 2*time.Second }

// boundDeath is the bound for the death of the present holder.
func (c *Cluster) boundDeath(ctx context.Context) time.Duration {
	if row, ok, err := c.db.Row(ctx); err == nil && ok && row.Proof {
		return boundProven
	} else if err == nil && ok && row.Session {
		return c.Grace + boundSession
	}
	return c.boundTTL()
}

// boundHandOver is the bound for a clean release by the present holder.
func (c *Cluster) boundHandOver(ctx context.Context) time.Duration {
	if row, ok, err := c.db.Row(ctx); err == nil && ok && row.Proof {
		return boundRelease
	}
	if s, ok := c.db.(server); ok && s.wakes() {
		return boundRelease
	}
	return 1500 * time.Millisecond
}

// target is the leader that a fault is for; every fault but the last of a
// storm finds one.
func (c *Cluster) target(ctx context.Context) (p *process, b Belief, err error) {
	if !await(ctx, c.settleLimit(), func() bool { p, b = c.leader(); return p != nil }) {
		return nil, b, errors.New("nobody leads")
	}
	return p, b, nil
}

// onLeader is a fault of the leader p, in the term of b.
func onLeader(do func(ctx context.Context, c *Cluster, in *Injection, p *process,
	b Belief) error) inject {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		p, b, err := c.target(ctx)
		if err != nil {
			return err
		}
		return do(ctx, c, in, p, b)
	}
}

// onDB is a fault of one kind of database: a file, a server, or one of PostgreSQL or MariaDB.
func onDB[D Database](do func(ctx context.Context, c *Cluster, in *Injection, db D) error) inject {
	return func(ctx context.Context, c *Cluster, in *Injection) error {
		db, ok := c.db.(D)
		if !ok {
			return fmt.Errorf("%w: the database is another", errCannotInject)
		}
		return do(ctx, c, in, db)
	}
}

// onBoth is a fault of the database and of the leader.
func onBoth[D Database](do func(ctx context.Context, c *Cluster, in *Injection, db D,
	p *process, b Belief) error) inject {
	return onDB(func(ctx context.Context, c *Cluster, in *Injection, db D) error {
		return onLeader(func(ctx context.Context, c *Cluster, in *Injection, p *process,
			b Belief) error {
			return do(ctx, c, in, db, p, b)
		})(ctx, c, in)
	})
}

// kill kills a process: the bound of the fault is that of its death.
func (c *Cluster) kill(ctx context.Context, in *Injection, p *process) {
	in.Bound = c.boundDeath(ctx)
	in.From = bootTime()
	p.kill()
	in.To = in.From
}

// mustEnd waits until a process that was told to has ended.
func (c *Cluster) mustEnd(ctx context.Context, in *Injection, p *process) {
	if !await(ctx, c.settleLimit(), func() bool { return !p.alive() }) {
		in.note("%s did not end after SIGTERM", p.name)
		p.kill()
	}
}

// mustStepDown notes a problem unless p leads no more, in the term of b, within a TTL.
func (c *Cluster) mustStepDown(ctx context.Context, in *Injection, p *process, b Belief,
	after string) {
	if !await(ctx, c.TTL, func() bool {
		now, leads := p.leads()
		return !leads || now.Term != b.Term
	}) {
		in.note("%s still leads in term %d a TTL after %s", p.name, b.Term, after)
	}
}

// mustStill notes a problem unless p leads in the term of b. (Whether its word
// is fresh depends on the machine, so it is asked for a while.)
func (c *Cluster) mustStill(ctx context.Context, in *Injection, p *process, b Belief) {
	if !await(ctx, c.TTL/4, func() bool {
		now, ok := p.leads()
		return ok && now.Term == b.Term
	}) {
		in.note("%s, which led in term %d, does not lead any more", p.name, b.Term)
	}
}

// mustBeNobody notes a problem if somebody leads.
func (c *Cluster) mustBeNobody(in *Injection) {
	if p, b := c.leader(); p != nil {
		in.note("%s leads in term %d, although no heartbeat can have succeeded for more than a TTL",
			p.name, b.Term)
	}
}

// other waits for a leader that is not p.
func (c *Cluster) other(ctx context.Context, p *process) (next *process, b Belief, err error) {
	if !await(ctx, c.settleLimit(), func() bool {
		next, b = c.leader()
		return next != nil && next != p
	}) {
		return nil, b, fmt.Errorf("nobody leads %v after %s", c.settleLimit(), p.name)
	}
	return next, b, nil
}

// awaitStart waits until a process has a run of the job under way that began
// after the call.
func (c *Cluster) awaitStart(ctx context.Context, p *process, job string) bool {
	since := bootTime()
	return await(ctx, 10*c.Tick+5*time.Second, func() bool {
		records, _ := readRecords(p.file("log"))
		under := false
		for _, r := range records {
			if r.Job == job && r.At > since {
				under = r.Kind == KindStart || under && r.Kind != KindEnd
			}
		}
		return under
	})
}

// History reads everything. Call it after Close.
func (c *Cluster) History(ctx context.Context) (*History, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &History{ClockSet: c.clockSet.Load(), Logs: map[string][]Record{},
		Stops: map[string][]Span{}, Forgot: c.forgot, Promoted: c.promotions,
		Rewritten:  c.rewritten,
		Injections: c.injections, Exits: c.exits,
		AtMostOnce: []string{jobOnce}}
	for _, p := range c.all {
		records, err := readRecords(p.file("log"))
		if err != nil {
			return nil, err
		}
		beliefs, err := readBeliefs(p.file("beliefs"), p.name)
		if err != nil {
			return nil, err
		}
		h.Logs[p.name] = records
		h.Beliefs = append(h.Beliefs, beliefs...)
		h.Runs = append(h.Runs, runsOf(p.name, records, beliefs)...)
		h.Stops[p.name] = append(slices.Clone(p.stops), starved(records)...)
		if err := h.addLocks(p.name, p.file("locks")); err != nil {
			return nil, err
		}
		statements, err := linear.Read(p.file("statements"))
		if err != nil {
			return nil, err
		}
		h.Statements = append(h.Statements, statements...)
	}
	h.Stepped = c.stepped
	for _, in := range c.injections {
		if in.Silent {
			return h, nil // the database is of no use
		}
	}
	return h, c.db.Read(ctx, h)
}

// Describe says how the cluster is now: for a test that has failed.
func (c *Cluster) Describe(ctx context.Context) string {
	row, held, err := c.db.Row(ctx)
	text := fmt.Sprintf("row %+v, held %v, error %v\n", row, held, err)
	for _, p := range c.running() {
		b, leads := p.leads()
		text += fmt.Sprintf("%s: leads %v, believed last: %v\n%s\n", p.name, leads, b,
			tail(p.file("stderr"), 2000))
	}
	return text
}
