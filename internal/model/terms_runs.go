package model

func termRuns() []Run {
	const aboveRead = "A term must be above all that its replica has read."
	return []Run{
		holds("above the last term and not below the clock, which steps", termRules{Steps: 3}),
		breaks("the clock only, which steps", TermsRise,
			"A term must be above the last one in the database.",
			termRules{Steps: 1, ClockOnly: true}),
		breaks("above the last term, and the history goes back", TermsRise, aboveRead,
			termRules{Restores: 1}),
		breaks("above the last term, the history goes back, and the clock steps", TermsRise,
			aboveRead, termRules{Restores: 1, Steps: 1}),
		breaks("above all that its replica has read, and replicas restart", TermsRise,
			"None: a replica that has just started knows no lost term. "+
				"The clock saves it unless that steps back too.",
			termRules{Restores: 1, Steps: 2, AboveKnown: true, Restarts: true}),
		holds("above all that its replica has read, which has read every term",
			termRules{Restores: 1, Steps: 2, AboveKnown: true, AllSee: true}),
	}
}
