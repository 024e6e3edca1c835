package model

// Tests of package sqlite show that the code has these rules. They name the runs by Y5 to
// Y15.
func byteRuns() []Run {
	const bearsID = "An end must bear the id of this lease file, or the byte counts."
	return []Run{
		// Every byte counts, or none whose term has an end.

		holds("every byte counts: a kill, an edit, an old copy moved over the file",
			byteRules{Rule: everyByteCounts, Kills: 1, Edits: 1, Moves: 1}),
		holds("an end is enough: a kill, an edit, the history trimmed",
			byteRules{Rule: anEndIsEnough, Kills: 1, Edits: 1, Trims: 1}),
		holds("an end is enough: an old copy moved over the file",
			byteRules{Rule: anEndIsEnough, Kills: 1, Moves: 1, Edits: 1}),
		holds("an end is enough: an old copy restored in place, and standbys that see all",
			byteRules{Rule: anEndIsEnough, Kills: 1, InPlace: 1, Edits: 1, AllSee: true}),
		breaks("an old copy restored in place between two looks", OneLeader,
			"None: it is a limit, whichever bytes count.",
			byteRules{Rule: everyByteCounts, InPlace: 1}),
		breaks("an end is enough, even for the byte of the row's token (Y5)", OneLeader,
			"The byte of the row's token must count.",
			byteRules{Rule: rowsOwnToo, Ends: 1}),
		breaks("an end is enough: the row deleted, and its end written by hand (Y6)", OneLeader,
			bearsID, byteRules{Rule: anEndIsEnough, Edits: 1, Ends: 1}),
		holds("every byte counts: the same",
			byteRules{Rule: everyByteCounts, Edits: 1, Ends: 1, Kills: 1}),
		holds("an end of any term but the newest is enough: the same",
			byteRules{Rule: notTheNewest, Edits: 1, Ends: 1, Kills: 1}),
		breaks("an end is enough: a copy that lived on elsewhere is moved back (Y7)",
			OneLeader, bearsID,
			byteRules{Rule: anEndIsEnough, Moves: 1, Elsewhere: 1}),
		breaks("an end of any term but the newest is enough: a copy that lived on is moved "+
			"back (Y8)", OneLeader, bearsID,
			byteRules{Rule: notTheNewest, Moves: 1, Elsewhere: 1}),
		holds("every byte counts: a copy that lived on is moved back",
			byteRules{Rule: everyByteCounts, Moves: 1, Elsewhere: 1, Kills: 1}),

		// The rule: the end bears the id of this lease file.

		holds("the rule: a copy that lived on is moved back, a kill",
			byteRules{Rule: endBesideFile, Moves: 1, Elsewhere: 1, Kills: 1}),
		holds("the rule: the same, and an edit",
			byteRules{Rule: endBesideFile, Moves: 1, Elsewhere: 1, Edits: 1, Kills: 1}),
		holds("the rule: an edit, an end by hand, a kill, the history trimmed",
			byteRules{Rule: endBesideFile, Trims: 1, Edits: 1, Ends: 1, Kills: 1}),
		holds("the rule: four claims, a kill, an edit, an old copy moved over the file",
			byteRules{Rule: endBesideFile, Claims: 4, Edits: 1, Kills: 1, Moves: 1}),
		holds("the rule: an end by hand, a copy that lived on is moved back",
			byteRules{Rule: endBesideFile, Ends: 1, Moves: 1, Elsewhere: 1, Kills: 1}),
		breaks("no byte of a known term counts, but the row's (Y12)", OneLeader,
			"Only the byte of a term with an end may not count.",
			byteRules{Rule: knownIsEnough, Edits: 1}),
		breaks("no byte counts but that of the row's token (Y13)", OneLeader,
			"A held byte of an unknown token must count.",
			byteRules{Rule: onlyTheRows, Edits: 1}),
		breaks("the rule, and a standby writes an end before its watch is complete (Y14)",
			OneLeader,
			"A successor may write the end only inside its take-over.",
			byteRules{Rule: endBesideFile, EndsEarly: true, Edits: 1}),
		breaks("the rule, and a holder writes the end before it stops (Y15)", OneLeader,
			"A holder must stop first, and write its end then.",
			byteRules{Rule: endBesideFile, EndsFirst: true, Edits: 1}),
		holds("every byte counts, and a holder writes the end before it stops",
			byteRules{Rule: everyByteCounts, EndsFirst: true, Edits: 1}),
		holds("the rule without the newest term, and both of these",
			byteRules{Rule: bothRules, EndsEarly: true, EndsFirst: true, Edits: 1, Kills: 1}),
		breaks("heartbeats do not find out that the file was replaced", OneLeader,
			"A holder must step down when its path leads to another file.",
			byteRules{Rule: endBesideFile, NoticesLess: true, Moves: 1}),

		// An old holder hangs, and today's is killed.

		breaks("every byte counts: an old holder hangs, and somebody leads at once", SomebodyLeads,
			"The byte of a superseded term must not count.",
			byteRules{Rule: everyByteCounts, Hangs: 1, Kills: 1, LeadsWithin: 1}),
		holds("the rule: an old holder hangs, and somebody leads at once",
			byteRules{Rule: endBesideFile, Hangs: 1, Kills: 1, LeadsWithin: 1}),
		breaks("the rule: the same, and its term is trimmed", SomebodyLeads,
			"None: nobody knows any more that the term has ended, and the TTL decides.",
			byteRules{Rule: endBesideFile, Hangs: 1, Kills: 1, Trims: 1, LeadsWithin: 1}),
		holds("the rule: the same within the TTL",
			byteRules{Rule: endBesideFile, Hangs: 1, Kills: 1, Trims: 1,
				LeadsWithin: shortTTL + 1}),
	}
}
