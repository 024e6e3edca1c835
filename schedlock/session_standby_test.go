package schedlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// sees lets a standby find the holder's session ended whenever ended says so,
// given the time since start, in a row with a grace.
func (r *replica) sees(start time.Time, rows time.Duration, ended func(time.Duration) bool) {
	r.db.onView = func(v driver.Snapshot) driver.Snapshot {
		if v.Row == nil {
			return v
		}
		row := *v.Row
		row.Grace = rows
		v.Row = &row
		if ended(time.Since(start)) {
			v.Sign = driver.SignEnded
		}
		return v
	}
}

func always(time.Duration) bool { return true }

func from(d time.Duration) func(time.Duration) bool {
	return func(now time.Duration) bool { return now >= d }
}

func until(d time.Duration) func(time.Duration) bool {
	return func(now time.Duration) bool { return now < d }
}

func TestAStandbyTakesOverOnlyAfterAGraceInWhichTheSessionWasEndedThroughout(t *testing.T) {
	const s = time.Second
	flicker := func(now time.Duration) bool { return now%(4*s) != 0 } // never for a whole grace
	for _, tc := range []struct {
		name  string
		row   time.Duration // the grace in the row
		own   time.Duration // the standby's
		ended func(time.Duration) bool
		beat  time.Duration          // when the holder sends a heartbeat; 0: never
		later func(*driver.Snapshot) // what the looks find changed from 3 s on
		took  time.Duration          // it takes over no sooner than that …
		by    driver.EndReason
	}{
		{name: "ended all the time", row: grace, own: grace, ended: always, took: grace,
			by: driver.EndSessionEnded},
		{name: "ended later", row: grace, own: grace, ended: from(30 * s), took: 30*s + grace,
			by: driver.EndSessionEnded},
		{name: "back for one look: the grace begins anew", row: grace, own: grace,
			ended: func(now time.Duration) bool {
				return now != 4*s
			}, took: 5*s + grace, by: driver.EndSessionEnded},
		{name: "on and off: the TTL's watch goes on", row: grace, own: grace, ended: flicker,
			took: ttl, by: driver.EndExpired},
		{name: "ended shortly before the TTL has passed", row: grace, own: grace,
			ended: from(57 * s), took: ttl, by: driver.EndExpired},

		{name: "the row's grace is longer", row: 3 * grace, own: grace, ended: always,
			took: 3 * grace, by: driver.EndSessionEnded},
		{name: "its own is longer", row: grace, own: 2 * grace, ended: always, took: 2 * grace,
			by: driver.EndSessionEnded},
		{name: "the row's is longer than the TTL", row: 2 * ttl, own: grace, ended: always,
			took: ttl, by: driver.EndExpired},
		{name: "the row has none", row: 0, own: grace, ended: always, took: ttl,
			by: driver.EndExpired},
		{name: "somebody has edited it to less than none", row: -grace, own: grace, ended: always,
			took: ttl, by: driver.EndExpired},
		{name: "the standby's option is off", row: grace, own: 0, ended: always, took: ttl,
			by: driver.EndExpired},

		{name: "a heartbeat: the grace begins anew", row: grace, own: grace, ended: always,
			beat: 3 * s, took: 3*s + grace, by: driver.EndSessionEnded},
		{name: "a heartbeat, on and off: so does the TTL's watch", row: grace, own: grace,
			ended: flicker,
			beat:  3 * s, took: 3*s + ttl, by: driver.EndExpired},
		{name: "another server: the grace begins anew", row: grace, own: grace, ended: always,
			later: func(v *driver.Snapshot) {
				v.Incarnation = "2"
			}, took: 3*s + grace, by: driver.EndSessionEnded},
		{name: "a fail-over: nothing is believed any more", row: grace, own: grace, ended: always,
			later: func(v *driver.Snapshot) {
				v.FailedOver = true
			}, took: ttl, by: driver.EndExpired},
		{name: "the row's grace is taken away", row: grace, own: grace, ended: always,
			later: func(v *driver.Snapshot) { v.Row.Grace = 0 }, took: ttl, by: driver.EndExpired},
	} {
		bubble(t, tc.name, func(t *testing.T, db *memory.Store) {
			a := newReplica(t, db)
			b := newReplica(t, db, schedlock.WithSessionGrace(tc.own))
			lease := a.lead()
			a.crash()
			start := time.Now()
			b.sees(start, tc.row, tc.ended)
			if sees := b.db.onView; tc.later != nil {
				b.db.onView = func(v driver.Snapshot) driver.Snapshot {
					if v = sees(v); v.Row != nil && time.Since(start) >= 3*s {
						tc.later(&v)
					}
					return v
				}
			}
			if tc.beat > 0 {
				time.AfterFunc(tc.beat-time.Millisecond, func() {
					db.Edit(func(r *driver.Row) { r.Beat++ })
				})
			}
			waiter := b.stand(t.Context())
			sleepUntil(start, tc.took-time.Nanosecond)
			require.Empty(t, waiter, "too soon")
			got := wins(t, waiter)
			assert.LessOrEqual(t, got.at.Sub(start), tc.took+retry)
			assert.Equal(t, tc.by, b.seen.last(schedlock.EventElected).Reason)
			terms := termsOf(t, db, 2)
			assert.Equal(t, lease.Term(), terms[1].Term)
			assert.Equal(t, tc.by, terms[1].EndReason)
		})
	}
}

// A backup was restored: the session of the holder in it says nothing of the
// one that is known to have led later.
func TestAnEndedSessionSaysNothingOfATermThatTheDatabaseForgot(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, first := newHeld(t, db)
		b, _ := newHeld(t, db)
		c, _ := newHeld(t, db)
		a.lead()
		restore := db.Backup()
		first.refuse(true)
		first.end()
		require.NoError(t, (<-b.stand(t.Context())).err)
		_, err := c.lock.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld, "now c knows the term of b")
		restore() // b does not know yet
		start := time.Now()
		waiter := c.stand(t.Context())
		sleepUntil(start, renew-time.Nanosecond)
		require.True(t, b.leads())
		require.Empty(t, waiter)
		got := wins(t, waiter)
		require.GreaterOrEqual(t, got.at.Sub(start), ttl)
		require.False(t, b.leads())
	})
}

func TestAOneShotAcquireWaitsForTheGrace(t *testing.T) {
	for _, tc := range []struct {
		name  string
		own   time.Duration // the grace of who asks
		ended func(time.Duration) bool
		beats bool          // the holder does, half a grace later
		took  time.Duration // and retry at the most …
		leads bool          // … and then it leads
	}{
		{"and leads", grace, always, false, grace, true},
		{"until the holder is back", grace, until(grace / 2), true, grace / 2, false},
		{"until the session is seen again", grace, until(grace / 2), false, grace / 2, false},
		{"not if its option is off", 0, always, false, 0, false},
	} {
		bubble(t, tc.name, func(t *testing.T, db *memory.Store) {
			a, b := newReplica(t, db), newReplica(t, db, schedlock.WithSessionGrace(tc.own))
			lease := a.lead()
			start := time.Now()
			b.sees(start, grace, tc.ended)
			if tc.beats {
				time.AfterFunc(grace/2, func() { assert.NoError(t, lease.Heartbeat(ctx)) })
			}
			_, err := b.lock.Acquire(ctx)
			if tc.leads {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, schedlock.ErrHeld)
			}
			require.GreaterOrEqual(t, time.Since(start), tc.took)
			require.LessOrEqual(t, time.Since(start), tc.took+min(tc.took, retry))
		})
	}
}

func TestOnlyAStandbyThatMayActOnItLooksAtTheSession(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, holder := newHeld(t, db)
		b, may := newHeld(t, db)
		c, mayNot := newHeld(t, db, schedlock.WithSessionGrace(0))
		start := time.Now()
		defer beat(a.lead())()
		asked := holder.asked
		b.stand(t.Context())
		c.stand(t.Context())
		sleepUntil(start, ttl+retry/2)
		require.Positive(t, may.asked)
		require.Zero(t, mayNot.asked)
		require.Positive(t, c.db.count("look"))
		require.Equal(t, asked, holder.asked, "nor does the holder, when it leads")
	})
}

// A look that is slow does not shorten the grace: it counts from the answer of
// the first to the sending of the last.
func TestALookThatIsSlowDoesNotShortenTheGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, b := newReplica(t, db), newReplica(t, db, schedlock.WithSessionGrace(grace))
		a.lead()
		a.crash()
		start := time.Now()
		b.sees(start, grace, always)
		b.db.set(fault{kind: late, after: 3 * time.Second}, "look")
		got := wins(t, b.stand(t.Context()))
		require.GreaterOrEqual(t, got.at.Sub(start), grace+2*3*time.Second)
		require.Less(t, got.at.Sub(start), ttl)
	})
}

func TestAHolderThatIsBackBeforeTheTakeOverKeepsItsRow(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		a, conn := newHeld(t, db)
		b, _ := newHeld(t, db)
		lease := a.lead()
		// The heartbeat arrives between the look that completes b's grace and
		// its acquisition.
		b.db.onCall = func(op string) {
			if op == "acquire" {
				conn.refuse(false)
				time.Sleep(retry / 5)
			}
		}
		ref := lease.Ref()
		conn.cut()
		waiter := b.stand(t.Context())
		time.AfterFunc(grace+retry/10, func() {
			_, _ = conn.Heartbeat(ctx, ref, driver.StateLeading)
		})
		time.Sleep(2 * grace)
		require.Empty(t, waiter)
		require.Equal(t, 1, b.db.count("acquire"), "tried once, and refused")
		require.Equal(t, lease.Term(), rowOf(t, db).Term)
	})
}

func TestStatusOfAStandbyThatWaitsForTheGrace(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithOwner(driver.Owner{PID: 4711, Hostname: "web-1"}))
		b := newReplica(t, db, schedlock.WithSessionGrace(grace))
		lease := a.lead()
		a.crash()
		start := time.Now()
		b.sees(start, grace, always)
		waiter := b.stand(t.Context())
		sleepUntil(start, 1500*time.Millisecond)
		s := b.lock.Status()
		require.Equal(t, schedlock.SelfStandby, s.State)
		require.Equal(t, "the database session of pid 4711 on host \"web-1\" (term "+
			itoa(lease.Term())+") has ended; takes over after 3.5s unless it comes back", s.Reason)
		require.NoError(t, (<-waiter).err)
	})
}
