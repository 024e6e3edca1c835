package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// The start of a run holds the lock row while it waits for other rows. Its
// client may be cut off by then, so the server itself must bound the wait.
func TestAStartThatWaitsDoesNotKeepTheLockRowFromATakeOver(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	line, through := newWire(t, url)
	holder, standby := open(t, through), open(t, url)
	ref := acquire(t, holder, time.Minute)
	_, _, err := holder.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick})
	require.NoError(t, err)
	admin := session(t, url)
	exec(t, admin, `BEGIN; SELECT FROM scheduler_jobs FOR UPDATE`)
	next, started := tick.Add(time.Minute), make(chan struct{})
	go func() {
		defer close(started)
		_, _, _ = holder.Decide(t.Context(), ref, ledger.Decision{Job: "j",
			Spec: "s", From: tick, To: next, Start: next})
	}()
	waiting(t, session(t, url), 1)
	line.Cut()
	eventually(t, "another takes over", func() bool {
		_, err := standby.Acquire(ctx, claim(look(t, standby), time.Minute))
		return err == nil
	})
	exec(t, admin, `ROLLBACK`)
	line.Close()
	ends(t, started)
}
