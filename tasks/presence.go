package tasks

import (
	"context"
	"runtime/debug"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

const (
	presencePoll  = time.Second // how soon a new state is told
	presenceLimit = time.Second // of a statement, and of the wait for the last one
)

// A presence tells of this replica, on a goroutine of its own. Nothing waits for it
// but the end of the runner, when the lock is released, and that not for long.
type presence struct {
	*Runner
	self   ledger.Replica
	failed bool // was logged
}

// startPresence tells of this replica until the function that it returns is called.
func (r *Runner) startPresence() (end func()) {
	owner := r.lock.Owner()
	p := &presence{Runner: r, self: ledger.Replica{Instance: driver.NewToken().String(),
		PID: owner.PID, Hostname: owner.Hostname, Version: appVersion()}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	return func() {
		cancel()
		bounded.Wait(done, 2*presenceLimit)
	}
}

func (p *presence) run(ctx context.Context) {
	var told time.Time
	for {
		status := p.lock.Status()
		if state := string(status.State); state != p.self.State ||
			time.Since(told) >= ledger.PresenceInterval {
			told = time.Now()
			p.self.State, p.self.Reason = state, status.PublicReason(inLog)
			forget := status.State == schedlock.SelfLeading
			if !p.try(ctx, func(ctx context.Context) error {
				return p.ledger.Present(ctx, p.self, forget)
			}) {
				told = time.Time{} // what others see may be of long ago
			}
		}
		if !bounded.Sleep(ctx, presencePoll) {
			break
		}
	}
	p.try(context.Background(), func(ctx context.Context) error {
		return p.ledger.Absent(ctx, p.self.Instance)
	})
}

// inLog stands for an error, whose text may name files and servers.
func inLog(error) string { return "see the log of this replica" }

// try reports whether it was done. It logs the first failure only: all that is missing
// is what operators see.
func (p *presence) try(ctx context.Context, do func(context.Context) error) bool {
	limited, cancel := context.WithTimeout(ctx, presenceLimit)
	defer cancel()
	err := do(limited)
	if err != nil && ctx.Err() == nil && !p.failed {
		p.failed = true
		p.log.Warn("this replica cannot tell of itself; that changes nothing for the lock",
			"err", err)
	}
	return err == nil
}

// appVersion is that of the program, "" if Go has recorded none.
func appVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "(devel)" {
		return ""
	}
	return info.Main.Version
}
