package model

func termRuns() []Run {
	return []Run{
		{Name: "above the last term and not below the clock, which steps",
			model: &termRules{Steps: 3}},
		{Name: "the clock only, which steps", Want: TermsRise,
			Missing: "A term must be above the last one in the database.",
			model:   &termRules{Steps: 1, ClockOnly: true}},
		{Name: "above the last term, and the history goes back", Want: TermsRise,
			Missing: "A term must be above all that its replica has read.",
			model:   &termRules{Restores: 1}},
		{Name: "above the last term, the history goes back, and the clock steps",
			Want:    TermsRise,
			Missing: "A term must be above all that its replica has read.",
			model:   &termRules{Restores: 1, Steps: 1}},
		{Name: "above all that its replica has read, and replicas restart", Want: TermsRise,
			Missing: "None: a replica that has just started knows no lost term. " +
				"The clock saves it unless that steps back too.",
			model: &termRules{Restores: 1, Steps: 2, AboveKnown: true, Restarts: true}},
		{Name: "above all that its replica has read, which has read every term",
			model: &termRules{Restores: 1, Steps: 2, AboveKnown: true, AllSee: true}},
	}
}
