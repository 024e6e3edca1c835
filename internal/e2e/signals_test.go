//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// awaitDraining waits until the replica says that it drains, on every page
// that tells its state.
func (r *replica) awaitDraining() {
	r.t.Helper()
	eventually(r.t, "the replica serves and says that it drains", func() error {
		l, page := r.lock(), r.get("/")
		if l.Self.State != "draining" || l.Self.Leader || !l.Held || l.Lock.PID != r.pid() ||
			l.Lock.State != "draining" ||
			page.status != http.StatusOK ||
			!page.contains(`<span class="tag draining">draining</span>`) {
			return fmt.Errorf("%+v, page %d", l, page.status)
		}
		return nil
	})
}

func TestSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "JOB_DURATION=1h", "TICK=200ms", "LOCK_HEARTBEAT=250ms", "DRAIN=30m")
	leader, _ := f.startLeader()
	standby := f.start()
	leader.awaitStatus("in_progress", 0)
	leader.signal(syscall.SIGTERM)
	leader.awaitDraining()
	require.Equal(t, http.StatusOK, leader.get("/readyz").status)
	require.Equal(t, "standby", standby.lock().Self.State, "nobody leads before the run has ended")
	eventually(t, "a signal that comes later counts, and no run is awaited", func() error {
		if leader.hasExited() {
			return nil
		}
		_ = leader.cmd.Process.Signal(syscall.SIGINT) // it may have ended meanwhile
		return errors.New("the process goes on")
	})
	require.Equal(t, 1, leader.wait())
	require.Len(t, leader.log.with("second signal", "signal=interrupt"), 1)
}

// A supervisor and a shell both pass a Ctrl-C on, and some send SIGTERM twice.
func TestSignalsThatComeTogetherAreOne(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		for name, burst := range map[string]func(*replica){
			"SIGTERM twice within 1 ms": func(r *replica) {
				r.signal(syscall.SIGTERM)
				time.Sleep(time.Millisecond / 2) // else the kernel makes one of them itself
				r.signal(syscall.SIGTERM)
			},
			"SIGTERM and SIGINT": func(r *replica) {
				r.signal(syscall.SIGTERM)
				r.signal(syscall.SIGINT)
			},
			"three of each": func(r *replica) {
				for range 3 {
					r.signal(syscall.SIGINT)
					r.signal(syscall.SIGTERM)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, "JOB_DURATION=1s", "TICK=200ms", "LOCK_HEARTBEAT=250ms")
				var leader *replica
				var term int64
				eventually(t, "the signals were sent together", func() error {
					leader, term = f.startLeader()
					leader.awaitStatus("in_progress", term)
					begun := time.Now()
					burst(leader)
					took := time.Since(begun)
					code := leader.wait()
					if code != 0 && took > together/4 {
						return fmt.Errorf("the machine is busy: they were sent within %v", took)
					}
					require.Equal(t, 0, code, "the second one ended it")
					return nil
				})
				require.Empty(t, leader.log.with("second signal"))
				require.Empty(t, leader.errorLines())
				f.requireNoRow()
				require.Equal(t, "released", f.sql(fmt.Sprintf(
					`SELECT end_reason FROM scheduler_terms WHERE term = %d`, term)))
				require.Equal(t, "0", f.sql(fmt.Sprintf(
					`SELECT count(*) FROM scheduler_runs JOIN scheduler_terms USING (term)
						WHERE term = %d AND status <> 'skipped'
						AND (status <> 'done' OR finished_at > ended_at)`, term)),
					"a run was cut short, or ended after the lock was given up")
			})
		}
	})
}
