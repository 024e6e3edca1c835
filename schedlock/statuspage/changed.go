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
			full := len(b.runs) == b.read // older ones are not read
			if !full || !run.ScheduledAt.Before(b.runs[len(b.runs)-1].ScheduledAt) {
				moved[run.Job] = true
			}
		}
	}
	for i := range s.jobs {
		j := &s.jobs[i]
		b := known[j.Name]
		if b != nil && b.read < j.read {
			b = nil
		}
		if b != nil && !moved[j.Name] && b.Job == j.Job && final(b.runs) {
			j.runs = b.runs[:min(j.read, len(b.runs))]
			continue
		}
		if err := j.readRuns(ctx, store, b, s.strip()); err != nil {
			return fmt.Errorf("read the runs of job %q: %w", j.Name, err)
		}
	}
	return nil
}

func final(runs []ledger.Run) bool {
	return !slices.ContainsFunc(runs, func(r ledger.Run) bool { return !r.Final() })
}

// readRuns reads the newest few runs of a job, and all that it shows unless they follow those
// that are known and cannot change any more. b is the job as it was read last, or nil.
func (j *job) readRuns(ctx context.Context, store ledger.Store, b *job, few int) (err error) {
	if b != nil && few < j.read {
		j.runs, err = store.Runs(ctx, j.Name, few)
		if err != nil || len(j.runs) < few {
			return err
		}
		oldest := j.runs[few-1].ID
		i := slices.IndexFunc(b.runs, func(r ledger.Run) bool { return r.ID == oldest })
		if i >= 0 && final(b.runs[i+1:]) {
			j.runs = slices.Concat(j.runs, b.runs[i+1:])
			j.runs = j.runs[:min(j.read, len(j.runs))]
			return nil
		}
	}
	j.runs, err = store.Runs(ctx, j.Name, j.read)
	return err
}
