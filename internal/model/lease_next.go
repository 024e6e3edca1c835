package model

type leaseTurn struct {
	*leaseRules
	turn[leaseState]
}

func (c *leaseRules) next(s leaseState, emit func(leaseState, event)) {
	x := &leaseTurn{c, turn[leaseState]{s: s, emit: emit}}
	for i := range c.Replicas {
		x.replica(i)
	}
	x.clockSteps()
	x.edits()
	x.faultsStop()
	if s.Calm && x.urgent {
		return
	}
	if !s.Calm && s.MissedTicks > 0 {
		n := s
		n.MissedTicks--
		c.tick(&n, true)
		x.emit(n, event{who: nobody, text: "THE CLOCKS OF LEADERS MISS A TICK", ticks: true})
	}
	n := s
	c.tick(&n, false)
	x.emit(n, event{ticks: true})
}

// replica is all that replica i can do, or have done for it.
func (x *leaseTurn) replica(i int) {
	r, calm := &x.s.Replicas[i], x.s.Calm
	if r.Life == down && !calm {
		n := x.s
		n.Replicas[i] = leaseReplica{Life: up, Late: r.Late}
		x.emit(n, by(i, "restarts"))
	}
	if r.Late.Kind != noStatement {
		n := x.s
		q := r.Late
		if x.apply(&n, &q) {
			n.Replicas[i].Late = request{}
			x.emit(n, by(i, "late "+q.Kind.String()+" applied: "+q.outcome()))
		}
	}
	if r.Life == down {
		return
	}
	if r.Request.Kind != noStatement && !r.Request.Applied {
		n := x.s
		q := &n.Replicas[i].Request
		if x.apply(&n, q) {
			x.urgent = x.urgent || r.Life == up
			x.emit(n, by(i, q.Kind.String()+" applied: "+q.outcome()))
		}
	}
	if r.Life == hung {
		return
	}
	if r.Request.Kind != noStatement && r.Request.Applied {
		x.urgent = true
		x.answer(i)
	}
	x.loses(i)
	if r.Phase == leading {
		x.leader(i)
	}
	if int(x.s.Fencer) == i+1 {
		x.commits(i)
	}
	if r.Phase == standby && r.Request.Kind == noStatement {
		x.standby(i)
	}
	if !calm {
		x.dies(i)
	}
}

// loses: the request or its answer is lost, or replica i does not wait any longer.
func (x *leaseTurn) loses(i int) {
	r := &x.s.Replicas[i]
	calm := x.s.Calm
	mayLose := !calm || x.Settled && x.s.LateBeats > 0 && r.Request.Kind == Heartbeat
	if r.Request.Kind == noStatement || !mayLose {
		return
	}
	x.abandon(i, "gives up on its "+r.Request.Kind.String(), func(n *leaseState) {
		r := &n.Replicas[i]
		if r.Phase == claiming || r.Phase == stopping {
			r.Phase, r.Token, r.Sent, r.Byte = standby, 0, 0, false
		}
		if calm {
			n.LateBeats--
			r.Looked = true
		}
	})
}

// abandon: replica i drops its request and does something else. The request may be
// lost, or still be on its way.
func (x *leaseTurn) abandon(i int, text string, do func(n *leaseState)) {
	n := x.s
	q := n.Replicas[i].Request
	n.Replicas[i].Request = request{}
	lost := n
	do(&lost)
	x.emit(lost, by(i, text))
	if q.Kind == noStatement || q.Kind == look || q.Applied || x.Prompt {
		return
	}
	q.Sent = 0
	n.Replicas[i].Late = q
	do(&n)
	x.emit(n, by(i, text+" (its "+q.Kind.String()+" is still on its way)"))
}

func (r *leaseReplica) forgetsWatch() {
	r.SeenVersion, r.SeenAge, r.SeenToken, r.SeenProof = 0, 0, 0, false
}

func (r *leaseReplica) stepsDown() {
	r.Phase, r.Token, r.Sent, r.Byte = standby, 0, 0, false
	r.forgetsWatch()
}

func (x *leaseTurn) leader(i int) {
	r := &x.s.Replicas[i]
	if r.Sent >= x.Deadline {
		x.urgent = true
		if x.LateAnswerRevives && r.Request.Kind == Heartbeat {
			n := x.s
			n.Replicas[i].stepsDown()
			x.emit(n, by(i, "deadline passed: steps down, and still waits for its answer"))
		}
		x.abandon(i, "deadline passed: steps down", func(n *leaseState) {
			n.Replicas[i].stepsDown()
		})
	}
	idle := r.Request.Kind == noStatement && !(x.s.Calm && r.Looked)
	if idle && r.Sent >= 1 && r.Sent < x.Deadline {
		x.urgent = true
		n := x.s
		n.Replicas[i].Request = request{Kind: Heartbeat, Token: r.Token}
		x.emit(n, by(i, "sends a heartbeat"))
	}
	if !x.NoReleases && !x.s.Calm && r.Request.Kind != Release {
		x.abandon(i, "leads no more, sends its release", func(n *leaseState) {
			r := &n.Replicas[i]
			if !x.ReleaseFirst {
				r.Phase, r.Sent = stopping, 0
			}
			r.Byte = r.Byte && x.ByteUntilEnd
			r.Request = request{Kind: Release, Token: r.Token}
		})
	}
	if x.Byte != noByte && !r.Byte && x.ByteAfterCommit && x.free(&x.s, i, r.Token) {
		n := x.s
		n.Replicas[i].Byte = true
		x.emit(n, by(i, "locks its byte"))
	}
	if x.Fences && !x.s.Calm && x.s.Fencer == 0 && x.s.Token == r.Token {
		n := x.s
		n.Fencer, n.FenceToken = int8(i+1), r.Token
		x.emit(n, by(i, "opens a transaction, and its fence holds"))
	}
}

// commits: the fenced transaction of replica i ends, late or not.
func (x *leaseTurn) commits(i int) {
	x.urgent = true
	n := x.s
	n.Fencer, n.FenceToken = 0, 0
	e := by(i, "commits its fenced transaction")
	if x.s.Token != x.s.FenceToken {
		e.broken = FenceHolds
	}
	x.emit(n, e)
}

func (x *leaseTurn) standby(i int) {
	r, calm := &x.s.Replicas[i], x.s.Calm
	if !r.Probing && !(calm && r.Looked) {
		x.urgent = true
		n := x.s
		q := &n.Replicas[i].Request
		q.Kind = look
		n.Replicas[i].Looked = calm
		if x.WatchFromSending {
			x.emit(n, by(i, "sends a look"))
		} else { // a look changes nothing, so its sending needs no event
			x.apply(&n, q)
			x.emit(n, by(i, "looks: "+q.outcome()))
		}
	}
	if x.OneShot && !calm && !r.Probing {
		x.claims(x.s, i, atOnce, "sends a claim")
	}
	if x.Byte != noByte && r.SeenToken != 0 && r.SeenProof && !r.Probing &&
		!(calm && r.Probed) && x.free(&x.s, i, r.SeenToken) {
		x.urgent = true
		n := x.s
		n.Replicas[i].Probed = calm
		if x.ProbeTakesByte {
			n.Replicas[i].Probing = true
			x.emit(n, by(i, "probes: locks the byte"))
		} else {
			x.claims(n, i, byteIsFree, "probes: the byte is free; sends a claim")
		}
	}
	if r.Probing {
		x.urgent = true
		n := x.s
		n.Replicas[i].Probing = false
		x.emit(n, by(i, "ends its probe"))
		x.claims(n, i, byteIsFree, "ends its probe, sends a claim")
	}
}

// claims sends a claim of replica i, which waits for nothing. It reports whether it
// could.
func (x *leaseTurn) claims(n leaseState, i int, why ground, text string) bool {
	r := &n.Replicas[i]
	q := request{Kind: Claim, Token: fresh, Ground: why}
	watched := why == expiredStamp || why == watchedForLong
	if watched || why == leftover {
		q.Version = r.SeenVersion
	}
	if why == byteIsFree {
		q.Named = r.SeenToken
	}
	text += " (" + why.String() + ")"
	if x.Byte != noByte {
		r.Byte = false
		if !x.ByteAfterCommit {
			switch {
			case x.Byte == bytePerToken || x.free(&n, i, fresh):
				r.Byte = true
			case x.ByteOrNothing && !(x.WatchNeedsNoByte && watched):
				return false
			default:
				text += ", without the byte, which another has"
			}
		}
		r.Probing = false
		q.Provable = r.Byte || !x.RowTellsByte
	}
	r.Phase, r.Token, r.Request, r.Sent = claiming, fresh, q, 0
	x.emit(n, by(i, text))
	return true
}

// dies: replica i crashes, or hangs for ever.
func (x *leaseTurn) dies(i int) {
	if x.s.Crashes > 0 {
		x.abandon(i, "CRASHES", func(n *leaseState) {
			n.Crashes--
			if int(n.Fencer) == i+1 {
				n.Fencer, n.FenceToken = 0, 0
			}
			n.Replicas[i] = leaseReplica{Late: n.Replicas[i].Late}
		})
	}
	if x.s.Hangs > 0 {
		n := x.s
		n.Hangs--
		n.Replicas[i].Life = hung
		x.emit(n, by(i, "HANGS for ever"))
	}
}

func (x *leaseTurn) clockSteps() {
	if x.s.Calm && !x.Settled || x.s.Steps == 0 || x.s.Token == 0 {
		return
	}
	for _, step := range []struct {
		by   int8
		text string
	}{{20, "far forward"}, {2, "two ticks forward"}, {-2, "two ticks back"}, {-20, "far back"}} {
		if x.StepsBack && step.by > 0 {
			continue
		}
		n := x.s
		n.Steps--
		age := n.Stamp + step.by
		if n.Stamp == distantFuture {
			switch {
			case step.by < 0:
				continue
			case step.by == 20:
				age = x.TTL
			default:
				age = 0
			}
		}
		n.Stamp = max(distantFuture, min(age, x.TTL))
		x.emit(n, fault("THE DATABASE'S CLOCK STEPS "+step.text))
	}
}

// edits: somebody changes the row by hand, or restores a backup.
func (x *leaseTurn) edits() {
	fenced := x.s.Fencer != 0 && !x.FenceLocksNothing
	if x.s.Calm || x.s.Edits == 0 || x.s.Token == 0 || fenced {
		return
	}
	n := x.s
	n.Edits--
	n.Token, n.Stamp, n.Provable, n.Version = 0, 0, false, fresh
	x.emit(n, fault("THE ROW IS DELETED BY HAND"))
	if x.Restores {
		n.Open = 0
		x.emit(n, fault("A BACKUP FROM BEFORE THIS TERM IS RESTORED"))
	}
	if x.EditsEnd {
		n = x.s
		n.Edits--
		n.Open, n.Version = 0, fresh
		x.emit(n, fault("THE END OF THE ROW'S TERM IS WRITTEN BY HAND"))
	}
	if x.EditsToken {
		n = x.s
		n.Edits--
		n.Token, n.Version, n.Stamp = fresh, fresh, x.TTL
		x.emit(n, fault("THE ROW IS EDITED BY HAND: another token, an old stamp"))
	}
}

func (x *leaseTurn) faultsStop() {
	if x.LeadsWithin == 0 || x.s.Calm {
		return
	}
	for i := range x.s.Replicas {
		if x.s.Replicas[i].Life == up {
			n := x.s
			n.Calm = true
			n.Steps, n.Crashes, n.Edits, n.Hangs = 0, 0, 0, 0
			x.emit(n, fault("FAULTS STOP"))
			return
		}
	}
}

// tick moves every clock on by one tick. With missed, the clocks of leaders stand still.
func (c *leaseRules) tick(n *leaseState, missed bool) {
	if n.Token != 0 && n.Stamp != distantFuture && n.Stamp < c.TTL {
		n.Stamp++
	}
	if n.Calm && !c.Settled {
		n.CalmTicks++
	}
	for i := range c.Replicas {
		r := &n.Replicas[i]
		if r.Phase == leading && !missed {
			age(&r.Sent, c.Deadline)
		}
		if r.Life == up {
			r.Looked, r.Probed = false, false
		}
		if r.SeenVersion != 0 {
			age(&r.SeenAge, c.TTL)
		}
		switch q := &r.Request; {
		case q.Kind == Claim || q.Kind == Heartbeat:
			age(&q.Sent, c.Deadline)
		case q.Kind == look && c.WatchFromSending:
			age(&q.Sent, c.TTL)
		}
	}
}

// age counts a tick, up to an age from which on nothing depends on more.
func age(ticks *int8, most int8) {
	if *ticks < most {
		*ticks++
	}
}
