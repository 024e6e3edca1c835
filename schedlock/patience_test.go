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

// patient tells how long a heartbeat may take.
type patient struct {
	*memory.Store
	left time.Duration
}

func (p *patient) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	until, _ := ctx.Deadline()
	p.left = time.Until(until)
	return p.Store.Heartbeat(ctx, ref, state)
}

// A server waits for a locked row or table for a second. Who gives up before it answers ends
// the session.
func TestAHeartbeatWaitsForTheAnswerOfAServerThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &patient{Store: memory.New()}
		lock, err := schedlock.New(store, schedlock.WithTTL(8*time.Second),
			schedlock.WithHeartbeatInterval(time.Second))
		require.NoError(t, err)
		lease, err := lock.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lease.Heartbeat(t.Context()))
		require.Equal(t, 1500*time.Millisecond, store.left)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// tardy answers a heartbeat after a time, unless the heartbeat gives up.
type tardy struct {
	*memory.Store
	after time.Duration
}

func (l *tardy) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (driver.Renewal, error) {
	select {
	case <-ctx.Done():
		return driver.Renewal{}, ctx.Err()
	case <-time.After(l.after):
		return l.Store.Heartbeat(ctx, ref, state)
	}
}

// When a process is resumed, the time is up and the answer is there.
func TestAnAnswerThatHasArrivedIsReadAlthoughTheTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock, err := schedlock.New(&tardy{memory.New(), 1550 * time.Millisecond},
			schedlock.WithTTL(8*time.Second), schedlock.WithHeartbeatInterval(time.Second))
		require.NoError(t, err)
		lease, err := lock.Acquire(t.Context())
		require.NoError(t, err)
		assert.NoError(t, lease.Heartbeat(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
	})
}
