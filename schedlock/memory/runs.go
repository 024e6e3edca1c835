package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A tickKey is what one run, and one request, may exist for.
type tickKey struct {
	job    string
	micros int64
}

func keyOf(job string, t time.Time) tickKey { return tickKey{job, t.UnixMicro()} }

// tick is a time as the ledger keeps it.
func tick(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

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
func (s *Store) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (run ledger.Run, started bool, err error) {
	from, to := tick(d.From), tick(d.To)
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		job, known := t.jobs[d.Job]
		if known == (from.IsZero() && d.RawFrom == "") || known && !stands(job, d) ||
			from.After(to) && !d.Back {
			return driver.ErrConflict
		}
		if !d.Start.IsZero() {
			if err := t.mayStart(d.Job); err != nil {
				return err
			}
		}
		t.jobs[d.Job] = ledger.Job{Name: d.Job, Spec: d.Spec, Cursor: to, Stats: job.Stats}
		for _, k := range d.Skipped {
			for k := range k.Places() {
				skip := skipped(ref, d.Job, k.First, k.Reason)
				if k.Count > 1 {
					skip.Until, skip.Count = tick(k.Last), k.Count
				}
				if _, free := t.insert(skip); free {
					break
				}
			}
		}
		if !d.Start.IsZero() {
			run, started = t.insert(first(ref, d.Job, d.Start, now))
		}
		return nil
	})
	return run, started, err
}

// stands reports whether the cursor stands as it was read.
func stands(job ledger.Job, d ledger.Decision) bool {
	if d.RawFrom != "" {
		return job.RawCursor == d.RawFrom
	}
	return job.RawCursor == "" && job.Cursor.Equal(tick(d.From))
}

// ResetCursor implements ledger.Store.
func (s *Store) ResetCursor(ctx context.Context, o ledger.Action) (job ledger.Job, err error) {
	if err := o.Validate(); err != nil {
		return job, err
	}
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.knows(o.Job); err != nil {
			return err
		}
		job = t.jobs[o.Job]
		job.Cursor, job.RawCursor = now, ""
		t.jobs[o.Job] = job
		t.note(now, ledger.OrderResetCursor, o)
		job.Stats = ledger.Stats{}
		return nil
	})
	return job, err
}

// EditCursor sets the cursor of a job as an operator's UPDATE would. raw is ""
// if it is written as the ledger does; the zero time is what cannot be read. It
// reports whether the job has a row.
func (s *Store) EditCursor(name string, at time.Time, raw string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	job, found := s.tables.jobs[name]
	if found {
		job.Cursor, job.RawCursor = tick(at), raw
		s.tables.jobs[name] = job
	}
	return found
}

// first is the row of a first attempt.
func first(ref driver.Ref, job string, at, now time.Time) ledger.Run {
	return ledger.Run{Job: job, ScheduledAt: tick(at), StartedAt: now, Status: ledger.InProgress,
		Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1}
}

// skipped is the row of a tick that is not run.
func skipped(ref driver.Ref, job string, at time.Time, reason string) ledger.Run {
	return ledger.Run{Job: job, ScheduledAt: tick(at), Status: ledger.Skipped, Error: reason,
		Term: ref.Term, PID: ref.PID, Hostname: ref.Hostname}
}

// insert adds a run unless the tick has one already.
func (t *tables) insert(r ledger.Run) (ledger.Run, bool) {
	key := keyOf(r.Job, r.ScheduledAt)
	if _, taken := t.ticks[key]; taken {
		return r, false
	}
	t.lastID++
	r.ID = t.lastID
	t.ticks[key] = r.ID
	t.runs = append(t.runs, r)
	return r, true
}

// run is the row with an id, nil if there is none.
func (t *tables) run(id int64) *ledger.Run {
	i, found := slices.BinarySearchFunc(t.runs, id, func(r ledger.Run, id int64) int {
		return cmp.Compare(r.ID, id)
	})
	if !found {
		return nil
	}
	return &t.runs[i]
}

// owed is the row of a run if that is owed the attempt after the one that run
// names, else nil.
func (t *tables) owed(run ledger.Run) *ledger.Run {
	r := t.run(run.ID)
	if r == nil || r.Attempt != run.Attempt || !waits(*r) {
		return nil
	}
	return r
}

// waits reports whether a run is owed another attempt.
func waits(r ledger.Run) bool {
	return (r.Status == ledger.Failed || r.Status == ledger.Abandoned) && !r.RetryAt.IsZero()
}

// Retry implements ledger.Store.
func (s *Store) Retry(ctx context.Context, ref driver.Ref,
	run ledger.Run) (next ledger.Run, started bool, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		r := t.owed(run)
		if r == nil {
			return nil
		}
		if err := t.mayStart(r.Job); err != nil {
			return err
		}
		if before, ok := r.Latest(); ok {
			kept := append(slices.Clone(t.attempts[r.ID]), before)
			t.attempts[r.ID] = kept[max(0, len(kept)-ledger.KeepAttempts):]
		}
		r.Status, r.StartedAt, r.FinishedAt, r.RetryAt = ledger.InProgress, now, time.Time{},
			time.Time{}
		r.Term, r.PID, r.Hostname = ref.Term, ref.PID, ref.Hostname
		r.Attempt++
		next, started = *r, true
		return nil
	})
	return next, started, err
}

// Attempts implements ledger.Store.
func (s *Store) Attempts(ctx context.Context, runID int64) (list []ledger.Attempt, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		list = slices.Clone(t.attempts[runID])
		return nil
	})
	slices.Reverse(list)
	return list, err
}

// GiveUp implements ledger.Store.
func (s *Store) GiveUp(ctx context.Context, ref driver.Ref,
	run ledger.Run) (changed bool, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		if r := t.owed(run); r != nil {
			r.RetryAt, changed = time.Time{}, true
		}
		return nil
	})
	return changed, err
}

// Finish implements ledger.Store.
func (s *Store) Finish(ctx context.Context, run ledger.Run,
	end ledger.End) (written bool, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		r := t.run(run.ID)
		if r == nil || r.Term != run.Term || r.Attempt != run.Attempt ||
			r.Status != ledger.InProgress {
			return nil
		}
		end.Error = ledger.Cut(end.Error)
		r.Status, r.FinishedAt, r.Error, r.RetryAt = end.Status, now, end.Error, tick(end.RetryAt)
		if end.Status == ledger.Done {
			t.countDone(r.Job, now, end.Took.Truncate(time.Microsecond))
		} else {
			t.countFailed(r.Job, now, end.Error)
		}
		written = true
		return nil
	})
	return written, err
}

func (t *tables) countDone(name string, now time.Time, took time.Duration) {
	job := t.jobs[name]
	job.Done++
	job.Streak = 0
	job.LastDone = now
	job.Total += took
	job.Longest = max(job.Longest, took)
	t.jobs[name] = job
}

func (t *tables) countFailed(name string, now time.Time, text string) {
	const longest = 1000
	letters := []rune(text)
	job := t.jobs[name]
	job.Failed++
	job.Streak++
	job.LastFailed, job.LastError = now, string(letters[:min(len(letters), longest)])
	t.jobs[name] = job
}

// Abandon implements ledger.Store.
func (s *Store) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) (runs []ledger.Run, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		for i := range t.runs {
			r := &t.runs[i]
			if r.Status != ledger.InProgress || r.Term == ref.Term {
				continue
			}
			r.Status, r.FinishedAt = ledger.Abandoned, now
			if retryAt != nil {
				r.RetryAt = tick(retryAt(*r))
			}
			t.countFailed(r.Job, now, "")
			runs = append(runs, *r)
		}
		return nil
	})
	return runs, err
}

// Retries implements ledger.Store.
func (s *Store) Retries(ctx context.Context) (runs []ledger.Run, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		for _, r := range t.runs {
			if waits(r) {
				runs = append(runs, r)
			}
		}
		return nil
	})
	slices.SortStableFunc(runs, func(a, b ledger.Run) int { return a.RetryAt.Compare(b.RetryAt) })
	return runs, err
}

// Run implements ledger.Store.
func (s *Store) Run(ctx context.Context, job string,
	at time.Time) (run ledger.Run, found bool, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		var id int64
		if id, found = t.ticks[keyOf(job, at)]; found {
			run = *t.run(id)
		}
		return nil
	})
	return run, found, err
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
	slices.SortFunc(runs, newestFirst)
	return runs[:min(len(runs), max(limit, 0))], err
}

func newestFirst(a, b ledger.Run) int {
	return cmp.Or(b.ScheduledAt.Compare(a.ScheduledAt), cmp.Compare(b.ID, a.ID))
}

// Prune implements ledger.Store.
func (s *Store) Prune(ctx context.Context, job string, keep, limit int) (deleted int64, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		var runs []ledger.Run
		for _, r := range t.runs {
			if r.Job == job {
				runs = append(runs, r)
			}
		}
		slices.SortFunc(runs, newestFirst)
		gone := map[int64]bool{}
		for _, r := range slices.Backward(runs[min(len(runs), max(keep, 0)):]) {
			if len(gone) >= limit {
				break
			}
			if r.Final() {
				gone[r.ID] = true
				delete(t.ticks, keyOf(job, r.ScheduledAt))
				delete(t.attempts, r.ID)
			}
		}
		t.runs = slices.DeleteFunc(t.runs, func(r ledger.Run) bool { return gone[r.ID] })
		deleted = int64(len(gone))
		return nil
	})
	return deleted, err
}
