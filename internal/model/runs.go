package model

import "slices"

// A Run is one configuration: rules, and faults that may come in any order.
type Run struct {
	Name    string  // the model, and in one sentence what it is asked
	Want    Promise // what breaks, or Holds
	Missing string  // of a run that breaks: which rule is missing there, or which limit it is

	model interface{ search(Options) Result }
}

// Search explores everything that the run allows.
func (r Run) Search(o Options) Result { return r.model.search(o) }

// Runs are all of them.
func Runs() []Run {
	return slices.Concat(
		named("lease: ", leaseRuns()), named("terms: ", termRuns()),
		named("forgetful: ", forgetfulRuns()), named("superseded: ", byteRuns()),
		named("session: ", sessionRuns()))
}

func holds(name string, model interface{ search(Options) Result }) Run {
	return Run{Name: name, model: model}
}

func breaks(name string, p Promise, missing string, model interface{ search(Options) Result }) Run {
	return Run{Name: name, Want: p, Missing: missing, model: model}
}

func named(model string, runs []Run) []Run {
	for i := range runs {
		runs[i].Name = model + runs[i].Name
	}
	return runs
}
