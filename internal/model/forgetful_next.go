package model

import "fmt"

type forgetfulTurn struct {
	*forgetfulRules
	turn[forgetfulState]
}

func (c *forgetfulRules) next(s forgetfulState, emit func(forgetfulState, event)) {
	x := &forgetfulTurn{c, turn[forgetfulState]{s: s, emit: emit}}
	for i := range c.Replicas {
		switch s.Replicas[i].Phase {
		case standby:
			x.standby(i)
		case claiming:
			x.claiming(i)
		case judging:
			x.urgent = true
			x.inserts(s, i, s.Replicas[i].NewTerm, "its statement inserts the row")
		case committed:
			x.committed(i)
		case leading:
			x.leader(i)
		}
		x.ends(i)
		x.lateHeartbeat(i)
	}
	if !s.Calm {
		x.dies()
		x.crash()
		x.failOver()
		x.hands()
		x.faultsStop()
	}
	if s.Calm && x.urgent {
		return
	}
	x.emit(c.tick(s), event{ticks: true})
}

func (c *forgetfulRules) tick(n forgetfulState) forgetfulState {
	if n.Calm {
		n.CalmTicks++
	}
	for i := range n.Replicas {
		r := &n.Replicas[i]
		if r.Phase != standby {
			age(&r.Sent, shortDeadline)
		}
		if r.SeenVersion != 0 {
			age(&r.SeenAge, shortTTL)
		}
		r.Looked = false
	}
	return n
}

// standby: replica i looks, and claims if it may.
func (x *forgetfulTurn) standby(i int) {
	if calm := x.s.Calm; !calm || !x.s.Replicas[i].Looked {
		x.urgent = true
		n := x.s
		r, t := &n.Replicas[i], &n.Now
		r.Looked = calm
		sameServer := r.SeenTimeline == n.Timeline && r.SeenStart == n.Start
		if r.SeenVersion != t.Version || !sameServer && !x.WatchGoesOn {
			r.SeenVersion, r.SeenAge = t.Version, 0
			r.SeenTimeline, r.SeenStart = n.Timeline, n.Start
		}
		known := r.Term
		r.Term = max(r.Term, t.Term)
		claimed := false
		for _, ground := range x.grounds(&n, r, known) {
			claimed = x.claims(n, i, ground, "looks and claims: ") || claimed
		}
		if t.Ended {
			r.Read = t.Token
		}
		if !calm || !claimed {
			x.emit(n, by(i, "looks: "+t.String()))
		}
	}
	if x.Notifications && !x.s.Calm {
		x.claims(x.s, i, wasNotified, "claims: ")
	}
}

// grounds are all reasons that r has to claim, after a look. known is the highest term
// that it had read before.
func (x *forgetfulTurn) grounds(n *forgetfulState, r *forgetfulReplica, known int8) (all []why) {
	t := &n.Now
	if x.free(n, known, false) {
		all = append(all, lookedFree)
	}
	switch {
	case r.SeenAge >= shortTTL && t.Row:
		all = append(all, rowUnchanged)
	case r.SeenAge >= shortTTL:
		all = append(all, gapUnchanged)
	}
	if x.Proof && t.Row && !n.byteHeld(t.Token) {
		all = append(all, tokenFree)
	}
	if x.TakesReturned && t.Row && (x.ReturnedAnywhere || t.Timeline == n.Timeline) {
		if t.Token == r.Own {
			all = append(all, ownRow)
		}
		if t.Token == r.Read {
			all = append(all, knownEnd)
		}
	}
	if x.ByStamp && t.Row && t.Expired {
		all = append(all, stampOfTheRow)
	}
	return all
}

// claims sends a claim of replica i. It reports whether the search lets it.
func (x *forgetfulTurn) claims(n forgetfulState, i int, ground why, text string) bool {
	if n.Claims == 0 {
		return false
	}
	n.Claims--
	n.Tokens++
	r := &n.Replicas[i]
	r.Phase, r.Sent, r.Token, r.Byte = claiming, 0, n.Tokens, x.Proof
	r.Why, r.AtLeast, r.Timeline = ground, r.Term, n.Timeline
	r.Version, r.Expected, r.RowsToken = 0, 0, 0
	switch ground {
	case rowUnchanged, gapUnchanged, stampOfTheRow:
		r.Version = n.Now.Version
	case lookedFree:
		r.Expected = n.Now.Term
	case tokenFree, ownRow, knownEnd:
		r.RowsToken = n.Now.Token
	}
	r.forgetsWatch()
	text += ground.String()
	if x.Prompt {
		x.applied(n, i, text)
	} else {
		x.emit(n, by(i, text))
	}
	return true
}

// claiming: the claim of replica i arrives, or is lost.
func (x *forgetfulTurn) claiming(i int) {
	x.urgent = true
	x.applied(x.s, i, "its claim is applied")
	if !x.s.Calm {
		n := x.s
		r := &n.Replicas[i]
		r.standsBy(r.Own)
		x.emit(n, by(i, "gives up on its claim, which is lost"))
	}
}

// applied: the database runs the claim of replica i.
func (x *forgetfulTurn) applied(n forgetfulState, i int, text string) {
	r := &n.Replicas[i]
	if !x.passes(&n, r) {
		r.standsBy(r.Own)
		x.emit(n, by(i, text+": refused, "+n.Now.String()))
		return
	}
	term := max(n.Now.Term+1, r.AtLeast+1)
	if !x.TermsWithoutClock {
		term = max(term, n.ClockTerm)
	}
	if !x.ReadCommitted || r.Why != lookedFree && r.Why != wasNotified {
		x.inserts(n, i, term, text)
		return
	}
	for later := range int8(2) { // the clock may have moved on
		m := n
		r := &m.Replicas[i]
		r.Phase, r.NewTerm = judging, term+later
		r.Expected, r.RowsToken = n.Now.Term, n.Now.Token
		x.emit(m, by(i, fmt.Sprintf("%s: its snapshot says free, its term will be %d", text,
			r.NewTerm)))
	}
}

// inserts: the claim of replica i writes its row, if there is none by now.
func (x *forgetfulTurn) inserts(n forgetfulState, i int, term int8, text string) {
	r, t := &n.Replicas[i], &n.Now
	if r.Phase == judging {
		taken := t.Term != r.Expected || t.Token != r.RowsToken || !t.Ended
		if t.Row || t.Term == term || x.MarksSuccessor && taken { // a term is unique
			r.standsBy(r.Own)
			x.emit(n, by(i, text+": refused"))
			return
		}
		r.Why, r.Version, r.Expected, r.RowsToken, r.NewTerm = lookedFree, 0, 0, 0, 0
	}
	e := by(i, fmt.Sprintf("%s: the row is its own, term %d", text, term))
	if term <= n.HighestEver {
		e.text += fmt.Sprintf(", not above %d", n.HighestEver)
		e.broken = TermsRise
	}
	n.HighestEver = term
	n.Now = tables{Row: true, Token: r.Token, Term: term, Version: fresh, Timeline: n.Timeline}
	if !x.LazyAcquisition {
		n.Flushed = n.Now
	}
	r.Phase, r.Term = committed, max(r.Term, term)
	x.changed(&n)
	if x.AllSee {
		for j := range n.Replicas {
			n.Replicas[j].Term = term
		}
	}
	x.emit(n, e)
}

// changed: with AllSee every standby sees every change of the row.
func (x *forgetfulTurn) changed(n *forgetfulState) {
	for j := 0; j < x.Replicas && x.AllSee; j++ {
		if r := &n.Replicas[j]; r.Phase == standby {
			r.SeenVersion, r.SeenAge = 0, 0
		}
	}
}

func (x *forgetfulTurn) committed(i int) {
	x.urgent = true
	n := x.s
	r := &n.Replicas[i]
	if r.Sent >= shortDeadline {
		r.standsBy(r.Token)
		x.emit(n, by(i, "learns too late that it has the lock"))
		return
	}
	r.Phase, r.Own = leading, 0
	r.Why, r.Version, r.Expected, r.RowsToken = noClaim, 0, 0, 0
	r.AtLeast, r.Timeline, r.NewTerm = 0, 0, 0
	x.emit(n, by(i, "LEADS"))
}

func (x *forgetfulTurn) leader(i int) {
	if r := &x.s.Replicas[i]; r.Sent >= 1 {
		x.urgent = true
		n := x.s
		if r.Sent >= shortDeadline || !n.Now.Row || n.Now.Token != r.Token {
			n.Replicas[i].standsBy(r.Token)
			x.emit(n, by(i, "steps down: the deadline has passed, or its row is gone"))
		} else {
			n.Replicas[i].Sent = 0
			x.beats(&n, r.Answered)
			if x.HolderVouches {
				n.Replicas[i].Answered = n.Timeline
			}
			x.emit(n, by(i, "heartbeat"))
		}
	}
	if r := &x.s.Replicas[i]; x.LateHeartbeats && !x.s.Calm && r.Late == 0 {
		n := x.s
		n.Replicas[i].Late, n.Replicas[i].LateVouch = r.Token, r.Answered
		x.emit(n, by(i, "sends a heartbeat that will be late"))
	}
	if !x.s.Calm {
		n := x.s
		r := &n.Replicas[i]
		r.standsBy(r.Token)
		x.emit(n, by(i, "leads no more, and its jobs have returned"))
	}
}

// beats: a heartbeat is applied. vouch is on which timeline the one before was answered.
func (x *forgetfulTurn) beats(n *forgetfulState, vouch int8) {
	t := &n.Now
	t.Version, t.Expired = fresh, false
	switch {
	case x.ServerVouches:
		t.Timeline = n.Timeline
	case x.HolderVouches && vouch != 0:
		t.Timeline = vouch
	}
	if !x.LazyHeartbeat {
		n.Flushed = *t
	}
	x.changed(n)
}

// lateHeartbeat: one that replica i sent long ago is applied.
func (x *forgetfulTurn) lateHeartbeat(i int) {
	if x.s.Replicas[i].Late == 0 {
		return
	}
	n := x.s
	r := &n.Replicas[i]
	token, vouch := r.Late, r.LateVouch
	r.Late, r.LateVouch = 0, 0
	text := "its late heartbeat finds no row"
	if n.Now.Row && n.Now.Token == token {
		x.beats(&n, vouch)
		text = "its late heartbeat is applied"
	}
	x.emit(n, by(i, text))
}

// ends: replica i ends its own term. It releases the lock, or does so once more, or
// after it has stepped down.
func (x *forgetfulTurn) ends(i int) {
	r := &x.s.Replicas[i]
	own := r.Own
	if x.ReleaseFirst && r.Phase == leading {
		own = r.Token
	}
	its := own != 0 && x.s.Now.Token == own && !x.s.Now.Ended
	if !its || r.Phase != standby && !x.ReleaseFirst {
		return
	}
	x.urgent = true
	n := x.s
	t := &n.Now
	t.Row, t.Ended, t.TimelineOfTheEnd, t.Version = false, true, n.Timeline, fresh
	text := "deletes its row, writes the end"
	if x.LazyRelease {
		text += ", not flushed"
	} else {
		n.Flushed = n.Now
	}
	if r.Phase == standby {
		n.Replicas[i].Byte = false
	}
	x.emit(n, by(i, text))
}

func (x *forgetfulTurn) dies() {
	for i := 0; i < x.Replicas && x.s.Kills > 0; i++ {
		n := x.s
		n.Kills--
		n.Replicas[i] = forgetfulReplica{}
		x.emit(n, by(i, "IS KILLED, and starts again"))
	}
}

// loseStatements: those that a server runs are lost with it.
func (s *forgetfulState) loseStatements() {
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Phase == judging {
			r.standsBy(r.Own)
		}
	}
}

func (x *forgetfulTurn) crash() {
	if x.s.Crashes == 0 {
		return
	}
	if n := x.s; n.Flushed != n.Now {
		n.Flushed = n.Now
		x.emit(n, fault("the log is flushed, by anybody's commit"))
	}
	n := x.s
	n.Crashes--
	n.Start++
	n.Now, n.ClockTerm = n.Flushed, n.HighestEver+1
	n.loseStatements()
	text := "THE DATABASE SERVER CRASHES, and comes back: "
	if x.Proof {
		text = "THE MACHINE CRASHES with every process, and comes back: "
		n.Replicas = [maxReplicas]forgetfulReplica{}
	}
	x.emit(n, fault(text+n.Now.String()))
}

func (x *forgetfulTurn) failOver() {
	if x.s.FailOvers == 0 && x.s.Restores == 0 {
		return
	}
	if n := x.s; n.Replicated != n.Now {
		n.Replicated = n.Now
		x.emit(n, fault("all is replicated, or a backup is taken: "+n.Now.String()))
	}
	back := x.s
	back.Now, back.Flushed = back.Replicated, back.Replicated
	back.ClockTerm = back.HighestEver + 1
	if x.s.FailOvers > 0 {
		n := back
		n.FailOvers--
		n.Timeline++
		n.Start++
		n.loseStatements()
		x.emit(n, fault("FAIL-OVER to another timeline: "+n.Now.String()))
	}
	if x.s.Restores > 0 {
		n := back
		n.Restores--
		x.emit(n, fault("A BACKUP IS RESTORED: "+n.Now.String()))
	}
}

// hands: somebody deletes the row, or sets the clock.
func (x *forgetfulTurn) hands() {
	if !x.s.Now.Row {
		return
	}
	if n := x.s; n.Deletions > 0 {
		n.Deletions--
		n.Now.Row, n.Now.Version = false, fresh
		n.Flushed = n.Now
		x.emit(n, fault("THE ROW IS DELETED BY HAND"))
	}
	if n := x.s; n.Steps > 0 {
		n.Steps--
		n.Now.Expired = true
		x.emit(n, fault("THE DATABASE'S CLOCK STEPS FORWARD"))
	}
}

func (x *forgetfulTurn) faultsStop() {
	if x.LeadsWithin == 0 {
		return
	}
	n := x.s
	n.Calm, n.Claims = true, 8
	n.Crashes, n.FailOvers, n.Deletions, n.Restores, n.Steps, n.Kills = 0, 0, 0, 0, 0, 0
	x.emit(n, fault("FAULTS STOP"))
}
