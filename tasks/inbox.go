package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

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
	return t.inbox.Paused(job) != nil
}

// forget removes a request that was answered.
func (t *term) forget(r ledger.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inbox.Requests = slices.DeleteFunc(slices.Clone(t.inbox.Requests), func(other ledger.Request) bool {
		return other.Job == r.Job && other.At.Equal(r.At)
	})
}

// watchInbox follows what people ask, until the term ends.
func (t *term) watchInbox() {
	tick := time.NewTicker(t.inboxEvery)
	defer tick.Stop()
	for {
		t.serveInbox()
		select {
		case <-t.ctx.Done():
			return
		case <-t.poke:
		case <-tick.C:
		}
		if t.retry(t.ctx, t.readInbox) != nil && t.ctx.Err() != nil {
			return
		}
	}
}

// readInbox reads what people have asked, and says which pauses have begun or
// ended since.
func (t *term) readInbox(ctx context.Context) error {
	inbox, err := t.ledger.Inbox(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	before := t.inbox
	for _, j := range t.jobs {
		if before.Paused(j.Name) != nil && inbox.Paused(j.Name) == nil {
			j.stir()
		}
	}
	t.inbox = inbox
	t.mu.Unlock()
	for _, p := range inbox.Pauses {
		i := slices.IndexFunc(before.Pauses, func(b ledger.Pause) bool { return b.Job == p.Job && b.InForce() })
		switch {
		case p.InForce() && i < 0:
			t.sayPaused(p)
		case !p.InForce() && i >= 0:
			t.log.Info("resumed", "job", p.Job, "by", p.ResumedBy, "term", t.lease.Term())
			for _, j := range t.jobs {
				if p.Job == "" || p.Job == j.Name {
					t.ring(j)
				}
			}
		}
	}
	return nil
}

// sayPaused logs a pause; its job is "" if it is one of the whole scheduler.
func (t *term) sayPaused(p ledger.Pause) {
	t.log.Warn("paused: nothing starts", "job", p.Job, "by", p.By, "reason", p.Reason, "since", p.Since, "term", t.lease.Term())
}

// serveInbox lets the jobs answer the requests. What is asked of a job that
// this code does not have is skipped.
func (t *term) serveInbox() {
	t.mu.Lock()
	requests := t.inbox.Requests
	t.mu.Unlock()
	var rung []string
	for _, r := range requests {
		j := t.job(r.Job)
		switch {
		case j == nil:
			t.refuse(r)
		case !slices.Contains(rung, r.Job):
			rung = append(rung, r.Job)
			t.ring(j)
		}
	}
}

func (t *term) refuse(r ledger.Request) {
	if !t.enter() {
		return
	}
	defer t.leave()
	s := t.answer(r, ledger.UnknownJob)
	var run ledger.Run
	err := t.retry(t.ctx, func(ctx context.Context) (err error) { run, _, err = s.try(ctx); return err })
	switch {
	case err == nil:
		_ = s.after(run, nil)
	case errors.Is(err, schedlock.ErrLost):
		t.beat()
	}
}

// ring wakes a job in the background.
func (t *term) ring(j *termJob) {
	if !t.enter() {
		return
	}
	go func() {
		defer t.leave()
		t.wake(j)
	}()
}

// prune keeps the ledger bounded.
func (t *term) prune() {
	wait := time.NewTimer(pruneDelay)
	defer wait.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-wait.C:
		}
		if err := t.pruneJobs(); err != nil && t.ctx.Err() == nil {
			t.log.Warn("run ledger not pruned; it is tried again", "err", err)
		}
		wait.Reset(pruneInterval)
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
			select {
			case <-t.ctx.Done():
				return t.ctx.Err()
			case <-time.After(pruneRest):
			}
		}
	}
	return nil
}
