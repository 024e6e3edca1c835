package model

// byStamps are the rules that this protocol does not have: a row with an expired stamp is
// over once it has not changed for a tick.
func byStamps(change func(c *leaseRules)) *leaseRules {
	c := &leaseRules{Replicas: 2, TTL: 4, Deadline: 3, Heartbeat: 1, Watch: true, StampWatch: 1,
		FullWatch: 4, Releases: true}
	change(c)
	return c
}

// byDeadline are weaker rules that are enough as long as clock rates agree: a row with an
// expired stamp is over once it has not changed for the renew deadline.
func byDeadline(change func(c *leaseRules)) *leaseRules {
	return byStamps(func(c *leaseRules) {
		c.StampWatch = c.Deadline
		c.OneShotWatches, c.OpenTermsWatched, c.RowTellsByte = true, true, true
		change(c)
	})
}

// neverByStamp is a StampWatch that no row gets as old as.
const neverByStamp = 9

// today are the rules of the protocol: only the watch of a whole TTL counts.
func today(change func(c *leaseRules)) *leaseRules {
	return byDeadline(func(c *leaseRules) {
		c.StampWatch = neverByStamp
		c.EndsTerm, c.ByteUntilEnd, c.OthersCount = true, true, true
		change(c)
	})
}

func leaseRuns() []Run {
	var all []Run
	holds := func(name string, c *leaseRules) {
		all = append(all, Run{Name: name, model: c})
	}
	breaks := func(name string, p Promise, missing string, c *leaseRules) {
		all = append(all, Run{Name: name, Want: p, Missing: missing, model: c})
	}

	// One clock that everybody trusts.

	holds("stamps of one clock decide, and statements are late",
		byStamps(func(c *leaseRules) { c.Releases, c.Watch = false, false }))
	breaks("the same, and the deadline counts from the answer to a heartbeat", OneLeader,
		"The deadline must count from the sending, because an answer may be late.",
		byStamps(func(c *leaseRules) {
			c.DeadlineFromAnswer, c.Watch = true, false
			c.TTL, c.Deadline = 8, 6
		}))
	breaks("the same, and the lease counts from the answer to the claim", OneLeader,
		"The lease must count from the sending of the claim, because its answer may be late.",
		byStamps(func(c *leaseRules) { c.LeaseFromAnswer = true }))
	holds("stamps of one clock decide, replicas release and crash",
		byStamps(func(c *leaseRules) { c.Crashes, c.Watch = 2, false }))
	holds("stamps and a short watch, and no step of the clock",
		byStamps(func(c *leaseRules) { c.Crashes, c.FreeDeletes = 1, true }))
	holds("stamps and a short watch, one-shot claims, and no step of the clock",
		byStamps(func(c *leaseRules) { c.Crashes, c.OneShot, c.FreeDeletes = 1, true, true }))

	// The database's clock steps.

	breaks("stamps and a short watch, and the clock steps", OneLeader,
		"A watch must last for the TTL, because a stamp says nothing after a step.",
		byStamps(func(c *leaseRules) { c.Steps = 1 }))
	breaks("a claim of a free lock deletes a row with an expired stamp", OneLeader,
		"A claim of a free lock must not delete what it finds.",
		byStamps(func(c *leaseRules) {
			c.Steps, c.StampWatch, c.FreeDeletes = 1, c.Deadline, true
		}))
	breaks("a take-over does not ask for the version that was watched", OneLeader,
		"A take-over must swap on the token, term and beat that were watched.",
		byStamps(func(c *leaseRules) {
			c.Steps, c.StampWatch, c.TakesAnyVersion = 1, c.Deadline, true
		}))
	breaks("the same without a step of the clock", OneLeader,
		"A take-over must swap on the token, term and beat that were watched.",
		byStamps(func(c *leaseRules) { c.StampWatch, c.TakesAnyVersion = c.Deadline, true }))
	breaks("a one-shot claim deletes a row by its stamp", OneLeader,
		"A one-shot claim must watch too.",
		byStamps(func(c *leaseRules) { c.Steps, c.StampWatch, c.OneShot = 1, c.Deadline, true }))
	breaks("the first look counts as if the watch had lasted", OneLeader,
		"A watch must begin with the first look.",
		byStamps(func(c *leaseRules) {
			c.Steps, c.StampWatch, c.FirstLookIsOld = 1, c.Deadline, true
		}))
	breaks("a standby does not watch", OneLeader, "A standby must watch for the TTL.",
		byStamps(func(c *leaseRules) { c.Steps, c.Watch = 1, false }))
	breaks("a watch counts from the sending of its first look", OneLeader,
		"A watch must count from the answer to its first look.",
		byStamps(func(c *leaseRules) { c.StampWatch, c.WatchFromSending = c.Deadline, true }))
	breaks("only the stamp tells one heartbeat from the next", OneLeader,
		"A heartbeat must change the beat, because two can bear one stamp.",
		byStamps(func(c *leaseRules) {
			c.Steps, c.StampWatch, c.StampForBeat = 2, c.Deadline, true
		}))
	holds("a watch as long as the deadline, and two steps of the clock",
		byDeadline(func(c *leaseRules) { c.Steps = 2 }))
	holds("a watch as long as the deadline, one-shot claims, a step of the clock",
		byDeadline(func(c *leaseRules) { c.Steps, c.OneShot = 1, true }))
	holds("a watch as long as the deadline, a crash, a step of the clock",
		byDeadline(func(c *leaseRules) { c.Steps, c.Crashes = 1, 1 }))

	// How long the watch must be.

	breaks("the watch of an expired row is a tick shorter than the deadline", OneLeader,
		"A watch must not be shorter than the deadline.",
		byDeadline(func(c *leaseRules) { c.Steps, c.StampWatch = 1, c.Deadline-1 }))
	breaks("the watch of any row is a tick shorter than the deadline", OneLeader,
		"A watch must not be shorter than the deadline.",
		byDeadline(func(c *leaseRules) { c.FullWatch = c.Deadline - 1 }))
	holds("no stamp counts, and the watch is as long as the deadline",
		byDeadline(func(c *leaseRules) {
			c.Steps, c.StampWatch, c.FullWatch = 1, neverByStamp, c.Deadline
		}))
	breaks("the watch is as long as the deadline, and the leader's clock misses a tick",
		OneLeader, "A watch must last for the TTL, because clock rates differ.",
		byDeadline(func(c *leaseRules) { c.MissedTicks, c.Steps = 1, 1 }))
	holds("no stamp counts, the watch lasts for the TTL, the leader's clock misses a tick",
		byDeadline(func(c *leaseRules) { c.MissedTicks, c.StampWatch = 1, neverByStamp }))
	breaks("the same, and it misses two ticks, as a clock that stops in suspend", OneLeader,
		"Clock rates must not differ by more than what lies between deadline and TTL.",
		byDeadline(func(c *leaseRules) { c.MissedTicks, c.StampWatch = 2, neverByStamp }))

	// A hand, a backup.

	breaks("the row is deleted by hand, and no row is a free lock", OneLeader,
		"No row must be no free lock as long as the newest term has no end.",
		byStamps(func(c *leaseRules) { c.StampWatch, c.Edits = c.Deadline, 1 }))
	holds("the row is deleted or edited by hand, and the clock steps",
		byDeadline(func(c *leaseRules) { c.Edits, c.EditsToken, c.Steps = 1, true, 1 }))
	breaks("a backup from before the newest term is restored", OneLeader,
		"A term that the tables have forgotten must be remembered by whoever has read it.",
		byDeadline(func(c *leaseRules) { c.Edits, c.Restores = 1, true }))

	// The end of a lease.

	holds("an answer after the deadline renews, if the replica has not stepped down",
		byDeadline(func(c *leaseRules) { c.LateAnswerRenews = true }))
	holds("a late answer renews even after the step-down, without proof of death",
		byDeadline(func(c *leaseRules) { c.LateAnswerRevives = true }))
	breaks("the release is sent before the replica stops", OneLeader,
		"A replica must stop first, and touch the database then.",
		byDeadline(func(c *leaseRules) { c.ReleaseFirst = true }))
	holds("a heartbeat fails if the stamp has expired",
		byDeadline(func(c *leaseRules) { c.BeatNeedsFresh, c.Steps = true, 1 }))

	// The fence.

	holds("fenced transactions lock the row, which is also deleted by hand",
		byDeadline(func(c *leaseRules) { c.Fences, c.Edits, c.Steps = true, 1, 1 }))
	breaks("the fence is a check that locks nothing", FenceHolds,
		"The fence must lock the row until its transaction ends.",
		byDeadline(func(c *leaseRules) { c.Fences, c.FenceLocksNothing = true, true }))

	// A step of the clock moves no leadership.

	breaks("A leads, stamps decide, and the clock steps twice", OneLeader,
		"A watch must last for the TTL, because a stamp says nothing after a step.",
		byStamps(func(c *leaseRules) { c.Settled, c.Steps = true, 2 }))
	breaks("the same, and a heartbeat is lost", OneLeader,
		"A watch must last for the TTL, because a stamp says nothing after a step.",
		byStamps(func(c *leaseRules) { c.Settled, c.Steps, c.LateBeats = true, 2, 1 }))
	holds("A leads, the watch is as long as the deadline, two steps, a heartbeat is lost",
		byDeadline(func(c *leaseRules) { c.Settled, c.Steps, c.LateBeats = true, 2, 1 }))
	breaks("A leads, the clock steps, and a heartbeat fails if the stamp has expired",
		ClocksMoveNothing, "A heartbeat must not ask for the stamp.",
		byDeadline(func(c *leaseRules) { c.Settled, c.Steps, c.BeatNeedsFresh = true, 1, true }))

	// Somebody leads, once faults stop. LeadsWithin is the shortest time that holds.

	holds("somebody leads after a crash: stamps and a short watch",
		byStamps(func(c *leaseRules) { c.LeadsWithin, c.Crashes = 9, 1 }))
	holds("somebody leads after a step of the clock",
		byDeadline(func(c *leaseRules) { c.LeadsWithin, c.Steps = 9, 1 }))
	holds("somebody leads after a crash",
		byDeadline(func(c *leaseRules) { c.LeadsWithin, c.Crashes = 9, 1 }))
	holds("somebody leads after a replica hangs",
		byDeadline(func(c *leaseRules) { c.LeadsWithin, c.Hangs = 13, 1 }))
	holds("somebody leads after the row is deleted by hand",
		byDeadline(func(c *leaseRules) { c.LeadsWithin, c.Edits = 9, 1 }))
	breaks("a replica hangs inside a fenced transaction", SomebodyLeads,
		"The server must end a transaction that idles for the TTL.",
		byDeadline(func(c *leaseRules) {
			c.LeadsWithin, c.Hangs, c.Fences, c.Prompt = 12, 1, true, true
		}))
	holds("somebody leads within a watch after a crash, if no statement is late",
		byDeadline(func(c *leaseRules) { c.LeadsWithin, c.Crashes, c.Prompt = 4, 1, true }))
	holds("the same with a step of the clock, and no stamp counts",
		byDeadline(func(c *leaseRules) {
			c.LeadsWithin, c.Crashes, c.Steps, c.Prompt = 4, 1, 1, true
			c.StampWatch = neverByStamp
		}))
	holds("the same with a step of the clock",
		byDeadline(func(c *leaseRules) {
			c.LeadsWithin, c.Crashes, c.Steps, c.Prompt = 4, 1, 1, true
		}))
	breaks("only stamps count, and the clock steps far back", SomebodyLeads,
		"A stamp in the future must not lengthen a watch.",
		byStamps(func(c *leaseRules) {
			c.LeadsWithin, c.Crashes, c.Steps, c.Prompt = 12, 1, 1, true
			c.Watch, c.StepsBack = false, true
		}))

	// One byte of the lease file for all tokens.

	breaks("one byte for all tokens, and a take-over by the watch leads without it", OneLeader,
		"A row must say that there is no byte if its holder has none.",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ByteOrNothing, c.WatchNeedsNoByte = oneByte, true, true
		}))
	breaks("one byte for all tokens, locked after the commit", OneLeader,
		"The byte must be locked before the row is committed.",
		byStamps(func(c *leaseRules) { c.Byte, c.ByteAfterCommit = oneByte, true }))
	breaks("one byte for all tokens, and a probe is in the way", OneLeader,
		"A row must say that there is no byte if its holder has none.",
		byStamps(func(c *leaseRules) { c.Byte, c.ProbeTakesByte = oneByte, true }))
	holds("one byte for all tokens, and nobody claims without it",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ProbeTakesByte, c.ByteOrNothing = oneByte, true, true
		}))
	holds("the same, and the byte is given back after the release",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ProbeTakesByte, c.ByteOrNothing, c.ByteUntilEnd = oneByte, true, true, true
		}))
	breaks("one byte for all tokens, nobody claims without it, and its holder hangs",
		SomebodyLeads, "Each token must have a byte of its own.",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ByteOrNothing = oneByte, true
			c.Hangs, c.LeadsWithin, c.Prompt = 1, 12, true
		}))
	holds("one byte for all tokens, and the row says whether its holder has it",
		byStamps(func(c *leaseRules) {
			c.Byte, c.RowTellsByte, c.ProbeTakesByte, c.Prompt = oneByte, true, true, true
		}))
	holds("the same, and the byte is locked after the commit",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ByteAfterCommit, c.RowTellsByte = oneByte, true, true
		}))
	holds("one byte for all tokens, the row says whether there is one, and its holder hangs",
		byStamps(func(c *leaseRules) {
			c.Byte, c.RowTellsByte = oneByte, true
			c.Hangs, c.LeadsWithin, c.Prompt = 1, 8, true
		}))

	// A byte for each token.

	holds("a byte for each token, locked before the commit, and a crash",
		byStamps(func(c *leaseRules) {
			c.Byte, c.ProbeTakesByte, c.Crashes = bytePerToken, true, 1
		}))
	breaks("a byte for each token, locked after the commit", OneLeader,
		"The byte must be locked before the row is committed.",
		byStamps(func(c *leaseRules) { c.Byte, c.ByteAfterCommit = bytePerToken, true }))
	holds("a byte for each token, given back after the release",
		byStamps(func(c *leaseRules) { c.Byte, c.ByteUntilEnd = bytePerToken, true }))
	breaks("a take-over by proof does not ask for the token of the proof", OneLeader,
		"A take-over must swap on the token whose holder is proven dead.",
		byStamps(func(c *leaseRules) { c.Byte, c.TakesAnyToken = bytePerToken, true }))
	breaks("a late answer renews even after the step-down", OneLeader,
		"A lease that has ended must have ended for good: its byte is free.",
		byStamps(func(c *leaseRules) { c.Byte, c.LateAnswerRevives = bytePerToken, true }))
	holds("a byte for each token, and an answer after the deadline renews before the step-down",
		byStamps(func(c *leaseRules) { c.Byte, c.LateAnswerRenews = bytePerToken, true }))
	holds("a byte for each token, and a step of the clock",
		byDeadline(func(c *leaseRules) { c.Byte, c.Steps = bytePerToken, 1 }))
	holds("a byte for each token, and the row is deleted by hand",
		byDeadline(func(c *leaseRules) { c.Byte, c.Edits = bytePerToken, 1 }))
	holds("a byte for each token, and somebody leads after its holder hangs",
		byDeadline(func(c *leaseRules) {
			c.Byte, c.Hangs, c.LeadsWithin, c.Prompt = bytePerToken, 1, 8, true
		}))
	holds("a byte for each token, and somebody leads at once after a crash",
		byDeadline(func(c *leaseRules) {
			c.Byte, c.Crashes, c.LeadsWithin, c.Prompt = bytePerToken, 1, 1, true
		}))

	// Three replicas.

	three := func(c *leaseRules) { c.Replicas, c.Prompt, c.Releases = 3, true, false }
	holds("three replicas, no statement is late", byDeadline(three))
	holds("three replicas, no statement is late, a step of the clock",
		byDeadline(func(c *leaseRules) { three(c); c.Steps = 1 }))
	holds("three replicas, no statement is late, a byte for each token",
		byDeadline(func(c *leaseRules) { three(c); c.Byte = bytePerToken }))

	// The rules of today.

	holds("today's rules, two steps, the leader's clock misses a tick",
		today(func(c *leaseRules) { c.Steps, c.MissedTicks = 2, 1 }))
	holds("today's rules, the row is deleted or edited, the leader's clock misses a tick",
		today(func(c *leaseRules) { c.Edits, c.EditsToken, c.MissedTicks = 1, true, 1 }))
	longer := func(c *leaseRules) { c.TTL, c.Deadline, c.FullWatch = 6, 4, 6 }
	breaks("an expired row is watched for two heartbeats", OneLeader,
		"A watch must not be shorter than the deadline.",
		today(func(c *leaseRules) { longer(c); c.StampWatch, c.Steps = 2, 1 }))
	holds("an expired row is watched for the deadline, and clock rates agree",
		today(func(c *leaseRules) { longer(c); c.StampWatch, c.Steps = 4, 1 }))
	holds("today's rules, a byte for each token, a crash, the row is deleted by hand",
		today(func(c *leaseRules) {
			c.Byte, c.Crashes, c.Edits, c.Prompt = bytePerToken, 1, 1, true
		}))
	holds("today's rules, and somebody leads after a crash and an edit by hand",
		today(func(c *leaseRules) {
			c.LeadsWithin, c.Crashes, c.Edits, c.Prompt = 4, 1, 1, true
		}))
	holds("today's rules, three replicas, a byte for each token",
		today(func(c *leaseRules) { three(c); c.Byte = bytePerToken }))
	holds("today's rules, a byte for each token, the row is edited by hand",
		today(func(c *leaseRules) {
			c.Byte, c.Edits, c.EditsToken, c.Prompt = bytePerToken, 1, true, true
		}))
	holds("today's rules, a byte for each token, the end of the row's term is written by hand",
		today(func(c *leaseRules) {
			c.Byte, c.Prompt = bytePerToken, true
			c.Edits, c.EditsEnd, c.TakesLeftovers = 1, true, true
		}))
	breaks("the same without a byte", OneLeader,
		"None: only the holder and its successor may write an end. A byte shows that another did.",
		today(func(c *leaseRules) {
			c.Prompt = true
			c.Edits, c.EditsEnd, c.TakesLeftovers = 1, true, true
		}))
	breaks("an expired row is watched for the deadline, and the leader's clock misses a tick",
		OneLeader, "A watch must last for the TTL, because clock rates differ.",
		today(func(c *leaseRules) {
			longer(c)
			c.StampWatch, c.Steps, c.MissedTicks = 4, 1, 1
		}))
	holds("today's rules, a step, the leader's clock misses a tick",
		today(func(c *leaseRules) { c.MissedTicks, c.Steps = 1, 1 }))
	breaks("a backup is restored at the very moment of a take-over", OneLeader,
		"None: it is a limit that the documentation states.",
		today(func(c *leaseRules) {
			c.Byte, c.Edits, c.Restores, c.Prompt = bytePerToken, 1, true, true
		}))
	holds("an expired row is watched for the TTL, and the leader's clock misses a tick",
		today(func(c *leaseRules) {
			longer(c)
			c.StampWatch, c.Steps, c.MissedTicks = 6, 1, 1
		}))
	breaks("the deadline is the TTL, and the leader's clock misses a tick", OneLeader,
		"The deadline must be shorter than the TTL, because clock rates differ.",
		today(func(c *leaseRules) {
			c.TTL, c.Deadline, c.FullWatch, c.StampWatch, c.MissedTicks = 6, 6, 6, 6, 1
		}))
	return all
}
