package schedlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

func TestARowDeletedByHand(t *testing.T) {
	bubble(t, "its holder hands over when its jobs return", func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		start := time.Now()
		lease := a.lead()
		defer beat(lease)()
		waiter := b.stand(t.Context())
		sleepUntil(start, every/2)
		db.DeleteRow()
		sleepUntil(start, every-time.Millisecond)
		require.True(t, a.leads())
		require.False(t, b.leads())
		sleepUntil(start, every)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.Contains(t, b.lock.Status().Reason, "there is no lock row, but term")
		sleepUntil(start, 2*every)
		require.False(t, b.leads(), "jobs of the old leader may still run")
		require.NoError(t, lease.Release(ctx))
		got := wins(t, waiter)
		require.LessOrEqual(t, got.at.Sub(start), 2*every+retry)
		require.Greater(t, got.lease.Term(), lease.Term())
	})
	for name, campaign := range campaigns {
		bubble(t, "its holder is dead: "+name+" waits for its TTL",
			func(t *testing.T, db *memory.Store) {
				a, b := newReplica(t, db), newReplica(t, db)
				a.lead()
				a.crash()
				db.DeleteRow()
				start := time.Now()
				_, err := campaign(b.lock)
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(start), ttl)
				require.LessOrEqual(t, time.Since(start), ttl+retry)
				require.Equal(t, driver.EndExpired, b.seen.last(schedlock.EventElected).Reason)
			})
	}
}

func TestARestoredBackupDoesNotMakeAStandbyForgetTheHolder(t *testing.T) {
	for name, prepare := range map[string]func(a *replica){
		"an empty database": func(*replica) {},
		"one whose newest term was released": func(a *replica) {
			require.NoError(a.t, a.lead().Release(ctx))
			require.NotZero(a.t, schedlock.Known(a.lock).EndedAt, "it knows of its own end")
		},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			prepare(a)
			restore := db.Backup()
			lease := a.lead()
			waiter := b.stand(t.Context())
			time.Sleep(every / 2)
			restore()
			start := time.Now()
			time.Sleep(every / 2)
			require.True(t, a.leads(), "it cannot know yet")
			require.False(t, b.leads())
			require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
			got := wins(t, waiter)
			require.GreaterOrEqual(t, got.at.Sub(start), ttl)
			require.Greater(t, got.lease.Term(), lease.Term(),
				"though the database has forgotten that term")
		})
	}
	bubble(t, "a standby that has released an old lease since", func(t *testing.T,
		db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		restore := db.Backup()
		old := a.lead()
		a.crash()
		lease := wins(t, b.stand(t.Context())).lease
		defer beat(lease)()
		a.db.set(fault{kind: broken}, "release")
		require.Error(t, old.Release(ctx))
		waiter := a.stand(t.Context())
		time.Sleep(retry / 2)
		require.Equal(t, lease.Term(), schedlock.Known(a.lock).Term)
		a.db.heal()
		time.Sleep(2 * retry)
		require.Equal(t, 1, a.seen.count(schedlock.EventReleased))
		restore()
		time.Sleep(retry)
		require.True(t, b.leads(), "it cannot know yet")
		require.Empty(t, waiter, "the term of the other has no end")
	})
}

func TestATermThatOnlyTheRowBearsIsRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		lease := a.lead()
		forget := func(v driver.Snapshot) driver.Snapshot {
			v.Newest = nil
			return v
		} // the history was emptied
		b.db.onView = forget
		waiter := b.stand(t.Context())
		time.Sleep(retry / 2)
		db.DeleteRow()
		start := time.Now()
		time.Sleep(every)
		require.True(t, a.leads())
		require.False(t, b.leads(), "the row of term %d was seen a moment ago", lease.Term())
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		require.Equal(t, lease.Term(), schedlock.Known(b.lock).Term)
		time.Sleep(ttl - every - time.Second)
		require.False(t, b.leads())
		require.Less(t, time.Since(start), ttl)
		require.Empty(t, waiter)
	})
}

func TestAnEditedRowDoesNotShortenWhatIsRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		empty := db.Backup()
		lease := a.lead()
		waiter := b.stand(t.Context())
		db.Edit(func(r *driver.Row) { r.Term++; r.Timing.TTL = time.Millisecond })
		time.Sleep(2 * retry)
		empty()
		start := time.Now()
		time.Sleep(every / 2)
		require.True(t, a.leads(), "it cannot know yet")
		require.False(t, b.leads())
		require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
		got := wins(t, waiter)
		require.GreaterOrEqual(t, got.at.Sub(start), ttl)
		require.Greater(t, got.lease.Term(), lease.Term()+1)
	})
}

func TestAnEditedTTLDoesNotShortenTheWatch(t *testing.T) {
	for _, edited := range []time.Duration{time.Millisecond, 0, -time.Hour} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			b := newReplica(t, db, schedlock.WithTTL(ttl/10),
				schedlock.WithHeartbeatInterval(time.Second))
			lease := a.lead()
			db.Edit(func(r *driver.Row) { r.Timing.TTL = edited })
			start := time.Now()
			got := wins(t, b.stand(t.Context()))
			require.GreaterOrEqual(t, got.at.Sub(start), ttl, "TTL edited to %v", edited)
			require.Error(t, lease.Err())
		})
	}
}

func TestAnEditedTokenIsNobodys(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db)
		start := time.Now()
		lease := a.lead()
		defer beat(lease)()
		waiter := b.stand(t.Context())
		sleepUntil(start, every/2)
		db.Edit(func(r *driver.Row) { r.RawToken = "garbage" })
		sleepUntil(start, every)
		require.ErrorIs(t, lease.Err(), schedlock.ErrLost)
		require.False(t, b.leads())
		require.NoError(t, lease.Release(ctx),
			"cannot delete the row, but writes the end of the term")
		got := wins(t, waiter)
		require.LessOrEqual(t, got.at.Sub(start), every+2*retry, "a leftover")
	})
}

func TestAHugeEditedTermDoesNotKeepEverybodyOut(t *testing.T) {
	for _, edited := range []int64{1 << 60, 1<<63 - 1, -1, 0} {
		inBubble(t, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db)
			lease := a.lead()
			db.Edit(func(r *driver.Row) { r.Term = edited })
			waiter := b.stand(t.Context())
			require.ErrorIs(t, lease.Heartbeat(ctx), schedlock.ErrLost)
			require.NoError(t, lease.Release(ctx))
			start := time.Now()
			got := wins(t, waiter)
			require.LessOrEqual(t, got.at.Sub(start), ttl+retry)
			require.Greater(t, got.lease.Term(), lease.Term())
			require.NoError(t, got.lease.Heartbeat(ctx))

			waiter = a.stand(t.Context())
			require.NoError(t, got.lease.Release(ctx))
			got = <-waiter
			require.NoError(t, got.err)
			waiter = b.stand(t.Context())
			require.NoError(t, got.lease.Release(ctx))
			start = time.Now()
			require.NoError(t, (<-waiter).err)
			require.LessOrEqual(t, time.Since(start), retry, "term %d: all is as before", edited)
		})
	}
}

// The simulation found it: the term of such a lease was not in the history.
func TestATermEditedByHandBeforeItsAcquisitionIsAnsweredIsNotTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		a.db.next(fault{kind: lost, after: every / 2}, "acquire")
		time.AfterFunc(every/4, func() { db.Edit(func(r *driver.Row) { r.Term++ }) })
		got := wins(t, a.stand(t.Context()))
		terms := termsOf(t, db, 2) // one was given back
		require.Equal(t, terms[0].Term, got.lease.Term())
		require.NoError(t, got.lease.Release(ctx))
		require.False(t, termsOf(t, db, 2)[0].Open(), "the end of the term is written")
	})
}
