package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// clockJump is the step of the database's clock, seen from one heartbeat to
// the next, from which on it is logged and the alarms are set anew.
const clockJump = 500 * time.Millisecond

// heartbeat keeps one lease alive, in the place of the lease itself: a gocron job
// on a scheduler of its own.
type heartbeat struct {
	lease  *schedlock.Lease
	timing driver.Timing
	log    *slog.Logger
	after  func(jump time.Duration) // called after each success

	// Of the last success; only beat uses them, one at a time. The lease may
	// have been confirmed since, by a heartbeat of its own.
	took time.Duration
	read time.Time // the database's time …
	at   time.Time // … at this moment

	ctx    context.Context
	cancel context.CancelFunc
	cron   gocron.Scheduler
	job    gocron.Job
}

// startHeartbeat beats every heartbeat interval from now on, and repeats a
// beat that failed every retry interval, until stop or until the lease ends.
func startHeartbeat(lease *schedlock.Lease, timing driver.Timing, log *slog.Logger,
	after func(time.Duration)) (*heartbeat, error) {
	h := &heartbeat{lease: lease, timing: timing, log: log, after: after, read: lease.Now(),
		at: time.Now()}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	var err error
	if h.cron, err = gocron.NewScheduler(gocron.WithLocation(time.UTC),
		gocron.WithStopTimeout(stopTimeout)); err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	h.job, err = h.cron.NewJob(gocron.DurationJob(timing.HeartbeatInterval), gocron.NewTask(h.beat),
		gocron.WithName("heartbeat"), gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	if err := lease.TakeRenewal(); err != nil {
		return nil, errors.Join(fmt.Errorf("heartbeat: %w", err), h.cron.Shutdown())
	}
	h.cron.Start()
	return h, nil
}

// now sends a heartbeat at once, in the background: to find out soon whether
// the lease still holds, or to announce a drain.
func (h *heartbeat) now() { _ = h.job.RunNow() }

func (h *heartbeat) beat() {
	for h.ctx.Err() == nil && h.lease.Err() == nil {
		start := time.Now()
		if err := h.lease.Heartbeat(h.ctx); err == nil {
			now, read := time.Now(), h.lease.Now()
			took := now.Sub(start)
			jump := read.Sub(h.read) - now.Sub(h.at)
			if jump.Abs() <= took+h.took {
				jump = 0 // this answer, or the one before, may have been under way for that long
			}
			h.took, h.read, h.at = took, read, now
			h.after(jump)
			return
		}
		// Reported by the lease's own event.
		select {
		case <-time.After(h.timing.RetryInterval()):
		case <-h.lease.Done():
		case <-h.ctx.Done():
		}
	}
}

// stop ends the heartbeats and waits until the last has returned.
func (h *heartbeat) stop() {
	h.cancel()
	if err := h.cron.Shutdown(); err != nil {
		h.log.Warn("heartbeat scheduler did not stop cleanly", "term", h.lease.Term(), "err", err)
	}
}
