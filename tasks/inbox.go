package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const (
	inboxInterval = 250 * time.Millisecond // how often the leader looks for requests and pauses
	pruneDelay    = 10 * time.Second       // from the start of a term to its first pruning
	pruneInterval = time.Minute
	pruneBatch    = 500                   // rows deleted in one transaction
	pruneRest     = 50 * time.Millisecond // between two of them
)

// paused reports whether nothing of a job may start.
func (t *term) paused(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending.Paused(job) != nil
}

// forget removes a request that was answered.
func (t *term) forget(r ledger.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending.Requests = slices.DeleteFunc(slices.Clone(t.pending.Requests),
		func(other ledger.Request) bool {
			return other.Job == r.Job && other.At.Equal(r.At)
		})
}

// watchPending follows what people ask, until the term ends.
func (t *term) watchPending() {
	tick := time.NewTicker(inboxInterval)
	defer tick.Stop()
	looked := time.Now()
	for {
		t.servePending()
		select {
		case <-t.ctx.Done():
			return
		case <-t.poke:
		case <-tick.C:
		}
		if t.retry(t.ctx, t.readPending) != nil && t.ctx.Err() != nil {
			return
		}
		if time.Since(looked) >= t.lock.Timing().HeartbeatInterval {
			t.lookAhead()
			looked = time.Now()
		}
	}
}

// lookAhead reads the cursors of jobs that wait for a time far ahead, which a
// hand may have set right: they do not come to a decision that would find out.
func (t *term) lookAhead() {
	ahead := map[*termJob]*ledger.Job{} // and their rows
	for _, j := range t.jobs {
		if !j.turn.TryTake() {
			continue
		}
		if tooFarAhead(j.spec, j.row, t.lease.Now()) {
			ahead[j] = j.row
		}
		j.turn.Give()
	}
	if len(ahead) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, decideTimeout)
	defer cancel()
	rows, err := t.ledger.Jobs(ctx)
	if err != nil {
		return
	}
	for j, was := range ahead {
		row := findJob(rows, j.Name)
		if row != nil && row.Cursor.Equal(was.Cursor) || !j.turn.TryTake() {
			continue
		}
		if j.row == was { // else it was decided about meanwhile
			j.row = row
			go t.wake(j)
		}
		j.turn.Give()
	}
}

// readPending reads what people have asked, and says which pauses have begun or
// ended since.
func (t *term) readPending(ctx context.Context) error {
	inbox, err := t.ledger.Pending(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	before := t.pending
	for _, j := range t.jobs {
		if before.Paused(j.Name) != nil && inbox.Paused(j.Name) == nil {
			j.stir()
		}
	}
	t.pending = inbox
	t.mu.Unlock()
	for _, p := range inbox.Pauses {
		i := slices.IndexFunc(before.Pauses, func(b ledger.Pause) bool {
			return b.Job == p.Job && b.InForce()
		})
		switch {
		case p.InForce() && i < 0:
			t.sayPaused(p)
		case !p.InForce() && i >= 0:
			t.log.Info("resumed", "job", p.Job, "by", p.ResumedBy, "term", t.lease.Term())
			for _, j := range t.jobs {
				if p.Job == "" || p.Job == j.Name {
					go t.wake(j)
				}
			}
		}
	}
	return nil
}

// sayPaused logs a pause; its job is "" if it is one of the whole scheduler.
func (t *term) sayPaused(p ledger.Pause) {
	t.log.Warn("paused: nothing starts", "job", p.Job, "by", p.By, "reason", p.Reason, "since",
		p.Since, "term", t.lease.Term())
}

// servePending lets the jobs answer the requests. What is asked of a job that
// this code does not have is skipped.
func (t *term) servePending() {
	t.mu.Lock()
	requests := t.pending.Requests
	t.mu.Unlock()
	var rung []string
	for _, r := range requests {
		j := t.job(r.Job)
		switch {
		case j == nil:
			t.refuse(r)
		case !slices.Contains(rung, r.Job):
			rung = append(rung, r.Job)
			go t.wake(j)
		}
	}
}

func (t *term) refuse(r ledger.Request) {
	what := atDatabase(r.Job)
	if !t.enter(what) {
		return
	}
	defer t.leave(what)
	run, _, err := t.write(&step{kind: answerRequest, request: r, skip: ledger.UnknownJob})
	switch {
	case err == nil:
		t.answered(r, ledger.UnknownJob, run)
	case errors.Is(err, schedlock.ErrLost):
		t.beat.now()
	}
}

// prune keeps the ledger bounded.
func (t *term) prune() {
	for wait := pruneDelay; bounded.Sleep(t.ctx, wait); wait = pruneInterval {
		if err := t.pruneJobs(); err != nil && t.ctx.Err() == nil {
			t.log.Warn("run ledger not pruned; it is tried again", "err", err)
		}
	}
}

func (t *term) pruneJobs() error {
	if !t.open() {
		return nil
	}
	jobs, err := t.ledger.Jobs(t.ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs { // also those that this code does not have
		for t.open() {
			ctx, cancel := context.WithTimeout(t.ctx, decideTimeout)
			n, err := t.ledger.Prune(ctx, j.Name, t.keep, pruneBatch)
			cancel()
			if err != nil {
				return err
			}
			if n < pruneBatch {
				break
			}
			if !bounded.Sleep(t.ctx, pruneRest) {
				return t.ctx.Err()
			}
		}
	}
	return nil
}
