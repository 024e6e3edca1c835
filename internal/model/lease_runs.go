package model

import "cmp"

const (
	leaseTTL      int8 = 4
	leaseDeadline int8 = 3
	neverByStamp  int8 = 9 // a StampWatch that no row gets as old as
)

// byStamps are the rules that this protocol does not have: a row with an expired stamp is
// over once it has not changed for a tick.
func byStamps(c leaseRules) leaseRules {
	c.Replicas = cmp.Or(c.Replicas, 2)
	c.TTL, c.Deadline = cmp.Or(c.TTL, leaseTTL), cmp.Or(c.Deadline, leaseDeadline)
	c.StampWatch, c.FullWatch = cmp.Or(c.StampWatch, 1), cmp.Or(c.FullWatch, leaseTTL)
	return c
}

// byDeadline are weaker rules that are enough as long as clock rates agree: a row with an
// expired stamp is over once it has not changed for the renew deadline.
func byDeadline(c leaseRules) leaseRules {
	c.StampWatch = cmp.Or(c.StampWatch, leaseDeadline)
	c.OneShotWatches, c.OpenTermsWatched, c.RowTellsByte = true, true, true
	return byStamps(c)
}

// today are the rules of the protocol: only the watch of a whole TTL counts.
func today(c leaseRules) leaseRules {
	c.StampWatch = cmp.Or(c.StampWatch, neverByStamp)
	c.EndsTerm, c.ByteUntilEnd, c.OthersCount = true, true, true
	return byDeadline(c)
}

func three(c leaseRules) leaseRules {
	c.Replicas, c.Prompt, c.NoReleases = 3, true, true
	return c
}

func longer(c leaseRules) leaseRules {
	c.TTL, c.Deadline, c.FullWatch = 6, 4, 6
	return c
}

func leaseRuns() []Run {
	return []Run{
		// One clock that everybody trusts.

		holds("stamps of one clock decide, and statements are late",
			byStamps(leaseRules{NoReleases: true, NoWatch: true})),
		breaks("the same, and the deadline counts from the answer to a heartbeat", OneLeader,
			"The deadline must count from the sending, because an answer may be late.",
			byStamps(leaseRules{DeadlineFromAnswer: true, NoWatch: true, TTL: 8, Deadline: 6})),
		breaks("the same, and the lease counts from the answer to the claim", OneLeader,
			"The lease must count from the sending of the claim, because its answer may be late.",
			byStamps(leaseRules{LeaseFromAnswer: true})),
		holds("stamps of one clock decide, replicas release and crash",
			byStamps(leaseRules{Crashes: 2, NoWatch: true})),
		holds("stamps and a short watch, and no step of the clock",
			byStamps(leaseRules{Crashes: 1, FreeDeletes: true})),
		holds("stamps and a short watch, one-shot claims, and no step of the clock",
			byStamps(leaseRules{Crashes: 1, OneShot: true, FreeDeletes: true})),

		// The database's clock steps.

		breaks("stamps and a short watch, and the clock steps", OneLeader,
			"A watch must last for the TTL, because a stamp says nothing after a step.",
			byStamps(leaseRules{Steps: 1})),
		breaks("a claim of a free lock deletes a row with an expired stamp", OneLeader,
			"A claim of a free lock must not delete what it finds.",
			byStamps(leaseRules{Steps: 1, StampWatch: leaseDeadline, FreeDeletes: true})),
		breaks("a take-over does not ask for the version that was watched", OneLeader,
			"A take-over must swap on the token, term and beat that were watched.",
			byStamps(leaseRules{Steps: 1, StampWatch: leaseDeadline, TakesAnyVersion: true})),
		breaks("the same without a step of the clock", OneLeader,
			"A take-over must swap on the token, term and beat that were watched.",
			byStamps(leaseRules{StampWatch: leaseDeadline, TakesAnyVersion: true})),
		breaks("a one-shot claim deletes a row by its stamp", OneLeader,
			"A one-shot claim must watch too.",
			byStamps(leaseRules{Steps: 1, StampWatch: leaseDeadline, OneShot: true})),
		breaks("the first look counts as if the watch had lasted", OneLeader,
			"A watch must begin with the first look.",
			byStamps(leaseRules{Steps: 1, StampWatch: leaseDeadline, FirstLookIsOld: true})),
		breaks("a standby does not watch", OneLeader,
			"A standby must watch for the TTL.",
			byStamps(leaseRules{Steps: 1, NoWatch: true})),
		breaks("a watch counts from the sending of its first look", OneLeader,
			"A watch must count from the answer to its first look.",
			byStamps(leaseRules{StampWatch: leaseDeadline, WatchFromSending: true})),
		breaks("only the stamp tells one heartbeat from the next", OneLeader,
			"A heartbeat must change the beat, because two can bear one stamp.",
			byStamps(leaseRules{Steps: 2, StampWatch: leaseDeadline, StampForBeat: true})),
		holds("a watch as long as the deadline, and two steps of the clock",
			byDeadline(leaseRules{Steps: 2})),
		holds("a watch as long as the deadline, one-shot claims, a step of the clock",
			byDeadline(leaseRules{Steps: 1, OneShot: true})),
		holds("a watch as long as the deadline, a crash, a step of the clock",
			byDeadline(leaseRules{Steps: 1, Crashes: 1})),

		// How long the watch must be.

		breaks("the watch of an expired row is a tick shorter than the deadline", OneLeader,
			"A watch must not be shorter than the deadline.",
			byDeadline(leaseRules{Steps: 1, StampWatch: leaseDeadline - 1})),
		breaks("the watch of any row is a tick shorter than the deadline", OneLeader,
			"A watch must not be shorter than the deadline.",
			byDeadline(leaseRules{FullWatch: leaseDeadline - 1})),
		holds("no stamp counts, and the watch is as long as the deadline",
			byDeadline(leaseRules{Steps: 1, StampWatch: neverByStamp, FullWatch: leaseDeadline})),
		breaks("the watch is as long as the deadline, and the leader's clock misses a tick",
			OneLeader, "A watch must last for the TTL, because clock rates differ.",
			byDeadline(leaseRules{MissedTicks: 1, Steps: 1})),
		holds("no stamp counts, the watch lasts for the TTL, the leader's clock misses a tick",
			byDeadline(leaseRules{MissedTicks: 1, StampWatch: neverByStamp})),
		breaks("the same, and it misses two ticks, as a clock that stops in suspend", OneLeader,
			"Clock rates must not differ by more than what lies between deadline and TTL.",
			byDeadline(leaseRules{MissedTicks: 2, StampWatch: neverByStamp})),

		// A hand, a backup.

		breaks("the row is deleted by hand, and no row is a free lock", OneLeader,
			"No row must be no free lock as long as the newest term has no end.",
			byStamps(leaseRules{StampWatch: leaseDeadline, Edits: 1})),
		holds("the row is deleted or edited by hand, and the clock steps",
			byDeadline(leaseRules{Edits: 1, EditsToken: true, Steps: 1})),
		breaks("a backup from before the newest term is restored", OneLeader,
			"A term that the tables have forgotten must be remembered by whoever has read it.",
			byDeadline(leaseRules{Edits: 1, Restores: true})),

		// The end of a lease.

		holds("an answer after the deadline renews, if the replica has not stepped down",
			byDeadline(leaseRules{LateAnswerRenews: true})),
		holds("a late answer renews even after the step-down, without proof of death",
			byDeadline(leaseRules{LateAnswerRevives: true})),
		breaks("the release is sent before the replica stops", OneLeader,
			"A replica must stop first, and touch the database then.",
			byDeadline(leaseRules{ReleaseFirst: true})),
		holds("a heartbeat fails if the stamp has expired",
			byDeadline(leaseRules{BeatNeedsFresh: true, Steps: 1})),

		// The fence.

		holds("fenced transactions lock the row, which is also deleted by hand",
			byDeadline(leaseRules{Fences: true, Edits: 1, Steps: 1})),
		breaks("the fence is a check that locks nothing", FenceHolds,
			"The fence must lock the row until its transaction ends.",
			byDeadline(leaseRules{Fences: true, FenceLocksNothing: true})),

		// A step of the clock moves no leadership.

		breaks("A leads, stamps decide, and the clock steps twice", OneLeader,
			"A watch must last for the TTL, because a stamp says nothing after a step.",
			byStamps(leaseRules{Settled: true, Steps: 2})),
		breaks("the same, and a heartbeat is lost", OneLeader,
			"A watch must last for the TTL, because a stamp says nothing after a step.",
			byStamps(leaseRules{Settled: true, Steps: 2, LateBeats: 1})),
		holds("A leads, the watch is as long as the deadline, two steps, a heartbeat is lost",
			byDeadline(leaseRules{Settled: true, Steps: 2, LateBeats: 1})),
		breaks("A leads, the clock steps, and a heartbeat fails if the stamp has expired",
			ClocksMoveNothing, "A heartbeat must not ask for the stamp.",
			byDeadline(leaseRules{Settled: true, Steps: 1, BeatNeedsFresh: true})),

		// Somebody leads, once faults stop. LeadsWithin is the shortest time that holds.

		holds("somebody leads after a crash: stamps and a short watch",
			byStamps(leaseRules{LeadsWithin: 9, Crashes: 1})),
		holds("somebody leads after a step of the clock",
			byDeadline(leaseRules{LeadsWithin: 9, Steps: 1})),
		holds("somebody leads after a crash", byDeadline(leaseRules{LeadsWithin: 9, Crashes: 1})),
		holds("somebody leads after a replica hangs",
			byDeadline(leaseRules{LeadsWithin: 13, Hangs: 1})),
		holds("somebody leads after the row is deleted by hand",
			byDeadline(leaseRules{LeadsWithin: 9, Edits: 1})),
		breaks("a replica hangs inside a fenced transaction", SomebodyLeads,
			"The server must end a transaction that idles for the TTL.",
			byDeadline(leaseRules{LeadsWithin: 12, Hangs: 1, Fences: true, Prompt: true})),
		holds("somebody leads within a watch after a crash, if no statement is late",
			byDeadline(leaseRules{LeadsWithin: 4, Crashes: 1, Prompt: true})),
		holds("the same with a step of the clock, and no stamp counts",
			byDeadline(leaseRules{LeadsWithin: 4, Crashes: 1, Steps: 1, Prompt: true,
				StampWatch: neverByStamp})),
		holds("the same with a step of the clock",
			byDeadline(leaseRules{LeadsWithin: 4, Crashes: 1, Steps: 1, Prompt: true})),
		breaks("only stamps count, and the clock steps far back", SomebodyLeads,
			"A stamp in the future must not lengthen a watch.",
			byStamps(leaseRules{LeadsWithin: 12, Crashes: 1, Steps: 1, Prompt: true, NoWatch: true,
				StepsBack: true})),

		// One byte of the lease file for all tokens.

		breaks("one byte for all tokens, and a take-over by the watch leads without it", OneLeader,
			"A row must say that there is no byte if its holder has none.",
			byStamps(leaseRules{Byte: oneByte, ByteOrNothing: true, WatchNeedsNoByte: true})),
		breaks("one byte for all tokens, locked after the commit", OneLeader,
			"The byte must be locked before the row is committed.",
			byStamps(leaseRules{Byte: oneByte, ByteAfterCommit: true})),
		breaks("one byte for all tokens, and a probe is in the way", OneLeader,
			"A row must say that there is no byte if its holder has none.",
			byStamps(leaseRules{Byte: oneByte, ProbeTakesByte: true})),
		holds("one byte for all tokens, and nobody claims without it",
			byStamps(leaseRules{Byte: oneByte, ProbeTakesByte: true, ByteOrNothing: true})),
		holds("the same, and the byte is given back after the release",
			byStamps(leaseRules{Byte: oneByte, ProbeTakesByte: true, ByteOrNothing: true,
				ByteUntilEnd: true})),
		breaks("one byte for all tokens, nobody claims without it, and its holder hangs",
			SomebodyLeads, "Each token must have a byte of its own.",
			byStamps(leaseRules{Byte: oneByte, ByteOrNothing: true, Hangs: 1, LeadsWithin: 12,
				Prompt: true})),
		holds("one byte for all tokens, and the row says whether its holder has it",
			byStamps(leaseRules{Byte: oneByte, RowTellsByte: true, ProbeTakesByte: true,
				Prompt: true})),
		holds("the same, and the byte is locked after the commit",
			byStamps(leaseRules{Byte: oneByte, ByteAfterCommit: true, RowTellsByte: true})),
		holds("one byte for all tokens, the row says whether there is one, and its holder hangs",
			byStamps(leaseRules{Byte: oneByte, RowTellsByte: true, Hangs: 1, LeadsWithin: 8,
				Prompt: true})),

		// A byte for each token.

		holds("a byte for each token, locked before the commit, and a crash",
			byStamps(leaseRules{Byte: bytePerToken, ProbeTakesByte: true, Crashes: 1})),
		breaks("a byte for each token, locked after the commit", OneLeader,
			"The byte must be locked before the row is committed.",
			byStamps(leaseRules{Byte: bytePerToken, ByteAfterCommit: true})),
		holds("a byte for each token, given back after the release",
			byStamps(leaseRules{Byte: bytePerToken, ByteUntilEnd: true})),
		breaks("a take-over by proof does not ask for the token of the proof", OneLeader,
			"A take-over must swap on the token whose holder is proven dead.",
			byStamps(leaseRules{Byte: bytePerToken, TakesAnyToken: true})),
		breaks("a late answer renews even after the step-down", OneLeader,
			"A lease that has ended must have ended for good: its byte is free.",
			byStamps(leaseRules{Byte: bytePerToken, LateAnswerRevives: true})),
		holds("a byte for each token, and an answer after the deadline renews before the step-down",
			byStamps(leaseRules{Byte: bytePerToken, LateAnswerRenews: true})),
		holds("a byte for each token, and a step of the clock",
			byDeadline(leaseRules{Byte: bytePerToken, Steps: 1})),
		holds("a byte for each token, and the row is deleted by hand",
			byDeadline(leaseRules{Byte: bytePerToken, Edits: 1})),
		holds("a byte for each token, and somebody leads after its holder hangs",
			byDeadline(leaseRules{Byte: bytePerToken, Hangs: 1, LeadsWithin: 8, Prompt: true})),
		holds("a byte for each token, and somebody leads at once after a crash",
			byDeadline(leaseRules{Byte: bytePerToken, Crashes: 1, LeadsWithin: 1, Prompt: true})),

		// Three replicas.

		holds("three replicas, no statement is late", byDeadline(three(leaseRules{}))),
		holds("three replicas, no statement is late, a step of the clock",
			byDeadline(three(leaseRules{Steps: 1}))),
		holds("three replicas, no statement is late, a byte for each token",
			byDeadline(three(leaseRules{Byte: bytePerToken}))),

		// The rules of today.

		holds("today's rules, two steps, the leader's clock misses a tick",
			today(leaseRules{Steps: 2, MissedTicks: 1})),
		holds("today's rules, the row is deleted or edited, the leader's clock misses a tick",
			today(leaseRules{Edits: 1, EditsToken: true, MissedTicks: 1})),
		breaks("an expired row is watched for two heartbeats", OneLeader,
			"A watch must not be shorter than the deadline.",
			today(longer(leaseRules{StampWatch: 2, Steps: 1}))),
		holds("an expired row is watched for the deadline, and clock rates agree",
			today(longer(leaseRules{StampWatch: 4, Steps: 1}))),
		holds("today's rules, a byte for each token, a crash, the row is deleted by hand",
			today(leaseRules{Byte: bytePerToken, Crashes: 1, Edits: 1, Prompt: true})),
		holds("today's rules, and somebody leads after a crash and an edit by hand",
			today(leaseRules{LeadsWithin: 4, Crashes: 1, Edits: 1, Prompt: true})),
		holds("today's rules, three replicas, a byte for each token",
			today(three(leaseRules{Byte: bytePerToken}))),
		holds("today's rules, a byte for each token, the row is edited by hand",
			today(leaseRules{Byte: bytePerToken, Edits: 1, EditsToken: true, Prompt: true})),
		holds("today's rules, a byte for each token, the end of the row's term is written by hand",
			today(leaseRules{Byte: bytePerToken, Prompt: true, Edits: 1, EditsEnd: true,
				TakesLeftovers: true})),
		breaks("the same without a byte", OneLeader,
			"None: only the holder and its successor may write an end. "+
				"A byte shows that another did.",
			today(leaseRules{Prompt: true, Edits: 1, EditsEnd: true, TakesLeftovers: true})),
		breaks("an expired row is watched for the deadline, and the leader's clock misses a tick",
			OneLeader, "A watch must last for the TTL, because clock rates differ.",
			today(longer(leaseRules{StampWatch: 4, Steps: 1, MissedTicks: 1}))),
		holds("today's rules, a step, the leader's clock misses a tick",
			today(leaseRules{MissedTicks: 1, Steps: 1})),
		breaks("a backup is restored at the very moment of a take-over", OneLeader,
			"None: it is a limit that the documentation states.",
			today(leaseRules{Byte: bytePerToken, Edits: 1, Restores: true, Prompt: true})),
		holds("an expired row is watched for the TTL, and the leader's clock misses a tick",
			today(longer(leaseRules{StampWatch: 6, Steps: 1, MissedTicks: 1}))),
		breaks("the deadline is the TTL, and the leader's clock misses a tick", OneLeader,
			"The deadline must be shorter than the TTL, because clock rates differ.",
			today(leaseRules{TTL: 6, Deadline: 6, FullWatch: 6, StampWatch: 6, MissedTicks: 1})),
	}
}
