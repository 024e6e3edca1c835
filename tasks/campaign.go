package tasks

import (
	"context"
	"errors"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// The phases of a campaign. campaign.next says which one follows.
const (
	standby  = iota // has no lease, and waits for one
	leading         // keeps its lease alive; jobs run once Start was called
	draining        // starts nothing; waits for what runs, then releases the lock
	stopped         // for good
)

const (
	// drainGrace is how long a drain waits for jobs once it has cancelled them,
	// before it calls them stuck. After a loss it is two thirds of TTL − renew
	// deadline, so that OnStuck has its say before another replica may lead.
	drainGrace = 2 * time.Second

	// waitInterval is the time between two lines about what a term waits for.
	waitInterval = 30 * time.Second

	// flushLimit is how long Stop waits for a log that does not keep up.
	flushLimit = time.Second
)

// StopLimit, 21 s, is how long [Runner.Stop] may take besides its drain limit while the database
// records the ends of runs and no job is stuck: 10 s for jobs that were cancelled and for the
// release, 10 s for callbacks that hang, and 1 s for a log that does.
const StopLimit = 10*time.Second + callbackLimit + flushLimit

// errDrained is why a run is cancelled when the drain limit has passed.
var errDrained = errors.New("the drain limit has passed")

// A campaign takes a runner through its phases, on one goroutine.
type campaign struct {
	*Runner
	lease *schedlock.Lease // nil: it has none
	rest  time.Duration    // how long to keep out of the next wait for the lock
}

// next says which phase follows. It looks only at what is the case, so a phase
// need not tell how it has ended.
func (c *campaign) next() int {
	stopping := c.ctx.Err() != nil
	switch {
	case c.lease == nil && stopping:
		return stopped
	case c.lease == nil:
		return standby
	case stopping || c.lease.Err() != nil || isRevoked(c.lease):
		return draining
	}
	return leading
}

// run ends when the runner has stopped.
func (c *campaign) run() {
	defer close(c.done)
	if c.presence && c.ctx.Err() == nil {
		defer c.startPresence()()
	}
	for {
		switch c.next() {
		case standby:
			c.wait()
		case leading:
			c.lead()
		case draining:
			c.leave()
		case stopped:
			c.awaitCallbacks()
			bounded.FlushLog(c.log, flushLimit)
			return
		}
	}
}

// wait waits for the lock. If the campaign cannot go on, the runner stops.
func (c *campaign) wait() {
	bounded.Sleep(c.ctx, c.rest)
	c.rest = 0
	lease, err := c.lock.Wait(c.ctx)
	switch {
	case err == nil:
		c.lease = lease
		return
	case c.ctx.Err() != nil:
	case errors.Is(err, driver.ErrPermanent):
		c.log.Error("campaign refused: it is repeated while this process runs", "err", err)
		c.rest = c.lock.Timing().TTL
		return
	default:
		c.log.Error("campaign ended", "err", err)
	}
	if c.held != nil { // the wait may have made up for it
		c.release(c.held)
	}
	c.cancel()
}

// lead keeps the lease alive, and runs the jobs once they may, until another
// phase follows.
func (c *campaign) lead() {
	timing := c.lock.Timing()
	beat, err := startHeartbeat(c.lease, timing, c.log)
	if err != nil {
		c.stepDown(err)
		return
	}
	t := c.newTerm(c.lease, beat)
	c.term.Store(t)
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	revoked := c.lease.Revoked()
	go func() { // a start waits for the ledger, however long that does not answer
		select {
		case <-revoked:
			cancel()
		case <-ctx.Done():
		}
	}()
	look := time.NewTicker(timing.HeartbeatInterval)
	defer look.Stop()
	looked, at := c.lease.Now(), time.Now()
	for ready := c.ready; c.next() == leading; {
		select {
		case <-c.lease.Done():
		case <-revoked:
		case <-c.ctx.Done():
		case <-ready:
			ready = nil
			if err := t.start(ctx); err != nil && c.next() == leading {
				c.stepDown(err)
			}
			look.Reset(timing.HeartbeatInterval)
		case jump := <-beat.jumped:
			c.log.Warn("the database's clock was set", "by", jump.Round(time.Millisecond), "term",
				c.lease.Term())
			t.rearm(jump)
		case <-look.C:
			err := t.stalled(timing.TTL)
			// A clock that was set an hour ahead makes ticks late at once; they
			// are decided before the next look.
			jump := c.lease.Now().Sub(looked) - time.Since(at)
			looked, at = c.lease.Now(), time.Now()
			if err != nil && jump.Abs() < clockJump {
				c.stepDown(err)
			}
		}
	}
}

// stepDown ends the lease of a replica that cannot do a leader's work, and lets
// another one have the next try.
func (c *campaign) stepDown(why error) {
	c.lease.StepDown(why)
	c.rest = 2 * c.lock.Timing().RetryInterval()
}

// leave ends the term, and then gives the lock back. The heartbeats go on until
// that is done.
func (c *campaign) leave() {
	t := c.term.Load()
	if t != nil { // else it has not come to lead
		c.drain(t)
	}
	c.release(c.lease)
	if t != nil {
		t.beat.stop()
		c.term.Store(nil)
	}
	switch {
	case errors.Is(c.lease.Err(), schedlock.ErrCorrupt):
		c.rest = c.lock.Timing().TTL // winning again would only lead here again
	case isRevoked(c.lease):
		c.rest = 2 * c.lock.Timing().RetryInterval() // let another have it
	}
	c.lease = nil
}

// drain returns when everything that the term has started has returned, however
// long that takes. After a loss the jobs have been cancelled already.
func (c *campaign) drain(t *term) {
	t.close()
	timing := c.lock.Timing()
	grace := (timing.TTL - timing.RenewDeadline) * 2 / 3
	if c.lease.Err() == nil {
		begin := time.Now()
		if !c.awaitRuns(t) {
			grace = drainGrace
		}
		defer func() {
			c.log.Info("drained", "term", c.lease.Term(), "took",
				time.Since(begin).Round(time.Millisecond))
		}()
	}
	if !bounded.Wait(t.idle, grace) {
		c.sayStuck(t)
		for done := false; !done; done = bounded.Wait(t.idle, waitInterval) {
			c.log.Warn("the term does not end yet", "term", c.lease.Term(), "waits_for",
				t.waitsFor())
		}
	}
	t.end()
}

// awaitRuns lets what runs go on up to the drain limit, and cancels it then.
// inTime is false if the limit has passed.
func (c *campaign) awaitRuns(t *term) (inTime bool) {
	defer t.cancel(errDrained)
	c.lease.Drain()
	t.beat.now() // so that the row says it
	if what := t.waitsFor(); len(what) > 0 {
		c.log.Info("the drain waits", "term", c.lease.Term(), "for", what, "limit", c.drainLimit)
	}
	limit := time.NewTimer(c.drainLimit)
	defer limit.Stop()
	select {
	case <-t.idle:
	case <-c.lease.Done():
	case <-limit.C:
		c.log.Warn("drain limit passed: cancelling running jobs", "term", c.lease.Term(), "limit",
			c.drainLimit, "runs", len(t.stuck()), "waits_for", t.waitsFor())
		return false
	}
	return true
}

// sayStuck tells the log and OnStuck of jobs that do not return. If there are
// none, only the ledger is waited for: that is no job's fault.
func (c *campaign) sayStuck(t *term) {
	stuck := t.stuck()
	for _, run := range stuck {
		c.log.Error("job does not return although it was cancelled", "job", run.Job, "tick",
			run.ScheduledAt, "term", run.Term)
	}
	if len(stuck) > 0 {
		c.stuck.call(stuck[0].Job, func() { c.onStuck(stuck) })
	}
}

// release gives a lease back, and keeps it if that fails.
func (c *campaign) release(lease *schedlock.Lease) {
	c.held, c.heldErr = nil, lease.Release(context.Background())
	if c.heldErr != nil {
		c.held = lease
		if c.ctx.Err() == nil {
			c.log.Warn("release failed; it is repeated while this process runs", "term",
				lease.Term(), "err", c.heldErr)
		}
	}
}

// awaitCallbacks waits until the app was told what it is to be told, but not for
// long.
func (c *campaign) awaitCallbacks() {
	end := time.Now().Add(callbackLimit)
	c.stuck.wait(time.Until(end))
	for _, l := range c.onRun {
		l.wait(time.Until(end))
	}
}

func isRevoked(lease *schedlock.Lease) bool {
	select {
	case <-lease.Revoked():
		return true
	default:
		return false
	}
}
