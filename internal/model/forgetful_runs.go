package model

func forgetfulRuns() []Run {
	var all []Run
	add := func(r Run, c forgetfulRules) {
		if c.Replicas == 0 {
			c.Replicas = 3
		}
		if c.Claims == 0 {
			c.Claims = 3
		}
		r.model = &c
		all = append(all, r)
	}
	holds := func(name string, c forgetfulRules) { add(Run{Name: name}, c) }
	breaks := func(name string, p Promise, missing string, c forgetfulRules) {
		add(Run{Name: name, Want: p, Missing: missing}, c)
	}

	// A release need not be flushed.

	holds("a release is not flushed, two crashes, terms do not follow the clock",
		forgetfulRules{Claims: 4, LazyRelease: true, Crashes: 2, TermsWithoutClock: true})
	holds("the same with proof of death, and the whole machine crashes",
		forgetfulRules{LazyRelease: true, Crashes: 2, TermsWithoutClock: true, Proof: true})
	holds("a release is not flushed, and who knows that a returned row has ended takes it",
		forgetfulRules{LazyRelease: true, Crashes: 2, TakesReturned: true,
			TermsWithoutClock: true})
	holds("the same with a crash and a fail-over",
		forgetfulRules{LazyRelease: true, Crashes: 1, FailOvers: 1, TakesReturned: true})
	breaks("who knows that a returned row has ended takes it on any timeline", OneLeader,
		"On another timeline the acquisition after that end may be lost.",
		forgetfulRules{LazyRelease: true, FailOvers: 1, TakesReturned: true,
			ReturnedAnywhere: true})
	breaks("an acquisition is not flushed", OneLeader, "An acquisition must be durable.",
		forgetfulRules{LazyRelease: true, LazyAcquisition: true, Crashes: 1})
	breaks("an acquisition is not flushed, terms do not follow the clock", TermsRise,
		"An acquisition must be durable.",
		forgetfulRules{LazyRelease: true, LazyAcquisition: true, Crashes: 1,
			TermsWithoutClock: true})
	breaks("a release is not flushed, and sent before the replica stops", OneLeader,
		"A replica must stop first, and touch the database then.",
		forgetfulRules{LazyRelease: true, ReleaseFirst: true, Crashes: 1})
	breaks("a claim of a free lock deletes what came back", OneLeader,
		"A claim of a free lock must not delete what it finds.",
		forgetfulRules{LazyRelease: true, FreeDeletes: true, Crashes: 1})
	breaks("heartbeats are not flushed, and a watch goes on over the crash", OneLeader,
		"A watch must begin anew after a restart of the server.",
		forgetfulRules{LazyRelease: true, LazyHeartbeat: true, WatchGoesOn: true, Crashes: 1})
	holds("heartbeats are not flushed, and a watch begins anew after the crash",
		forgetfulRules{LazyRelease: true, LazyHeartbeat: true, Crashes: 1})
	holds("a release is not flushed, and somebody leads within the TTL",
		forgetfulRules{Replicas: 2, LazyRelease: true, Crashes: 1, Kills: 1,
			LeadsWithin: shortTTL + 1})
	breaks("a release is not flushed, and somebody leads sooner", SomebodyLeads,
		"None: a row that a crash has brought back is watched for the TTL.",
		forgetfulRules{Replicas: 2, LazyRelease: true, Crashes: 1, Kills: 1,
			LeadsWithin: shortTTL - 1})
	holds("a release is not flushed, and by proof of death somebody leads at once",
		forgetfulRules{Replicas: 2, LazyRelease: true, Crashes: 1, Kills: 1, LeadsWithin: 1,
			Proof: true})

	// A claim by notification, which may be late, or forged.

	holds("notifications, a lazy release, a crash, a kill, the row deleted by hand",
		forgetfulRules{Notifications: true, LazyRelease: true, Crashes: 1, Deletions: 1,
			Kills: 1})
	holds("notifications, a lazy release, a fail-over",
		forgetfulRules{Notifications: true, LazyRelease: true, FailOvers: 1})
	breaks("notifications, and only a look compares the timeline", OneLeader,
		"The claim must compare the timeline, inside its statement.",
		forgetfulRules{Notifications: true, FailOvers: 1, TimelineByLook: true})
	breaks("notifications, and the timeline of the end is compared", OneLeader,
		"The claim must compare the timeline of the newest term's acquisition.",
		forgetfulRules{Notifications: true, FailOvers: 1, TimelineOfEnd: true})
	breaks("looks, and the timeline of the end is compared", OneLeader,
		"The claim must compare the timeline of the newest term's acquisition.",
		forgetfulRules{FailOvers: 1, TimelineOfEnd: true})
	breaks("looks, and only they compare the timeline", OneLeader,
		"The claim must compare the timeline, inside its statement.",
		forgetfulRules{FailOvers: 1, TimelineByLook: true})
	breaks("watches, and the claim does not compare the timeline", OneLeader,
		"The claim must compare the timeline of its watch, inside its statement.",
		forgetfulRules{FailOvers: 1, WatchAnyTimeline: true})
	breaks("an empty history is free on any timeline", OneLeader,
		"An empty history must have a timeline too: the migration writes one.",
		forgetfulRules{FailOvers: 1, EmptyIsFree: true})
	breaks("notifications, and the claim does not ask for the end of the newest term",
		OneLeader, "The claim must find that the newest term has an end.",
		forgetfulRules{Notifications: true, Deletions: 1, AsksNoEnd: true})
	breaks("notifications, and the claim deletes the row", OneLeader,
		"The claim must find no row: a notification proves nothing.",
		forgetfulRules{Notifications: true, AsksNoRow: true})
	holds("notifications, and any newest term will do that is not below one that was read",
		forgetfulRules{Notifications: true, LazyRelease: true, Crashes: 1, FailOvers: 1,
			AsksNoTerm: true})
	holds("notifications, a backup is restored, and all have read every term",
		forgetfulRules{Notifications: true, Restores: 1, AllSee: true, Prompt: true})
	breaks("the same, and a notification below a term that was read is believed", OneLeader,
		"A claim must not believe in a newest term below one that its replica has read.",
		forgetfulRules{Notifications: true, Restores: 1, AllSee: true, Prompt: true,
			ForgetsTerms: true})
	breaks("a claim is on its way while a backup is restored", OneLeader,
		"None: it is a limit that the documentation states.",
		forgetfulRules{Notifications: true, Restores: 1, AllSee: true})
	breaks("READ COMMITTED: the claim judges its snapshot, and inserts later", TermsRise,
		"The claim must mark the ended term as taken over, which only one can.",
		forgetfulRules{Notifications: true, ReadCommitted: true})
	holds("READ COMMITTED, and the claim marks the ended term as taken over",
		forgetfulRules{Notifications: true, LazyRelease: true, ReadCommitted: true,
			MarksSuccessor: true, Deletions: 1, Kills: 1, Crashes: 1})
	holds("the same with a fail-over",
		forgetfulRules{Notifications: true, LazyRelease: true, ReadCommitted: true,
			MarksSuccessor: true, FailOvers: 1})

	// A fail-over.

	holds("the TTL by the waiter's clock, a step of the database's clock, a fail-over",
		forgetfulRules{Steps: 1, FailOvers: 1})
	breaks("a row is over when its stamp says so", OneLeader,
		"A waiter must count by its own clock.",
		forgetfulRules{Steps: 1, ByStamp: true})
	breaks("a lock is free at once on another timeline", OneLeader,
		"On another timeline nothing is free before its TTL has passed.",
		forgetfulRules{FailOvers: 1, AnyTimeline: true})
	breaks("a watch goes on over a fail-over", OneLeader,
		"A watch must begin anew after a fail-over.",
		forgetfulRules{FailOvers: 1, WatchGoesOn: true})
	breaks("terms do not follow the clock, and a fail-over", TermsRise,
		"Terms must grow over a fail-over: by the clock, or by a jump for each timeline.",
		forgetfulRules{FailOvers: 1, TermsWithoutClock: true})
	holds("heartbeats are late, and vouch for the timeline on which the one before was answered",
		forgetfulRules{FailOvers: 2, LateHeartbeats: true, HolderVouches: true})
	breaks("heartbeats are late, and vouch for the timeline of the server that applies them",
		OneLeader, "A holder may vouch only for a timeline that has answered it.",
		forgetfulRules{FailOvers: 1, LateHeartbeats: true, ServerVouches: true})
	return all
}
