//go:build unix

package named_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/named"
)

// A process that is stopped past its TTL, which no rule of its own can prevent:
// when it goes on its context ends, and what it says late touches nothing.
func TestAProcessThatWasStoppedFindsItsLockLost(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		locks := locksOn(t, dsn)
		r := newReplica(t, "hold", dsn)
		require.Equal(t, "ready", r.line())
		r.begin()
		var term int64
		_, err := fmt.Sscanf(r.line(), "holds %d", &term)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			info, err := locks.Info(ctx, named.Key{Kind: named.KindLock, Name: "x"})
			return err == nil && info != nil && info.Term == term && info.Age+info.Left > holdTTL
		}, time.Minute, 50*time.Millisecond, "it is kept alive")
		_, err = locks.TryLock(ctx, "x")
		heldBy(t, err, r.cmd.Process.Pid)

		require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
		next, err := locks.Lock(ctx, "x")
		require.NoError(t, err)
		next.KeepAlive()
		require.Greater(t, next.Term(), term)
		info, err := locks.Info(ctx, named.Key{Kind: named.KindLock, Name: "x"})
		require.NoError(t, err)
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
		require.Equal(t, "lost lost lost", r.line())
		after, err := locks.Info(ctx, named.Key{Kind: named.KindLock, Name: "x"})
		require.NoError(t, err)
		require.Equal(t, []any{info.Owner, info.Term, info.AcquiredAt},
			[]any{after.Owner, after.Term, after.AcquiredAt})
		require.NoError(t, next.Extend(ctx))
		require.NoError(t, next.Unlock(ctx))
		r.finish()
	})
}
