package model

func sessionRuns() []Run {
	const (
		halfTheGrace = "The news, the stop of the jobs and the drift must fit into half the grace."
		longSilence  = "A session must not end by silence before deadline and stop of the jobs, " +
			"less the grace."
	)
	return []Run{
		// The grace.

		holds("grace 4, news within 2", sessionRules{Grace: 4, News: 2, Ends: 2}),
		breaks("grace 4, news within 3", OneLeader, halfTheGrace,
			sessionRules{Grace: 4, News: 3, Ends: 2}),
		holds("grace 8, news within 2, jobs stop within 1, a tick of drift",
			sessionRules{Grace: 8, News: 2, JobsStop: 1, SlowA: 1, Ends: 2}),
		breaks("grace 8, news within 2, jobs stop within 1, two ticks of drift",
			OneLeader, halfTheGrace,
			sessionRules{Grace: 8, News: 2, JobsStop: 1, SlowA: 1, FastB: 1, Ends: 2}),
		holds("grace 8, news within 2, jobs stop within 2",
			sessionRules{Grace: 8, News: 2, JobsStop: 2, Ends: 2}),
		breaks("grace 8, news within 2, jobs stop within 3", OneLeader, halfTheGrace,
			sessionRules{Grace: 8, News: 2, JobsStop: 3, Ends: 2}),

		// What holder, standby and claim ask.

		breaks("the holder does not ask how old its last look is", OneLeader,
			"The leader check must fail when the last look is older than half the grace.",
			sessionRules{Grace: 8, News: 1, Ends: 2, LooksNever: true}),
		breaks("one look of the standby is enough", OneLeader,
			"The standby must see the backend gone for the whole grace.",
			sessionRules{Grace: 8, News: 1, Ends: 2, OneLook: true}),
		breaks("a new session restores trust without a heartbeat", OneLeader,
			"Only a heartbeat on the new session may restore trust: the row names the old one.",
			sessionRules{Grace: 8, News: 1, Ends: 2, TrustsAnew: true}),
		breaks("the claim does not ask for beat and backend", OneLeader,
			"The claim must swap on beat and backend.",
			sessionRules{Grace: 8, News: 1, Ends: 2, TakesAnyBeat: true}),
		breaks("a late answer on the old session restores trust", OneLeader,
			"Answers on an ended session must be ignored.",
			sessionRules{Grace: 8, News: 1, Ends: 2, OldBeatRevives: true}),

		// The server ends sessions that are silent, and the network fails.

		holds("the network fails, and no session ends by silence",
			sessionRules{Grace: 4, News: 2, Partings: 2}),
		breaks("the network fails, and a session ends after 1 tick of silence",
			OneLeader, longSilence,
			sessionRules{Grace: 4, News: 2, Partings: 2, Silence: 1}),
		holds("the network fails, and a session may be silent for the deadline less the grace",
			sessionRules{Grace: 4, News: 2, Partings: 2, Silence: sessionDeadline - 4}),
		breaks("the same, and jobs stop within 1", OneLeader, longSilence,
			sessionRules{Grace: 4, News: 1, JobsStop: 1, Partings: 2,
				Silence: sessionDeadline - 4}),
		holds("a session may be silent for the TTL, jobs stop within 1, a tick of drift",
			sessionRules{Grace: 6, News: 1, JobsStop: 1, SlowA: 1, Partings: 2, Ends: 1,
				Silence: sessionTTL}),
		breaks("a session may be silent for a tick less than the deadline less the grace",
			OneLeader,
			longSilence,
			sessionRules{Grace: 4, News: 2, Partings: 2, Silence: sessionDeadline - 5}),
		breaks("a session may be silent for the TTL, and heartbeats use another session", OneLeader,
			"Heartbeats must use the session that is the sign.",
			sessionRules{Grace: 4, News: 2, Partings: 2, Silence: sessionTTL, BeatElsewhere: true}),
		breaks("the server ends the session while it can't reach the holder", OneLeader,
			"None: it is a limit that the documentation states.",
			sessionRules{Grace: 4, News: 2, Partings: 1, Ends: 1, EndsInParting: true}),
	}
}
