// Package servertest has what the tests of the stores share: steps in the life of a replica, and
// for those on a server the rules for hints, and for sessions whose end is a sign of their holder's
// death.
package servertest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

const (
	// Patience bounds a wait that should be short.
	Patience = 20 * time.Second

	// Grace is what AcquireWatched asks for.
	Grace = 5 * time.Second
)

var ctx = context.Background()

// Timing is that of a holder with the TTL.
func Timing(ttl time.Duration) driver.Timing {
	return driver.Timing{TTL: ttl, RenewDeadline: ttl * 3 / 4, HeartbeatInterval: ttl / 6}
}

// Look looks at the lock.
func Look(t testing.TB, s driver.Store) driver.Snapshot {
	t.Helper()
	view, err := s.Look(ctx)
	require.NoError(t, err)
	return view
}

// LookAtSession looks at the lock, and at the session of its holder.
func LookAtSession(t testing.TB, s driver.Store) driver.Snapshot {
	t.Helper()
	view, err := s.LookAtSession(ctx)
	require.NoError(t, err)
	return view
}

// Claim asks for the place of whatever stands in view.
func Claim(view driver.Snapshot, ttl time.Duration) driver.Claim {
	return driver.Claim{
		Ref: driver.Ref{Owner: driver.Owner{PID: os.Getpid(), Hostname: "test"},
			Token: driver.NewToken()},
		Timing:   Timing(ttl),
		Expected: view,
		Reason:   driver.EndExpired,
		Watched:  true,
	}
}

// Acquire looks, and takes the place of whatever is there.
func Acquire(t testing.TB, s driver.Store, ttl time.Duration) driver.Ref {
	t.Helper()
	ref, _ := acquire(t, s, ttl, 0)
	return ref
}

// AcquireWatched acquires with a session whose end shall be a sign.
func AcquireWatched(t testing.TB, s driver.Store,
	ttl time.Duration) (driver.Ref, driver.Session) {
	t.Helper()
	return acquire(t, s, ttl, Grace)
}

func acquire(t testing.TB, s driver.Store, ttl,
	grace time.Duration) (driver.Ref, driver.Session) {
	t.Helper()
	c := Claim(Look(t, s), ttl)
	c.Grace = grace
	grant, err := s.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref, grant.Session
}

// Heartbeat renews the lease of ref.
func Heartbeat(t testing.TB, s driver.Store, ref driver.Ref) driver.Renewal {
	t.Helper()
	beat, err := s.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	return beat
}

// Release ends the lease of ref.
func Release(t testing.TB, s driver.Store, ref driver.Ref) {
	t.Helper()
	deleted, err := s.Release(ctx, ref, driver.EndReleased)
	require.NoError(t, err)
	require.True(t, deleted)
}

// NewLock is the lock of an app.
func NewLock(t testing.TB, s driver.Store, ttl time.Duration,
	opts ...schedlock.Option) *schedlock.Lock {
	t.Helper()
	lock, err := schedlock.New(s, append([]schedlock.Option{
		schedlock.WithTTL(ttl), schedlock.WithHeartbeatInterval(Timing(ttl).HeartbeatInterval),
		schedlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	return lock
}

// Waiting is a lock that waits, as a standby by now, until the end of the test; or until it has the
// lease, which it sends.
func Waiting(t testing.TB, s driver.Store, ttl time.Duration,
	opts ...schedlock.Option) (*schedlock.Lock, <-chan *schedlock.Lease) {
	t.Helper()
	lock := NewLock(t, s, ttl, opts...)
	won, ended := make(chan *schedlock.Lease, 1), make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		if lease, err := lock.Wait(waiting); err == nil {
			won <- lease
		}
	}()
	Eventually(t, "the lock waits", func() bool {
		return lock.Status().State == schedlock.SelfStandby
	})
	return lock, won
}

// Eventually waits until done.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, Patience, 10*time.Millisecond, what)
}

// ConnectsLate tries a server that lets nobody in within the time of a look: a later look uses
// the connection that was asked for first, and Close ends one that nobody has used. A new
// connection carries first what says is a part of.
func ConnectsLate(t testing.TB, line *Wire, s Store, says string) {
	t.Helper()
	inVain := func() error {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := s.Look(ctx)
		return err
	}
	underWay := func() {
		line.End()
		Eventually(t, "a look waits for a connection", func() bool {
			return errors.Is(inVain(), context.DeadlineExceeded)
		})
		Eventually(t, "it is under way", func() bool { return line.Holds(says) })
	}
	Look(t, s)
	line.Hold()
	underWay()
	require.ErrorIs(t, inVain(), context.DeadlineExceeded)
	line.LetGo()
	Look(t, s)

	underWay()
	require.NoError(t, s.Close())
	Eventually(t, "all connections have ended", func() bool {
		line.LetGo() // also one that the wire has seen only now
		return !line.Open()
	})
}

// Awaiting starts AwaitHint; the channel is closed when it has returned.
func Awaiting(ctx context.Context, s driver.Store, view driver.Snapshot) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.AwaitHint(ctx, view)
	}()
	return done
}

// Stays asserts that done is not closed for a while.
func Stays(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		t.Fatal("the wait has ended")
	case <-time.After(200 * time.Millisecond):
	}
}

// Ends asserts that done is closed soon.
func Ends(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(Patience):
		t.Fatal("the wait goes on")
	}
}

// Listen serves each connection to a port of 127.0.0.1 until the end of the test.
func Listen(t testing.TB, serve func(net.Conn)) *net.TCPAddr {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	return listener.Addr().(*net.TCPAddr)
}
