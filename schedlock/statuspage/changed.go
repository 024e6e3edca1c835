package statuspage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	// After so long everything is read anew: what a hand has changed, or a replica has deleted, is
	// not noticed otherwise.
	everything = 30 * time.Second

	newTerms = 10  // are read first; if one of them is known, so are the others
	newRuns  = 100 // of all jobs: they show which jobs have changed
)

// readTerms reads the newest terms, and all of them unless they follow those
// that are known.
func readTerms(ctx context.Context, store driver.Store,
	known []driver.Term) ([]driver.Term, error) {
	if len(known) > 0 {
		terms, err := store.Terms(ctx, newTerms)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(terms, func(t driver.Term) bool { return t.Term == known[0].Term })
		if i >= 0 {
			all := slices.Concat(terms[:i+1], known[1:])
			return all[:min(len(all), maxTerms)], nil
		}
	}
	return store.Terms(ctx, maxTerms)
}

// readRuns reads the runs of the jobs that have changed. before are the jobs as
// they were read last.
func readRuns(ctx context.Context, store ledger.Store, s *snapshot, before []job) error {
	known := map[string]*job{}
	for i := range before {
		known[before[i].Name] = &before[i]
	}
	moved := map[string]bool{} // the runs of the job are no longer as they were read
	if len(before) > 0 {
		runs, err := store.Runs(ctx, "", newRuns)
		if err != nil {
			return fmt.Errorf("read the newest runs: %w", err)
		}
		for _, run := range runs {
			b := known[run.Job]
			if b == nil || slices.Contains(b.runs, run) {
				continue
			}
			full := len(b.runs) == s.strip() // older ones are not read
			if !full || !run.ScheduledAt.Before(b.runs[len(b.runs)-1].ScheduledAt) {
				moved[run.Job] = true
			}
		}
	}
	for i := range s.jobs {
		j := &s.jobs[i]
		if b := known[j.Name]; b != nil && !moved[j.Name] && b.Job == j.Job &&
			!slices.ContainsFunc(b.runs, func(r ledger.Run) bool { return !r.Final() }) {
			j.runs = b.runs
			continue
		}
		var err error
		if j.runs, err = store.Runs(ctx, j.Name, s.strip()); err != nil {
			return fmt.Errorf("read the runs of job %q: %w", j.Name, err)
		}
	}
	return nil
}
