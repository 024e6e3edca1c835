package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func TestAnEmptyDatabaseHasNoHolder(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	v := look(t, s)
	assert.Nil(t, v.Row)
	assert.Nil(t, v.Newest)
	assert.Equal(t, clock.now(), v.Now)
	terms, err := s.Terms(bg, 10)
	assert.NoError(t, err)
	assert.Empty(t, terms)
	info, err := schedlock.GetLockInfo(bg, s)
	assert.NoError(t, err)
	assert.Nil(t, info)
}

func TestAcquireWritesTheRowAndTheTerm(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	c := claimOf(look(t, s), driver.Owner{PID: 42, Hostname: "höst"})
	g, err := s.Acquire(bg, c)
	require.NoError(t, err)
	assert.Equal(t, driver.Grant{Term: clock.now().UnixMilli(), Now: clock.now()}, g)
	taken := clock.now()
	c.Ref.Term = g.Term

	clock.add(time.Second)
	v := look(t, s)
	assert.Equal(t, &driver.Row{Ref: c.Ref, RawToken: c.Token.String(), State: driver.StateLeading,
		CreatedAt: taken, HeartbeatAt: taken, Timing: timing}, v.Row)
	assert.Equal(t, &driver.Term{Ref: c.Ref, AcquiredAt: taken, TTL: timing.TTL}, v.Newest)
	assert.True(t, v.Newest.Open())
	assert.Equal(t, clock.now(), v.Now)
	terms, err := s.Terms(bg, 10)
	require.NoError(t, err)
	assert.Equal(t, []driver.Term{*v.Newest}, terms)
}

func TestTheTermIsTheHighestOfAllThatIsKnown(t *testing.T) {
	t.Parallel()
	now := newClock().now().UnixMilli()
	for name, tc := range map[string]struct {
		inHistory, inRow, min int64
		want                  int64
	}{
		"a new database: the clock":                {0, 0, 0, now},
		"the history is ahead of the clock":        {now + 500, 0, 0, now + 501},
		"the row is ahead of the history":          {now + 500, now + 700, 0, now + 701},
		"the history is ahead of the row":          {now + 500, now + 300, 0, now + 501},
		"a restored backup: this replica saw more": {now - 500, 0, now + 900, now + 900},
		"all is old: the clock":                    {now - 500, now - 500, now - 400, now},
		"the clock was set back": {now + 3600_000, now + 3600_000, 1,
			now + 3600_001},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, WithClock(newClock().now))
			other := foreign(t, s)
			if tc.inHistory > 0 {
				run(t, other, `INSERT INTO scheduler_terms (term, token, pid, hostname,
					acquired_at, ended_at, end_reason, next_term, ttl_ms, file_id)
					VALUES (?, 'x', 1, 'h', '2026-03-01T00:00:00.000000Z',
					'2026-03-01T00:00:00.000000Z', 'released', NULL, 60000, NULL)`, tc.inHistory)
			}
			if tc.inRow > 0 {
				run(t, other, `INSERT INTO scheduler_lock
					VALUES (1, 1, 'h', '2026-03-01T00:00:00.000000Z', '2026-03-01T00:00:00.000000Z',
					'x', ?, 3, 'leading', 60000, 45000, 10000, NULL, NULL, NULL, NULL, NULL)`,
					tc.inRow)
			}
			c := claimOf(look(t, s), nobody)
			c.MinTerm = tc.min
			g, err := s.Acquire(bg, c)
			require.NoError(t, err)
			assert.Equal(t, tc.want, g.Term)
			assert.Equal(t, tc.want, look(t, s).Row.Term)
			assert.Equal(t, tc.want, look(t, s).Newest.Term)
		})
	}
}

func TestATakeOverEndsTheTermBefore(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	first := acquire(t, s, nobody)
	clock.add(time.Minute)
	c := claimOf(look(t, s), driver.Owner{PID: 2, Hostname: "b"})
	c.Reason = driver.EndProvenDead
	g, err := s.Acquire(bg, c)
	require.NoError(t, err)
	terms, err := s.Terms(bg, 10)
	require.NoError(t, err)
	require.Len(t, terms, 2)
	old := terms[1]
	assert.Equal(t, first, old.Ref)
	assert.Equal(t, clock.now(), old.EndedAt)
	assert.Equal(t, driver.EndProvenDead, old.EndReason)
	assert.Equal(t, g.Term, old.NextTerm)
	assert.True(t, terms[0].Open())
	assert.Zero(t, terms[0].NextTerm)
}

func TestWhoTookOverIsWrittenAlsoAfterARelease(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	first := acquire(t, s, nobody)
	clock.add(time.Second)
	ended := clock.now()
	_, err := s.Release(bg, first, driver.EndReleased)
	require.NoError(t, err)
	clock.add(time.Second)
	second := acquire(t, s, nobody)
	terms, err := s.Terms(bg, 10)
	require.NoError(t, err)
	assert.Equal(t, second.Term, terms[1].NextTerm)
	assert.Equal(t, driver.EndReleased, terms[1].EndReason, "the end that its holder wrote stays")
	assert.Equal(t, ended, terms[1].EndedAt)
}

func TestAcquireIsCompareAndSwap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		held   bool // when it was judged
		change func(t *testing.T, s *Store, other *sql.Conn)
	}{
		"held: another token": {true, func(t *testing.T, s *Store, o *sql.Conn) {
			run(t, o, `UPDATE scheduler_lock SET token = 'other'`)
		}},
		"held: another term": {true, func(t *testing.T, s *Store, o *sql.Conn) {
			run(t, o, `UPDATE scheduler_lock SET term = term + 1`)
		}},
		"held: another beat": {true, func(t *testing.T, s *Store, o *sql.Conn) {
			run(t, o, `UPDATE scheduler_lock SET beat = beat + 1`)
		}},
		"held: it is gone": {true, func(t *testing.T, s *Store, o *sql.Conn) {
			run(t, o, `DELETE FROM scheduler_lock`)
		}},
		"held: another was first": {true, func(t *testing.T, s *Store, o *sql.Conn) {
			acquire(t, s, driver.Owner{PID: 9, Hostname: "b"})
		}},
		"free: another was first": {false, func(t *testing.T, s *Store, o *sql.Conn) {
			acquire(t, s, driver.Owner{PID: 9, Hostname: "b"})
		}},
		"free: another came and went": {false, func(t *testing.T, s *Store, o *sql.Conn) {
			_, err := s.Release(bg, acquire(t, s, nobody), driver.EndReleased)
			require.NoError(t, err)
		}},
		"free: another came, and its row was deleted": {false,
			func(t *testing.T, s *Store, o *sql.Conn) {
				acquire(t, s, nobody)
				run(t, o, `DELETE FROM scheduler_lock`)
			}},
		"free: the history was emptied": {false, func(t *testing.T, s *Store, o *sql.Conn) {
			run(t, o, `DELETE FROM scheduler_terms`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			other := foreign(t, s)
			ref := acquire(t, s, nobody)
			if !tc.held {
				_, err := s.Release(bg, ref, driver.EndReleased)
				require.NoError(t, err)
			}
			c := claimOf(look(t, s), driver.Owner{PID: 2, Hostname: "c"})
			tc.change(t, s, other)
			before := dump(t, other)
			_, err := s.Acquire(bg, c)
			require.ErrorIs(t, err, driver.ErrConflict)
			assert.Equal(t, before, dump(t, other), "nothing was written")
			wantNoWriteLock(t, other, "the loser")

			c.Expected = look(t, s)
			_, err = s.Acquire(bg, c)
			assert.NoError(t, err, "judged anew")
		})
	}
}

func TestOfManyThatJudgedTheSameOneWins(t *testing.T) {
	s := newStore(t)
	var stores []*Store
	for range 8 {
		stores = append(stores, mustOpen(t, s.Path()))
	}
	acquire(t, s, nobody)
	for range 5 {
		var (
			wg  sync.WaitGroup
			mu  sync.Mutex
			won []driver.Token
		)
		judged := look(t, s)
		for _, s := range stores {
			wg.Go(func() {
				c := claimOf(judged, nobody)
				if _, err := s.Acquire(bg, c); err == nil {
					mu.Lock()
					won = append(won, c.Token)
					mu.Unlock()
				} else {
					assert.ErrorIs(t, err, driver.ErrConflict)
				}
			})
		}
		wg.Wait()
		require.Len(t, won, 1)
		require.Equal(t, won[0], look(t, s).Row.Token)
	}
}

func TestHeartbeat(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
	created := clock.now()
	now := clock.add(10 * time.Second)
	beat, err := s.Heartbeat(bg, ref, driver.StateLeading)
	require.NoError(t, err)
	assert.Equal(t, driver.Renewal{State: driver.StateLeading, Now: now}, beat)
	row := look(t, s).Row
	assert.Equal(t, int64(1), row.Beat)
	assert.Equal(t, now, row.HeartbeatAt)
	assert.Equal(t, created, row.CreatedAt)

	clock.add(-time.Hour) // no stamp matters
	beat, err = s.Heartbeat(bg, ref, driver.StateDraining)
	require.NoError(t, err)
	assert.Equal(t, driver.StateDraining, beat.State)
	row = look(t, s).Row
	assert.Equal(t, int64(2), row.Beat)
	assert.Equal(t, driver.StateDraining, row.State)
	assert.Equal(t, clock.now(), row.HeartbeatAt)

	run(t, foreign(t, s), `UPDATE scheduler_lock SET state = 'revoked'`)
	beat, err = s.Heartbeat(bg, ref, driver.StateLeading)
	require.NoError(t, err)
	assert.Equal(t, driver.StateRevoked, beat.State)
	assert.Equal(t, driver.StateRevoked, look(t, s).Row.State)
}

func TestAHeartbeatTouchesNoOthersRowAndNeverInserts(t *testing.T) {
	s := newStore(t)
	other := foreign(t, s)
	ref := acquire(t, s, nobody)
	before := dump(t, other)
	for name, spoil := range map[string]func(*driver.Ref){
		"another token": func(r *driver.Ref) { r.Token = driver.NewToken() },
		"another term":  func(r *driver.Ref) { r.Term++ },
	} {
		r := ref
		spoil(&r)
		_, err := s.Heartbeat(bg, r, driver.StateLeading)
		assert.ErrorIs(t, err, driver.ErrLost, name)
	}
	assert.Equal(t, before, dump(t, other))
	run(t, other, `DELETE FROM scheduler_lock`)
	_, err := s.Heartbeat(bg, ref, driver.StateLeading)
	assert.ErrorIs(t, err, driver.ErrLost)
	assert.Nil(t, look(t, s).Row)
}

func TestAReleaseTouchesNoOthersRow(t *testing.T) {
	for name, spoil := range map[string]func(*driver.Ref){
		"another pid":      func(r *driver.Ref) { r.PID++ },
		"another hostname": func(r *driver.Ref) { r.Hostname = "b" },
		"another token":    func(r *driver.Ref) { r.Token = driver.NewToken() },
		"another term":     func(r *driver.Ref) { r.Term++ },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			ref := acquire(t, s, nobody)
			row := *look(t, s).Row
			r := ref
			spoil(&r)
			deleted, err := s.Release(bg, r, driver.EndReleased)
			require.NoError(t, err)
			assert.False(t, deleted)
			require.NotNil(t, look(t, s).Row)
			assert.Equal(t, row, *look(t, s).Row)
			_, err = s.Heartbeat(bg, ref, driver.StateLeading)
			assert.NoError(t, err)
		})
	}
}

func TestReleaseDeletesTheRowAndEndsTheTerm(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
	now := clock.add(time.Minute)
	deleted, err := s.Release(bg, ref, driver.EndRevoked)
	require.NoError(t, err)
	assert.True(t, deleted)
	v := look(t, s)
	assert.Nil(t, v.Row)
	assert.Equal(t, now, v.Newest.EndedAt)
	assert.Equal(t, driver.EndRevoked, v.Newest.EndReason)

	clock.add(time.Minute)
	deleted, err = s.Release(bg, ref, driver.EndLost)
	require.NoError(t, err)
	assert.False(t, deleted, "harmless")
	assert.Equal(t, v.Newest, look(t, s).Newest, "an end is written once")
}

func TestAReleaseEndsTheTermAlsoIfTheRowWasDeletedByHand(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	run(t, foreign(t, s), `DELETE FROM scheduler_lock`)
	require.True(t, look(t, s).Newest.Open(), "nobody knows yet that its holder has stopped")
	deleted, err := s.Release(bg, ref, driver.EndLost)
	require.NoError(t, err)
	assert.False(t, deleted)
	assert.False(t, look(t, s).Newest.Open(), "so that nobody waits for the TTL")
}

// In containers every process is pid 1, and replicas may share a hostname.
func TestTwoOwnersThatLookAlikeAreNotConfused(t *testing.T) {
	s := newStore(t)
	older, newer := mustOpen(t, s.Path()), mustOpen(t, s.Path())
	old := acquire(t, older, nobody)
	current := acquire(t, newer, nobody)
	row := *look(t, s).Row
	require.Equal(t, old.Owner, current.Owner)

	_, err := older.Heartbeat(bg, old, driver.StateLeading)
	assert.ErrorIs(t, err, driver.ErrLost)
	deleted, err := older.Release(bg, old, driver.EndReleased)
	require.NoError(t, err)
	assert.False(t, deleted)
	assert.Equal(t, row, *look(t, s).Row)
	_, err = newer.Heartbeat(bg, current, driver.StateLeading)
	assert.NoError(t, err)
}

func TestTheHistoryIsBounded(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	other := foreign(t, s)
	run(t, other, `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms, file_id)
SELECT i, 'x', 1, 'h', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:01.000000Z', 'released',
    i + 1, 60000, NULL FROM n`)
	ref := acquire(t, s, nobody)
	terms, err := s.Terms(bg, 5000)
	require.NoError(t, err)
	require.Len(t, terms, 1000)
	assert.Equal(t, ref.Term, terms[0].Term, "newest first")
	assert.Equal(t, int64(1200), terms[1].Term)
	assert.Equal(t, int64(202), terms[999].Term)
	terms, err = s.Terms(bg, 3)
	require.NoError(t, err)
	assert.Len(t, terms, 3)
}

// The whole of it: two Locks on one file.
func TestLocksOnOneFileHandOver(t *testing.T) {
	path := newStore(t).Path()
	quick := []schedlock.Option{schedlock.WithTTL(3 * time.Second),
		schedlock.WithHeartbeatInterval(100 * time.Millisecond), schedlock.WithLogger(quiet)}
	var locks []*schedlock.Lock
	for i := range 3 {
		lock, err := schedlock.New(mustOpen(t, path), append(quick,
			schedlock.WithOwner(driver.Owner{PID: 1, Hostname: fmt.Sprint(i)}))...)
		require.NoError(t, err)
		locks = append(locks, lock)
	}
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	var last int64
	for i := range 9 {
		leader, waiting := locks[i%3], locks[(i+1)%3]
		lease, err := leader.Wait(ctx)
		require.NoError(t, err)
		require.Greater(t, lease.Term(), last)
		last = lease.Term()
		_, err = waiting.Acquire(ctx)
		require.ErrorIs(t, err, schedlock.ErrHeld)
		require.NoError(t, lease.Heartbeat(ctx))
		require.NoError(t, lease.Release(ctx))
	}
}
