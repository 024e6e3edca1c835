package schedlock

import (
	"sync/atomic"
	"time"
)

// asking tells when to warn somebody who asks IsLeader of a replica that cannot
// lead. Each of the two warnings is logged once.
type asking struct {
	quit     atomic.Bool               // Stop has ended what Start had begun
	saidQuit atomic.Bool               // the log has said that somebody asks after that
	vain     atomic.Pointer[time.Time] // the first question since the last campaign
	saidVain atomic.Bool               // the log has said that nobody campaigns
}

// askedInVain is told of each question while this replica does not lead.
func (l *Lock) askedInVain() {
	a := &l.asking
	if a.quit.Load() && a.saidQuit.CompareAndSwap(false, true) {
		l.log.Warn("somebody still asks whether this replica leads, though the lock was stopped: "+
			"jobs may have run beside those of the next leader",
			"do", "shut the scheduler down first, and call Lock.Stop last")
	}
	if a.saidVain.Load() || l.campaigning.Taken() || l.stopped() {
		return
	}
	now := l.clock.Now()
	since := a.vain.Load()
	if since == nil {
		first := now
		a.vain.CompareAndSwap(nil, &first)
		return
	}
	if asked := now.Sub(*since); asked >= l.timing.TTL+l.timing.RetryInterval() && l.isIdle() &&
		a.saidVain.CompareAndSwap(false, true) {
		l.log.Warn("somebody asks whether this replica leads, but it does not campaign for the lock, "+
			"so it never will",
			"for", asked.Round(time.Second), "do",
			"call Lock.Start, and Lock.Stop when the scheduler was shut down; "+
				"or Lock.Run, or Wait again")
	}
}

// isIdle reports whether nobody campaigns, nor still has work to return.
func (l *Lock) isIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.going == nil && (l.last == nil || l.last.returned.Load())
}
