package servertest

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// A Store is one that can be closed, more than once.
type Store interface {
	driver.Store
	Close() error
}

// A Database is what the rules of sessions ask of one whose lock nobody holds.
type Database struct {
	// Open opens the store of a replica, which is closed at the end of the test.
	Open func(t testing.TB) Store

	// Kill ends the session that the lock's row tells of, and waits until it is gone.
	Kill func(t testing.TB)

	// Session is what the row tells of the session, as Edit takes it; "" unless its end is a sign.
	Session func(t testing.TB) string

	// Edit changes the row: what stands after SET in an UPDATE.
	Edit func(t testing.TB, set string)

	NoSign []string // edits after which nobody can tell whether the session has ended
	Others []string // edits after which the row tells of another session, or of none
}

// Sessions tries the rules for sessions whose end is a sign.
func Sessions(t *testing.T, database func(t testing.TB) Database) {
	for name, rule := range map[string]func(*testing.T, Database){
		"the end is seen by both sides":             seenByBothSides,
		"it is no sign without a grace":             noSignWithoutAGrace,
		"it is no sign after an edit":               noSignAfterAnEdit,
		"a late heartbeat does not bring it back":   lateHeartbeat,
		"a claim is of the session that was judged": claimOfAnotherSession,
		"another leads after the grace":             replacedAfterTheGrace,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule(t, database(t))
		})
	}
}

// HasEnded reports whether the session is known to have ended.
func HasEnded(s driver.Session) bool {
	select {
	case <-s.Ended():
		return true
	default:
		return false
	}
}

func seenByBothSides(t *testing.T, d Database) {
	holder, standby := d.Open(t), d.Open(t)
	ref, s := AcquireWatched(t, holder, time.Minute)
	require.NotNil(t, s)
	require.True(t, s.Alive())
	require.NotEmpty(t, d.Session(t))
	for range 3 {
		require.Same(t, s, Heartbeat(t, holder, ref).Session)
		view := LookAtSession(t, standby)
		require.Equal(t, driver.SignNone, view.Sign)
		require.Equal(t, Grace, view.Row.Grace)
	}
	for range 2 {
		before := d.Session(t)
		d.Kill(t)
		Ends(t, s.Ended()) // nobody has asked the server anything
		require.False(t, s.Alive())
		view := LookAtSession(t, standby)
		require.Equal(t, driver.SignEnded, view.Sign)
		require.Equal(t, Grace, view.Row.Grace)
		require.Equal(t, driver.SignNone, Look(t, standby).Sign, "a plain look does not look")

		next := Heartbeat(t, holder, ref).Session
		require.NotNil(t, next)
		require.NotSame(t, s, next)
		require.True(t, next.Alive())
		require.NotEmpty(t, d.Session(t))
		require.NotEqual(t, before, d.Session(t))
		require.Equal(t, driver.SignNone, LookAtSession(t, standby).Sign)
		s = next
	}
	Release(t, holder, ref)
	require.False(t, HasEnded(s))
	require.NoError(t, holder.Close())
	require.True(t, HasEnded(s))
}

func noSignWithoutAGrace(t *testing.T, d Database) {
	s := d.Open(t)
	ref := Acquire(t, s, time.Minute)
	view := LookAtSession(t, s)
	require.Zero(t, view.Row.Grace)
	require.Contains(t, view.Row.TTLOnly, "without a session grace")
	require.Nil(t, Heartbeat(t, s, ref).Session)
}

// left is a look at a holder whose session has ended.
func left(t *testing.T, d Database, standby Store) driver.Snapshot {
	t.Helper()
	holder := d.Open(t)
	AcquireWatched(t, holder, time.Minute)
	require.NoError(t, holder.Close())
	var view driver.Snapshot
	Eventually(t, "the sign", func() bool {
		view = LookAtSession(t, standby)
		return view.Sign == driver.SignEnded
	})
	return view
}

func noSignAfterAnEdit(t *testing.T, d Database) {
	standby := d.Open(t)
	for _, edit := range d.NoSign {
		ref := left(t, d, standby).Row.Ref
		d.Edit(t, edit)
		require.Equal(t, driver.SignNone, LookAtSession(t, standby).Sign, edit)
		Release(t, standby, ref)
	}
}

// A heartbeat that was sent on a session before may be executed last.
func lateHeartbeat(t *testing.T, d Database) {
	holder, standby := d.Open(t), d.Open(t)
	ref, _ := AcquireWatched(t, holder, time.Minute)
	d.Kill(t)
	Heartbeat(t, holder, ref)
	between := d.Session(t)
	d.Kill(t)
	s := Heartbeat(t, holder, ref).Session
	d.Kill(t)
	Ends(t, s.Ended())
	d.Edit(t, between)
	require.Equal(t, driver.SignEnded, LookAtSession(t, standby).Sign, "as it would be")
	_, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorIs(t, err, driver.ErrLost, "it knows of no such session any more")
}

// The beat tells heartbeats apart, the row's columns sessions: who judged one that has ended must
// not depose a holder that is back on another.
func claimOfAnotherSession(t *testing.T, d Database) {
	standby := d.Open(t)
	for _, edit := range d.Others {
		judged := left(t, d, standby)
		d.Edit(t, edit) // the beat stays
		_, err := standby.Acquire(ctx, Claim(judged, time.Minute))
		require.ErrorIs(t, err, driver.ErrConflict, edit)
		require.NotErrorIs(t, err, driver.ErrBlocked)
		require.Equal(t, judged.Row.Token, Look(t, standby).Row.Token)
		c := Claim(LookAtSession(t, standby), time.Minute)
		grant, err := standby.Acquire(ctx, c)
		require.NoError(t, err, "what stands there now may be judged anew")
		c.Term = grant.Term
		Release(t, standby, c.Ref)
	}
}

// A leader dies, and another leads after the grace and long before the TTL; and one that comes back
// stays the leader.
func replacedAfterTheGrace(t *testing.T, d Database) {
	const grace = 10 * time.Second // half of it must do for a new session on a busy machine
	first := d.Open(t)
	var suspended, resumed atomic.Int64
	a := NewLock(t, first, 5*time.Minute, schedlock.WithSessionGrace(grace),
		schedlock.WithObserver(func(e schedlock.Event) {
			switch e.Kind {
			case schedlock.EventSuspended:
				suspended.Add(1)
			case schedlock.EventResumed:
				resumed.Add(1)
			}
		}))
	lease, err := a.Wait(ctx)
	require.NoError(t, err)
	_, won := Waiting(t, d.Open(t), 5*time.Minute, schedlock.WithSessionGrace(grace))
	for n := range int64(5) {
		d.Kill(t)
		Eventually(t, "it leads on", func() bool { return resumed.Load() == n+1 })
		require.NoError(t, a.IsLeader(ctx))
	}
	require.NoError(t, lease.Err())
	require.Empty(t, won)
	require.EqualValues(t, 5, suspended.Load())

	require.NoError(t, first.Close()) // and comes back no more
	Ends(t, lease.Done())
	require.ErrorIs(t, lease.Err(), driver.ErrLost)
	require.ErrorIs(t, a.IsLeader(ctx), schedlock.ErrNotLeader)
	select {
	case next := <-won:
		terms, err := d.Open(t).Terms(ctx, 2)
		require.NoError(t, err)
		require.Equal(t, driver.EndSessionEnded, terms[1].EndReason)
		require.NoError(t, next.Release(ctx))
	case <-time.After(3 * Patience):
		require.Fail(t, "nobody took over")
	}
}

// Sign tries whether the end of the holder's session is a sign. If not, the TTL decides, for the
// reason why, and both sides say so once. It closes the holder.
func Sign(t *testing.T, holder, standby Store, log *logtest.Log, why string) {
	t.Helper()
	for range 2 {
		ref, s := AcquireWatched(t, holder, time.Minute)
		row := LookAtSession(t, standby).Row
		if why == "" {
			require.NotNil(t, s)
			require.Equal(t, Grace, row.Grace)
			require.Empty(t, row.TTLOnly)
		} else {
			require.Nil(t, s)
			require.Zero(t, row.Grace)
			require.Contains(t, row.TTLOnly, why)
		}
		for range 2 {
			require.Equal(t, why == "", Heartbeat(t, holder, ref).Session != nil)
		}
		require.Equal(t, driver.SignNone, LookAtSession(t, standby).Sign)
		Release(t, holder, ref)
	}
	require.NoError(t, holder.Close())
	Eventually(t, "the log has it", func() bool {
		return strings.Count(log.String(), "if this leader dies") == 1
	})
}

// A Restart is a way to restart a server.
type Restart struct{ Stop, Start func() }

// OutlivesRestarts tries each way to restart the server. The holder has not ended, although the
// server may have ended its session without a word to it. Whoever has judged before the restart
// must judge anew: the server may have lost what it had acknowledged.
func OutlivesRestarts(t *testing.T, open func(testing.TB) Store, ways ...Restart) {
	holder, standby := open(t), open(t)
	_, err := holder.Terms(ctx, 1) // on a connection of its own
	require.NoError(t, err)
	for _, way := range ways {
		ref, s := AcquireWatched(t, holder, time.Minute)
		before := Look(t, standby)
		require.Equal(t, before.Incarnation, Look(t, standby).Incarnation)
		way.Stop()
		Ends(t, s.Ended())
		beat := func() error { return err1(holder.Heartbeat(ctx, ref, driver.StateLeading)) }
		terms := func() error { return err1(holder.Terms(ctx, 1)) }
		for _, call := range []func() error{beat, beat, terms} {
			err := call()
			require.Error(t, err)
			require.NotErrorIs(t, err, driver.ErrLost)
			require.NotErrorIs(t, err, driver.ErrPermanent)
		}
		way.Start()
		look := func() bool { return err1(standby.LookAtSession(ctx)) == nil }
		Eventually(t, "a look", look)
		for Look(t, standby).Incarnation == before.Incarnation { // within the same second
			way.Stop()
			way.Start()
			Eventually(t, "a look", look)
		}
		require.Equal(t, driver.SignNone, LookAtSession(t, standby).Sign)
		Eventually(t, "a heartbeat", func() bool { return beat() == nil })
		require.NotNil(t, Heartbeat(t, holder, ref).Session)
		require.Equal(t, driver.SignNone, LookAtSession(t, standby).Sign)
		Eventually(t, "the terms", func() bool { return terms() == nil })
		c := Claim(Look(t, standby), time.Minute)
		c.Expected.Incarnation = before.Incarnation
		require.ErrorIs(t, err1(standby.Acquire(ctx, c)), driver.ErrConflict)
		Release(t, holder, ref)
	}
}

func err1[T any](_ T, err error) error { return err }
