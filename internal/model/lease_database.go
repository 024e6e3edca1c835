package model

// What the database does with a statement, and what a replica does with its answer.

// apply runs q. It reports whether it could: a statement waits for a fence that has the
// row locked.
func (c *leaseRules) apply(s *leaseState, q *request) bool {
	ours := s.Token != 0 && s.Token == q.Token
	locked := s.Fencer != 0 && !c.FenceLocksNothing
	expired := s.Stamp >= c.TTL
	switch q.Kind {
	case look:
		q.Saw = seen{Version: s.Version, Row: s.Token != 0, Expired: s.Token != 0 && expired,
			Open: s.Token == 0 && s.Open != 0}
		if c.Byte != noByte {
			q.Saw.Token, q.Saw.Provable = s.Token, s.Provable
		}
		q.Saw.Leftover = c.TakesLeftovers && s.Token != 0 && s.Open == 0
		q.OK = true
	case Heartbeat:
		if ours && !(c.BeatNeedsFresh && expired) {
			if !(c.StampForBeat && s.Stamp == 0) {
				s.Version = fresh
			}
			s.Stamp, q.OK = 0, true
		}
	case Release:
		switch {
		case ours && locked:
			return false
		case ours:
			s.Token, s.Stamp, s.Provable, s.Open, s.Version = 0, 0, false, 0, fresh
		case c.EndsTerm && s.Token == 0 && s.Open == q.Token:
			s.Open, s.Version = 0, fresh
		}
		q.OK = true
	case Claim:
		succeeds := c.passes(s, q)
		if succeeds && s.Token != 0 && locked {
			return false
		}
		if c.Byte == bytePerToken && c.OthersCount && c.otherByteHeld(s, q.Token) &&
			(q.Ground == noRow || q.Ground == byteIsFree || q.Ground == leftover) {
			succeeds = false // the claim looks once more, inside its transaction
		}
		if succeeds {
			s.Token, s.Open, s.Version, s.Stamp, s.Provable = q.Token, q.Token, fresh, 0, q.Provable
			q.OK = true
		}
	}
	q.Applied = true
	return true
}

// passes reports whether the row is as the claim expects it.
func (c *leaseRules) passes(s *leaseState, q *request) bool {
	expired := s.Stamp >= c.TTL
	asWatched := q.Version == s.Version
	if s.Token == 0 {
		return !c.OpenTermsWatched || s.Open == 0 || q.Ground == watchedForLong && asWatched ||
			q.Ground == byteIsFree && q.Named == s.Open
	}
	switch q.Ground {
	case noRow:
		return c.FreeDeletes && expired
	case atOnce:
		return !c.OneShotWatches && expired
	case expiredStamp:
		return expired && (c.TakesAnyVersion || c.NoWatch || asWatched)
	case watchedForLong:
		return c.TakesAnyVersion || asWatched
	case leftover:
		return asWatched
	case byteIsFree:
		return c.TakesAnyToken || q.Named == s.Token
	}
	return true
}

// free reports whether replica i could lock the byte of a token.
func (c *leaseRules) free(s *leaseState, i int, token int8) bool {
	for j := range c.Replicas {
		r := &s.Replicas[j]
		if j == i || r.Life == down {
			continue
		}
		inTheWay := r.Probing && (c.Byte == oneByte || r.SeenToken == token)
		if r.Byte || inTheWay {
			return false
		}
	}
	return true
}

// otherByteHeld reports whether a replica holds the byte of another token.
func (c *leaseRules) otherByteHeld(s *leaseState, token int8) bool {
	for j := range c.Replicas {
		r := &s.Replicas[j]
		if r.Life != down && r.Byte && r.Token != token && r.Request.Token != token {
			return true
		}
	}
	return false
}

// outcome is what a trace says of an applied statement.
func (q *request) outcome() string {
	switch {
	case q.Kind == look && q.Saw.Open:
		return "no row, and the newest term has no end"
	case q.Kind == look && !q.Saw.Row:
		return "no row"
	case q.Kind == look && q.Saw.Expired:
		return "a row with an expired stamp"
	case q.Kind == look:
		return "a row"
	case q.OK:
		return "ok"
	case q.Kind == Claim:
		return "held"
	}
	return "no such row"
}

// answer: replica i gets the answer to its request.
func (x *leaseTurn) answer(i int) {
	n := x.s
	r := &n.Replicas[i]
	q := r.Request
	r.Request = request{}
	switch q.Kind {
	case look:
		x.looked(n, i, q)
	case Claim:
		x.claimed(n, i, q)
	case Heartbeat:
		x.renewed(n, i, q)
	case Release:
		r.stepsDown()
		x.emit(n, by(i, "learns that its release was applied"))
	}
}

// looked: a standby judges what it has seen.
func (x *leaseTurn) looked(n leaseState, i int, q request) {
	r := &n.Replicas[i]
	if q.Saw.Version != r.SeenVersion {
		first := r.SeenVersion == 0
		r.SeenVersion, r.SeenAge = q.Saw.Version, 0
		if x.WatchFromSending {
			r.SeenAge = q.Sent
		}
		if first && x.FirstLookIsOld {
			r.SeenAge = x.StampWatch
		}
	}
	r.SeenToken, r.SeenProof = q.Saw.Token, q.Saw.Provable
	claimed := false
	claims := func(why ground) {
		if x.claims(n, i, why, "knows what it saw, sends a claim") {
			claimed = true
		}
	}
	someoneMayLead := x.Byte == bytePerToken && x.OthersCount && !x.free(&n, i, 0)
	switch {
	case !q.Saw.Row && someoneMayLead:
		// A held byte: somebody may lead although the row is gone.
	case !q.Saw.Row && !(x.OpenTermsWatched && q.Saw.Open):
		claims(noRow)
	case !q.Saw.Row:
		if r.SeenAge >= x.FullWatch {
			claims(watchedForLong)
		}
	default:
		if q.Saw.Expired && (x.NoWatch || r.SeenAge >= x.StampWatch) {
			claims(expiredStamp)
		}
		if q.Saw.Leftover && !someoneMayLead {
			claims(leftover)
		}
		if !x.NoWatch && r.SeenAge >= x.FullWatch {
			claims(watchedForLong)
		}
	}
	if !claimed || !x.s.Calm { // once faults have stopped, a standby claims if it can
		x.emit(n, by(i, "knows what it saw"))
	}
}

func (x *leaseTurn) claimed(n leaseState, i int, q request) {
	r := &n.Replicas[i]
	sent := q.Sent
	if x.LeaseFromAnswer {
		sent = 0
	}
	switch {
	case !q.OK:
		r.Phase, r.Token, r.Byte = standby, 0, false
		x.emit(n, by(i, "learns that the lock is held"))
	case sent >= x.Deadline:
		r.stepsDown()
		x.emit(n, by(i, "learns too late that it has the lock: does not lead"))
	default:
		r.forgetsWatch()
		r.Phase, r.Sent = leading, sent
		x.emit(n, by(i, "LEADS"))
	}
}

func (x *leaseTurn) renewed(n leaseState, i int, q request) {
	r := &n.Replicas[i]
	switch {
	case r.Phase != leading: // only with LateAnswerRevives
		if q.OK && q.Sent < x.Deadline && r.Phase == standby {
			r.Phase, r.Token, r.Sent = leading, q.Token, q.Sent
			x.emit(n, by(i, "REVIVES its lease by a late answer"))
			return
		}
		x.emit(n, by(i, "ignores a late answer"))
	case !q.OK && x.EndsTerm:
		r.Phase, r.Sent = stopping, 0
		r.Request = request{Kind: Release, Token: r.Token}
		x.emit(n, by(i, "learns that its row is gone: steps down, writes the end of its term"))
	case !q.OK:
		r.stepsDown()
		x.emit(n, by(i, "learns that its row is gone: steps down"))
	case r.Sent >= x.Deadline && !x.LateAnswerRenews:
		r.stepsDown()
		x.emit(n, by(i, "learns too late of its heartbeat: steps down"))
	default:
		sent := q.Sent
		if x.DeadlineFromAnswer {
			sent = 0
		}
		r.Sent = min(r.Sent, sent)
		x.emit(n, by(i, "learns that its heartbeat was applied"))
	}
}
