package schedlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// lines is a logger's output: one line per record, "seconds LEVEL message".
type lines struct {
	start time.Time
	mu    sync.Mutex
	list  []string
	attrs []map[string]slog.Value
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value; return true })
	l.list = append(l.list, r.Time.Sub(l.start).Round(time.Second).String()+
		" "+r.Level.String()+" "+r.Message)
	l.attrs = append(l.attrs, attrs)
	return nil
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.list...)
}

// count is how many lines have the message.
func (l *lines) count(msg string) (n int) {
	for _, line := range l.all() {
		if strings.HasSuffix(line, " "+msg) {
			n++
		}
	}
	return n
}

// newLogged is a replica whose lines are kept.
func newLogged(t *testing.T, db driver.Store) (*replica, *lines) {
	log := &lines{start: time.Now()}
	return newReplica(t, db, schedlock.WithLogger(slog.New(log))), log
}

func TestLogOfAQuietLifeHasNoLinePerHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a, log := newLogged(t, db)
		lease := a.lead()
		stop := beat(lease)
		time.Sleep(time.Hour - time.Second/2)
		a.db.mu.Lock()
		a.db.advice = errBroken
		a.db.mu.Unlock()
		time.Sleep(time.Hour + 3*time.Second/2)
		require.Contains(t, a.lock.Status().Reason, "; but "+errBroken.Error())
		stop()
		lease.Drain()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, []string{"0s INFO leading",
			"1h0m0s WARN leads on, but somebody should act", "2h0m1s INFO draining",
			"2h0m1s INFO released"}, log.all())
		require.Equal(t, lease.Term(), log.attrs[0]["term"].Int64())
	})
}

func TestLogSaysWhoHasRevokedTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		for _, hangs := range []bool{false, true} {
			a, log := newLogged(t, db)
			lease := a.lead()
			_, err := schedlock.Revoke(ctx, db, lease.Term(), "alice", "the disk is full")
			require.NoError(t, err)
			if hangs {
				a.db.set(fault{kind: hang}, "look")
			}
			renewed := make(chan error, 1)
			go func() { renewed <- lease.Heartbeat(ctx) }()
			synctest.Wait()
			require.True(t, isClosed(lease.Revoked()), "the order is followed before it is told of")
			require.NoError(t, <-renewed)
			a.db.heal()
			require.Equal(t, 1, log.count("revoked by an operator"), log.all())
			said := log.attrs[len(log.attrs)-1]
			if hangs {
				require.NotContains(t, said, "by")
			} else {
				require.Equal(t, "alice", said["by"].String())
				require.Equal(t, "the disk is full", said["reason"].String())
			}
			require.NoError(t, lease.Release(ctx))
		}
	})
}

func TestLogOfAnOutage(t *testing.T) {
	for name, tc := range map[string]struct {
		fault fault
		ops   []string
	}{
		"the database refuses everything": {fault{kind: broken}, nil},
		"it hangs":                        {fault{kind: hang}, nil},
		"it can be read, not written": {fault{kind: broken},
			[]string{"heartbeat", "acquire", "release"}},
	} {
		bubble(t, name, func(t *testing.T, db *memory.Store) {
			a, log := newLogged(t, db)
			// The life of an app: lead, lose, give back, stand by.
			appCtx, cancel := context.WithCancel(ctx)
			var app sync.WaitGroup
			app.Go(func() {
				for {
					lease, err := a.lock.Wait(appCtx)
					if err != nil {
						return
					}
					stop := beat(lease)
					select {
					case <-lease.Done():
					case <-appCtx.Done():
					}
					stop()
					_ = lease.Release(ctx)
				}
			})
			const outage = 10 * time.Minute
			time.Sleep(time.Minute + every/2)
			a.db.set(tc.fault, tc.ops...)
			time.Sleep(outage)
			a.db.heal()
			time.Sleep(time.Minute)
			cancel()
			app.Wait()

			assert.Equal(t, 1, log.count("lost the lock"), log.all())
			assert.Equal(t, 1, log.count("database does not answer"),
				"one line at the start: %v", log.all())
			assert.Zero(t, log.count("release failed"), "it is part of the outage: %v",
				log.all())
			assert.Equal(t, 1, log.count("database answers again"), "one at the recovery: %v",
				log.all())
			still := log.count("database still does not answer")
			assert.GreaterOrEqual(t, still, int(outage/(30*time.Second))*2/3, log.all())
			assert.LessOrEqual(t, still, int(outage/(30*time.Second)),
				"at most one every 30 s: %v", log.all())
			assert.Equal(t, 2, log.count("leading"), log.all())
			assert.Zero(t, log.count("standing by"), "for whom but itself? %v", log.all())
			for i, line := range log.all() {
				if strings.HasSuffix(line, "database answers again") {
					lasted := log.attrs[i]["after"].Duration()
					assert.InDelta(t, outage.Seconds(), lasted.Seconds(), 2*every.Seconds())
					assert.Positive(t, log.attrs[i]["failures"].Int64())
				}
			}
		})
	}
}

func TestAStandbyWhoseAcquisitionsAreRefusedLogsOneOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		b, log := newLogged(t, db)
		a.lead()
		a.crash()
		waiter := b.stand(t.Context())
		b.db.set(fault{kind: broken}, "acquire")
		time.Sleep(2*ttl + retry/2)
		b.db.heal()
		require.NoError(t, (<-waiter).err)
		require.Equal(t, []string{
			"0s INFO standing by",
			"1m0s WARN database does not answer",
			"1m30s WARN database still does not answer",
			"2m0s WARN database still does not answer",
			"2m1s INFO database answers again",
			"2m1s INFO leading",
		}, log.all())
	})
}

func TestLogNamesTheHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db, schedlock.WithOwner(driver.Owner{PID: 4711, Hostname: "web-1"}))
		b, log := newLogged(t, db)
		lease := a.lead()
		a.crash()
		got := wins(t, b.stand(t.Context()))
		db.Edit(func(r *driver.Row) { r.PID, r.RawToken = 99, "x" })
		require.Error(t, got.lease.Heartbeat(ctx))
		require.Equal(t, []string{"0s INFO standing by",
			"1m0s INFO leading", "1m0s WARN lost the lock"}, log.all())
		for i, want := range []map[string]any{
			{"holder_pid": int64(4711), "holder_host": "web-1", "holder_term": lease.Term(),
				"heartbeat_age": time.Duration(0)},
			{"holder_pid": int64(4711), "holder_host": "web-1", "previous_end": "expired",
				"heartbeat_age": time.Minute, "term": got.lease.Term()},
			{"holder_pid": int64(99), "term": got.lease.Term()},
		} {
			for key, value := range want {
				assert.Equal(t, value, log.attrs[i][key].Any(), "%s of line %d", key, i)
			}
		}
	})
}

func TestAStandbyIsLoggedOncePerHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		a := newReplica(t, db)
		b, log := newLogged(t, db)
		waitCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		for range 2 {
			lease := a.lead()
			stop := beat(lease)
			waiter := b.stand(waitCtx)
			time.Sleep(time.Hour)
			stop()
			require.NoError(t, lease.Release(ctx))
			got := wins(t, waiter)
			require.NoError(t, got.lease.Release(ctx))
		}
		require.Equal(t, 2, log.count("standing by"))
	})
}

func TestLogOfASessionThatEnds(t *testing.T) {
	onServer(t, func(t *testing.T, db *server) {
		log := &lines{start: time.Now()}
		a, conn := newHeld(t, db, schedlock.WithLogger(slog.New(log)))
		lease := a.lead()
		sleepUntil(log.start, 10*time.Second)
		conn.end() // another can be had at once
		sleepUntil(log.start, 20*time.Second)
		require.True(t, a.leads())
		conn.cut()
		sleepUntil(log.start, 22*time.Second)
		conn.refuse(false)
		sleepUntil(log.start, 30*time.Second)
		conn.cut()
		sleepUntil(log.start, 40*time.Second)
		const suspended = "WARN the database session has ended: " +
			"nothing starts until a heartbeat on a new one succeeds"
		require.Equal(t, []string{
			"0s INFO leading",
			"10s " + suspended,
			"10s INFO leads on, on a new database session",
			"20s " + suspended,
			"20s WARN database does not answer",
			"22s INFO leads on, on a new database session",
			"22s INFO database answers again",
			"30s " + suspended,
			"30s WARN database does not answer",
		}, log.all()[:9])
		require.Regexp(t, "^3[23]s WARN lost the lock$", log.all()[9],
			"2.5 s after the last look before")
		require.Len(t, log.all(), 10)
		for _, i := range []int{1, 2, 3, 5, 7, 9} {
			require.Equal(t, lease.Term(), log.attrs[i]["term"].Int64(), "line %d", i)
		}
		require.InDelta(t, 2*time.Second, log.attrs[5]["after"].Duration(),
			float64(50*time.Millisecond))
		require.ErrorContains(t, log.attrs[9]["err"].Any().(error),
			"the database session has ended, and no heartbeat on a new one succeeded within 2.5s")
	})
}

// An observer is told after the change has taken effect, in the order in which
// observers were given, the log first.
func TestObserversAreToldInOrderAndAfterTheFact(t *testing.T) {
	inBubble(t, func(t *testing.T, db *memory.Store) {
		var (
			lock  *schedlock.Lock
			order []string
			lease *schedlock.Lease
			log   = lines{start: time.Now()}
		)
		first := func(e schedlock.Event) {
			order = append(order, fmt.Sprintf("first %s, %d in the log", e.Kind, len(log.all())))
			switch e.Kind {
			case schedlock.EventElected, schedlock.EventHeartbeat:
				assert.NoError(t, lock.IsLeader(ctx))
			case schedlock.EventDraining:
				assert.ErrorIs(t, lock.IsLeader(ctx), schedlock.ErrDraining)
			case schedlock.EventReleased:
				assert.Error(t, lock.IsLeader(ctx))
				assert.Error(t, lease.Err())
				assert.Nil(t, rowOf(t, db))
			}
		}
		second := func(e schedlock.Event) {
			order = append(order, "second "+string(e.Kind))
		}
		lock, err := schedlock.New(db, schedlock.WithObserver(first),
			schedlock.WithLogger(slog.New(&log)), schedlock.WithObserver(second))
		require.NoError(t, err)
		schedlock.UseBubbleClock(lock)
		schedlock.RenewByHand(lock) // a drain makes it renew at once
		lease, err = lock.Acquire(ctx)
		require.NoError(t, err)
		require.NoError(t, lease.Heartbeat(ctx))
		lease.Drain()
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, []string{
			"first elected, 1 in the log", "second elected",
			"first heartbeat, 1 in the log", "second heartbeat",
			"first draining, 2 in the log", "second draining",
			"first released, 3 in the log", "second released",
		}, order)
	})
}
