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

// mayStart returns a PausedError while the job, or every job, is paused.
func (t *tables) mayStart(job string) error {
	for _, name := range []string{job, ""} {
		if p, found := t.pauses[name]; found && p.InForce() {
			return &ledger.PausedError{Pause: p}
		}
	}
	return nil
}

// knows returns an error that wraps ErrNoJob unless the job has a row.
func (t *tables) knows(job string) error {
	if _, found := t.jobs[job]; !found {
		return ledger.NoJob(job)
	}
	return nil
}

// Trigger implements ledger.Store.
func (s *Store) Trigger(ctx context.Context, o ledger.Action) (r ledger.Request, err error) {
	if err := o.Validate(); err != nil {
		return r, err
	}
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.knows(o.Job); err != nil {
			return err
		}
		if err := t.mayStart(o.Job); err != nil {
			return err
		}
		if n := t.pending()[o.Job]; n >= ledger.MaxPending {
			return &ledger.BacklogError{Job: o.Job, Pending: n, Limit: ledger.MaxPending}
		}
		for t.taken(o.Job, now) {
			now = now.Add(time.Microsecond)
		}
		r = ledger.Request{Action: o, At: now}
		t.requests[keyOf(o.Job, now)] = r
		t.note(now, ledger.OrderRun, o)
		return nil
	})
	return r, err
}

// pending is how many requests each job has.
func (t *tables) pending() map[string]int {
	n := map[string]int{}
	for key := range t.requests {
		n[key.job]++
	}
	return n
}

// taken reports whether a job has a run, or a request, for a time.
func (t *tables) taken(job string, at time.Time) bool {
	key := keyOf(job, at)
	_, run := t.ticks[key]
	_, request := t.requests[key]
	return run || request
}

// Answer implements ledger.Store. If a tick of the job's schedule has taken the
// time since it was asked for, the request goes, and nothing starts.
func (s *Store) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (run ledger.Run, started bool, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		key := keyOf(r.Job, r.At)
		asked, found := t.requests[key]
		if !found {
			return nil
		}
		row := skipped(ref, asked.Job, asked.At, skip)
		if skip == "" {
			if err := t.mayStart(asked.Job); err != nil {
				return err
			}
			row = first(ref, asked.Job, asked.At, now)
		}
		row.RequestedBy, row.RequestReason = asked.By, asked.Reason
		delete(t.requests, key)
		run, started = t.insert(row)
		started = started && skip == ""
		return nil
	})
	return run, started, err
}

// Pause implements ledger.Store.
func (s *Store) Pause(ctx context.Context, o ledger.Action) (p ledger.Pause, err error) {
	if err := o.Validate(); err != nil {
		return p, err
	}
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if o.Job != "" {
			if err := t.knows(o.Job); err != nil {
				return err
			}
		}
		var found bool
		if p, found = t.pauses[o.Job]; !found || !p.InForce() {
			p = ledger.Pause{Action: o, Since: now}
			t.pauses[o.Job] = p
			t.note(now, ledger.OrderPause, o)
		}
		return nil
	})
	return p, err
}

// Resume implements ledger.Store.
func (s *Store) Resume(ctx context.Context, job, by string) (resumed bool, err error) {
	o := ledger.Action{Job: job, By: by}
	if err := o.Validate(); err != nil {
		return false, err
	}
	err = s.do(ctx, func(t *tables, now time.Time) error {
		p, found := t.pauses[job]
		if found && p.InForce() {
			p.Resumed, p.ResumedBy = now, by
			t.pauses[job], resumed = p, true
			t.note(now, ledger.OrderResume, o)
		}
		return nil
	})
	return resumed, err
}

// Pending implements ledger.Store; the pauses come in the order of their jobs.
func (s *Store) Pending(ctx context.Context) (in ledger.Pending, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		in.Requests, in.Pauses = slices.Collect(maps.Values(t.requests)),
			slices.Collect(maps.Values(t.pauses))
		if len(t.requests) > 0 {
			in.Backlog = t.pending()
		}
		return nil
	})
	slices.SortFunc(in.Requests, func(a, b ledger.Request) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job, b.Job))
	})
	slices.SortFunc(in.Pauses, func(a, b ledger.Pause) int { return cmp.Compare(a.Job, b.Job) })
	had := map[string]int{}
	in.Requests = slices.DeleteFunc(in.Requests, func(r ledger.Request) bool {
		had[r.Job]++
		return had[r.Job] > ledger.PendingLimit || in.Paused(r.Job) != nil
	})
	return in, err
}
