package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

// A tickKey is what one run may exist for.
type tickKey struct {
	job    string
	micros int64
}

// tick is a time as the ledger keeps it.
func tick(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

// Jobs implements ledger.Store; the jobs come in the order of their names.
func (s *Store) Jobs(ctx context.Context) (jobs []ledger.Job, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		jobs = slices.Collect(maps.Values(t.jobs))
		return nil
	})
	slices.SortFunc(jobs, func(a, b ledger.Job) int { return cmp.Compare(a.Name, b.Name) })
	return jobs, err
}

// Decide implements ledger.Store.
func (s *Store) Decide(ctx context.Context, ref schedlock.Ref, d ledger.Decision) (run ledger.Run, started bool, err error) {
	from, to := tick(d.From), tick(d.To)
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		job, known := t.jobs[d.Job]
		if known == from.IsZero() || known && !(job.Cursor.Equal(from) && !from.After(to)) {
			return schedlock.ErrMoved
		}
		t.jobs[d.Job] = ledger.Job{Name: d.Job, Spec: d.Spec, Cursor: to}
		row := ledger.Run{Job: d.Job, Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname}
		for _, k := range d.Skipped {
			skip := row
			skip.ScheduledAt, skip.Status, skip.Error = tick(k.First), ledger.Skipped, k.Reason
			if k.Count > 1 {
				skip.Until, skip.Count = tick(k.Last), k.Count
			}
			t.insert(skip)
		}
		if !d.Start.IsZero() {
			row.ScheduledAt, row.StartedAt, row.Status, row.Attempt = tick(d.Start), now, ledger.InProgress, 1
			run, started = t.insert(row)
		}
		return nil
	})
	return run, started, err
}

// insert adds a run unless the tick has one already.
func (t *tables) insert(r ledger.Run) (ledger.Run, bool) {
	key := tickKey{r.Job, r.ScheduledAt.UnixMicro()}
	if _, taken := t.ticks[key]; taken {
		return r, false
	}
	t.ticks[key] = struct{}{}
	r.ID = int64(len(t.runs)) + 1
	t.runs = append(t.runs, r)
	return r, true
}

// Finish implements ledger.Store.
func (s *Store) Finish(ctx context.Context, run ledger.Run, status ledger.Status, errText string) (written bool, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if run.ID < 1 || run.ID > int64(len(t.runs)) {
			return nil
		}
		r := &t.runs[run.ID-1]
		if r.Term == run.Term && r.Attempt == run.Attempt && r.Status == ledger.InProgress {
			r.Status, r.FinishedAt, r.Error = status, now, errText
			written = true
		}
		return nil
	})
	return written, err
}

// Abandon implements ledger.Store.
func (s *Store) Abandon(ctx context.Context, ref schedlock.Ref) (runs []ledger.Run, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		for i := range t.runs {
			if r := &t.runs[i]; r.Status == ledger.InProgress && r.Term != ref.Term {
				r.Status, r.FinishedAt = ledger.Abandoned, now
				runs = append(runs, *r)
			}
		}
		return nil
	})
	return runs, err
}

// Runs implements ledger.Store.
func (s *Store) Runs(ctx context.Context, job string, limit int) (runs []ledger.Run, err error) {
	runs = []ledger.Run{}
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		for _, r := range t.runs {
			if job == "" || r.Job == job {
				runs = append(runs, r)
			}
		}
		return nil
	})
	slices.SortFunc(runs, func(a, b ledger.Run) int {
		return cmp.Or(b.ScheduledAt.Compare(a.ScheduledAt), cmp.Compare(b.ID, a.ID))
	})
	return runs[:min(len(runs), max(limit, 0))], err
}
