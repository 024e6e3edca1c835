package mysql_test

import (
	"database/sql"
	"errors"
	"flag"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/mysql"
)

var roundsFlag = flag.Int("mysql.rounds", 0,
	"how often twenty replicas claim the lock on each path; 0: 5 times, or 20 in a full run")

func rounds() int {
	switch {
	case *roundsFlag > 0:
		return *roundsFlag
	case missing.Full():
		return 20
	}
	return 5
}

// Twenty replicas judge the same, many times, on each path of an acquisition.
func TestOfTwentyClaimantsOneWins(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	twentyClaim(t, byHand(t, url), []string{url})
}

// twentyClaim needs tables; db is the same database.
func twentyClaim(t *testing.T, db *sql.DB, urls []string) {
	stores := make([]*mysql.Store, 20)
	for i := range stores {
		stores[i] = open(t, urls[i%len(urls)])
	}
	for _, path := range []struct {
		name   string
		before func(t *testing.T, s *mysql.Store, ref driver.Ref)
	}{
		{"take-over", func(*testing.T, *mysql.Store, driver.Ref) {}},
		{"free", func(t *testing.T, s *mysql.Store, ref driver.Ref) { release(t, s, ref) }},
		{"first", func(t *testing.T, _ *mysql.Store, _ driver.Ref) { empty(t, db) }},
		{"first, without the row of the fence", func(t *testing.T, _ *mysql.Store, _ driver.Ref) {
			empty(t, db)
			exec(t, db, `DELETE FROM scheduler_fence`)
		}},
	} {
		t.Run(path.name, func(t *testing.T) {
			empty(t, db)
			last := acquire(t, stores[0])
			moved, busy := 0, 0
			for round := range rounds() {
				path.before(t, stores[round%20], last)
				var (
					all  sync.WaitGroup
					mu   sync.Mutex
					wins []driver.Ref
				)
				start := make(chan struct{})
				for _, s := range stores {
					c := claim(look(t, s))
					c.MinTerm = last.Term + 1
					all.Go(func() {
						<-start
						grant, err := s.Acquire(ctx, c)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							c.Term = grant.Term
							wins = append(wins, c.Ref)
						case errors.Is(err, driver.ErrConflict):
							moved++
						case errors.Is(err, driver.ErrBlocked):
							busy++
						default:
							t.Error(err)
						}
					})
				}
				close(start)
				all.Wait()
				require.Len(t, wins, 1, "round %d", round)
				require.Greater(t, wins[0].Term, last.Term)
				last = wins[0]
				for _, s := range stores[:len(urls)] { // one on each node
					row := look(t, s).Row
					require.NotNil(t, row)
					require.Equal(t, last, row.Ref)
				}
				heartbeat(t, stores[round%20], last)
				require.Equal(t, last.Term, value[int64](t, db, `SELECT term FROM scheduler_fence`))
			}
			t.Logf("%d rounds, each with one winner; the others were told %d times that it has moved "+
				"and %d times that it is busy", rounds(), moved, busy)
		})
	}
}

// An acquisition clears old terms away by chance, so rule 33 seldom sees how many stay.
func TestTheNewestThousandTermsStayWhenOldOnesGo(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, db := open(t, url), byHand(t, url)
	fill(t, db, locktest.Fill{Terms: 1100})
	count := func() int { return value[int](t, db, `SELECT count(*) FROM scheduler_terms`) }
	for had := count(); ; had++ {
		require.Less(t, had, 5000, "no old term goes")
		acquire(t, s)
		if left := count(); left <= had {
			require.Equal(t, 1000, left)
			return
		}
	}
}

// A hand has written a 0, which is no term, where the next term belongs.
func TestANextTermOfZeroLetsSomebodyLead(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	release(t, s, acquire(t, s))
	exec(t, byHand(t, url), `UPDATE scheduler_terms SET next_term = 0`)
	require.NotZero(t, acquire(t, s).Term)
}

// What an acquisition has locked until the server ends it must not stay locked, and what
// follows on its connection must not become a part of it.
func TestAnAcquisitionThatTheServerEndsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	db, s, other := byHand(t, url), open(t, url), open(t, url)
	ref := acquire(t, s)
	tx := begin(t, db, nil)
	value[int](t, tx.Tx.(*sql.Tx), `SELECT beat FROM scheduler_lock FOR UPDATE`)
	for range 3 { // it waits for a second; the look at the processes may miss it
		got := make(chan error, 1)
		c := claim(look(t, s))
		go func() {
			_, err := s.Acquire(ctx, c)
			got <- err
		}()
		var (
			id  int64
			err error
		)
		for id == 0 && err == nil {
			id = value[int64](t, db, `SELECT coalesce(max(id), 0) FROM information_schema.processlist
				WHERE db = database() AND info IS NOT NULL AND id <> connection_id()`)
			select {
			case err = <-got:
			case <-time.After(time.Millisecond):
			}
		}
		if err == nil {
			_, _ = db.Exec(`KILL QUERY ?`, id)
			err = <-got
		}
		require.Error(t, err)
		require.NotErrorIs(t, err, driver.ErrConflict)
		if !strings.Contains(err.Error(), "1317") {
			continue
		}
		require.NoError(t, tx.Rollback())
		heartbeat(t, s, ref)
		require.EqualValues(t, 1, look(t, other).Row.Beat, "the heartbeat is not committed")
		acquire(t, other)
		return
	}
	t.Fatal("it was never killed in time")
}
