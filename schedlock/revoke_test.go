package schedlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestRevokeTellsTheHolderToLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, lease := newLeader(t, db)
		time.Sleep(time.Second)
		r, err := schedlock.Revoke(ctx, db, lease.Term(), " alice ", "the disk is full\n")
		require.NoError(t, err)
		require.Equal(t, schedlock.Revocation{At: time.Now().UTC(),
			By: "alice", Reason: "the disk is full"}, r)
		require.Equal(t, r, rowOf(t, db).Revoked)
		select {
		case <-lease.Revoked():
			require.Fail(t, "it cannot know yet")
		default:
		}
		require.NoError(t, lease.Heartbeat(ctx))
		<-lease.Revoked()
		require.True(t, a.leads(), "its owner drains it")
		lease.Drain()
		require.NoError(t, lease.Heartbeat(ctx))
		require.Equal(t, driver.StateRevoked, rowOf(t, db).State)
		require.Equal(t, 1, a.seen.count(schedlock.EventRevoked))
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, driver.EndRevoked, a.seen.last(schedlock.EventReleased).Reason)
		terms := termsOf(t, db, 1)
		require.Equal(t, driver.EndRevoked, terms[0].EndReason)
		require.Equal(t, r, terms[0].Revoked)

		_, err = schedlock.Revoke(ctx, db, lease.Term(), "alice", "")
		require.ErrorIs(t, err, driver.ErrConflict)
		require.ErrorContains(t, err, "does not hold the lock any more")
	})
}

// An order to a dead holder shortens nothing.
func TestARevokedRowOfADeadHolderGoesByTheRules(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		a.crash()
		waiter := b.stand(t.Context())
		time.Sleep(time.Second)
		_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "it is dead")
		require.NoError(t, err)
		time.Sleep(ttl - 2*time.Second)
		require.False(t, b.leads(), "its TTL has not passed")
		wins(t, waiter)
		terms := termsOf(t, db, 2)
		require.Equal(t, driver.EndExpired, terms[1].EndReason)
		require.Equal(t, "alice", terms[1].Revoked.By, "the history says who had given up on it")
		require.Equal(t, ttl, terms[0].AcquiredAt.Sub(terms[1].AcquiredAt))
	})
}

func TestRevokeRefusesWhatItCannotKeep(t *testing.T) {
	db := memory.New()
	_, lease := newLeader(t, db)
	for name, c := range map[string]struct{ by, reason, says string }{
		"nobody":          {"", "", "does not say by whom"},
		"blanks":          {" \t", "", "does not say by whom"},
		"a long name":     {strings.Repeat("x", 201), "", "has 201 bytes, 200 are allowed"},
		"a long reason":   {"a", strings.Repeat("x", 1001), "has 1001 bytes, 1000 are allowed"},
		"a name with NUL": {"a\x00b", "", `"a\x00b" is not UTF-8, or contains NUL`},
		"no UTF-8":        {"a", "\xff", `is not UTF-8`},
	} {
		_, err := schedlock.Revoke(ctx, db, lease.Term(), c.by, c.reason)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, driver.StateLeading, rowOf(t, db).State, name)
	}
	_, err := schedlock.Revoke(ctx, newFaulty(db), lease.Term(), "a", "")
	require.ErrorIs(t, err, driver.ErrNotRevocable)
	require.NoError(t, lease.Release(ctx))
}
