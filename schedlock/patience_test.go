package schedlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// slowToBeat answers a heartbeat after a time, unless the heartbeat gives up.
type slowToBeat struct {
	*memory.Store
	answers time.Duration
	left    time.Duration // how long the last heartbeat may take
}

func (s *slowToBeat) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	until, _ := ctx.Deadline()
	s.left = time.Until(until)
	select {
	case <-ctx.Done():
		return driver.Renewal{}, ctx.Err()
	case <-time.After(s.answers):
		return s.Store.Heartbeat(ctx, ref, state)
	}
}

// beatsOn sends a heartbeat, which must succeed, to a database that answers after a time.
func beatsOn(t *testing.T, answers time.Duration) (may time.Duration) {
	store := &slowToBeat{Store: memory.New(), answers: answers}
	synctest.Test(t, func(t *testing.T) {
		lock, err := schedlock.New(store, schedlock.WithTTL(8*time.Second),
			schedlock.WithHeartbeatInterval(time.Second))
		require.NoError(t, err)
		lease, err := lock.Acquire(t.Context())
		require.NoError(t, err)
		assert.NoError(t, lease.Heartbeat(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
	})
	return store.left
}

// A server waits for a locked row or table for a second. Who gives up before it answers ends
// the session.
func TestAHeartbeatWaitsForTheAnswerOfAServerThatWaits(t *testing.T) {
	require.Equal(t, 1500*time.Millisecond, beatsOn(t, 0))
}

// When a process is resumed, the time is up and the answer is there.
func TestAnAnswerThatHasArrivedIsReadAlthoughTheTimeIsUp(t *testing.T) {
	beatsOn(t, 1550*time.Millisecond)
}
