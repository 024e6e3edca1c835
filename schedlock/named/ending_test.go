package named

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Whoever asks in the very moment in which another finds out that the lock has
// ended is not told that it is held.
func TestNobodyHoldsALockThatIsJustEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLock(&Locks{}, namedlock.Ref{Key: Key{Kind: KindLock, Name: "x"}, Term: 7},
			time.Minute, clock.StartStopwatch())
		k.finished.Store(true) // as end does, before it cancels the context
		answers := make(chan error, 2)
		go func() { answers <- k.Check() }()
		go func() { answers <- k.Extend(context.Background()) }()
		synctest.Wait()
		require.Empty(t, answers)
		k.cancel(lost(k.ref.Key, k.ref.Term, "why", nil))
		for range 2 {
			assert.EqualError(t, <-answers, `lock "x" (term 7) is lost: why`)
		}
	})
}
