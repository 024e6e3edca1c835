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
	jumped chan time.Duration // holds one: by how much the database's clock was set

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
func startHeartbeat(lease *schedlock.Lease, timing driver.Timing,
	log *slog.Logger) (*heartbeat, error) {
	h := &heartbeat{lease: lease, timing: timing, log: log, jumped: make(chan time.Duration, 1),
		read: lease.Now(), at: time.Now()}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	var err error
	if h.cron, err = gocron.NewScheduler(gocron.WithLocation(time.UTC),
		gocron.WithStopTimeout(stopTimeout)); err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	h.job, err = h.cron.NewJob(gocron.DurationJob(timing.HeartbeatInterval), gocron.NewTask(h.beat),
		gocron.WithName("heartbeat"), gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err == nil {
		err = lease.TakeRenewal()
	}
	if err != nil {
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
			h.compare(time.Since(start))
			return
		}
		// The lease's own event reports the error.
		select {
		case <-time.After(h.timing.RetryInterval()):
		case <-h.lease.Done():
		case <-h.ctx.Done():
		}
	}
}

// compare looks whether the database's clock was set since the last success. took
// is how long this one has been under way: by so much it may seem to be.
func (h *heartbeat) compare(took time.Duration) {
	read, at := h.lease.Now(), time.Now()
	jump := read.Sub(h.read) - at.Sub(h.at)
	if jump.Abs() > max(took+h.took, clockJump) {
		select {
		case h.jumped <- jump:
		default:
		}
	}
	h.took, h.read, h.at = took, read, at
}

// stop ends the heartbeats and waits until the last has returned.
func (h *heartbeat) stop() {
	h.cancel()
	if err := h.cron.Shutdown(); err != nil {
		h.log.Warn("heartbeat scheduler did not stop cleanly", "term", h.lease.Term(), "err", err)
	}
}
