package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

var ann = ledger.Action{Job: "j", By: "ann", Reason: "why"}

// decided is a database whose clock stands, where job j is decided up to noon.
func decided(t *testing.T) (*memory.Store, time.Time) {
	db := atNoon()
	tick := noon.UTC().Truncate(time.Microsecond)
	_, _, err := db.Decide(ctx, win(t, db), ledger.Decision{Job: "j", To: tick})
	require.NoError(t, err)
	return db, tick
}

// Where the clock stands, as in a testing/synctest bubble, requests and ticks
// still have times of their own.
func TestRequestsHaveTimesOfTheirOwn(t *testing.T) {
	db, tick := decided(t)
	ref := look(t, db).Row.Ref
	_, _, err := db.Decide(ctx, ref, ledger.Decision{Job: "j", From: tick, To: tick, Start: tick})
	require.NoError(t, err)
	for i := range 3 {
		r, err := db.Trigger(ctx, ann)
		require.NoError(t, err)
		require.Equal(t, tick.Add(time.Duration(i+1)*time.Microsecond), r.At)
		if i == 1 {
			_, started, err := db.Answer(ctx, ref, r, "")
			require.NoError(t, err)
			require.True(t, started)
		}
	}
}

func TestABackupHasAllTables(t *testing.T) {
	db, tick := decided(t)
	ref := look(t, db).Row.Ref
	r, err := db.Trigger(ctx, ann)
	require.NoError(t, err)
	p, err := db.Pause(ctx, ledger.Action{By: "ann"})
	require.NoError(t, err)
	locks, queue := db.Named(), db.Queue()
	claim := namedlock.Claim{Key: namedlock.Key{Kind: namedlock.KindLock, Name: "a"}, Owner: owner,
		Token: driver.NewToken(), TTL: time.Minute}
	term, _, err := locks.Take(ctx, claim)
	require.NoError(t, err)
	_, err = queue.Add(ctx, "q", 1, []string{"a"})
	require.NoError(t, err)
	restore := db.Backup()
	for range 2 {
		_, err = db.Resume(ctx, "", "bob")
		require.NoError(t, err)
		run, started, err := db.Answer(ctx, ref, r, "")
		require.NoError(t, err)
		require.True(t, started)
		require.EqualValues(t, 1, run.ID)
		_, err = db.Finish(ctx, run, ledger.End{Status: ledger.Done})
		require.NoError(t, err)
		_, err = locks.Release(ctx, namedlock.Ref{Key: claim.Key, Token: claim.Token, Term: term},
			true)
		require.NoError(t, err)
		tasks, err := queue.Capture(ctx, "q", driver.NewToken(), time.Hour, 1)
		require.NoError(t, err)
		require.Len(t, tasks, 1)
		_, err = queue.Add(ctx, "q", 1, []string{"b"})
		require.NoError(t, err)
		restore()
		in, err := db.Pending(ctx)
		require.NoError(t, err)
		require.Equal(t, ledger.Pending{Requests: []ledger.Request{}, Pauses: []ledger.Pause{p},
			Backlog: map[string]int{"j": 1}}, in)
		jobs, err := db.Jobs(ctx)
		require.NoError(t, err)
		require.Equal(t, []ledger.Job{{Name: "j", Cursor: tick}}, jobs)
		_, found, err := db.Run(ctx, "j", r.At)
		require.NoError(t, err)
		require.False(t, found)
		row, err := locks.Look(ctx, claim.Key)
		require.NoError(t, err)
		require.Equal(t, claim.Token, row.Token)
		_, found, err = queue.Get(ctx, "q", "b")
		require.NoError(t, err)
		require.False(t, found)
	}
}

func TestTheAttemptsOfARunThatHasGoneOn(t *testing.T) {
	db, tick := decided(t)
	ref := look(t, db).Row.Ref
	run, _, err := db.Decide(ctx, ref, ledger.Decision{Job: "j", From: tick, To: tick, Start: tick})
	require.NoError(t, err)
	var read ledger.Run
	for range 3 {
		_, err = db.Finish(ctx, run, ledger.End{Status: ledger.Failed, RetryAt: tick})
		require.NoError(t, err)
		run, _, err = db.Retry(ctx, ref, run)
		require.NoError(t, err)
		if run.Attempt == 2 {
			read = run
		}
	}
	list, err := ledger.Attempts(ctx, db, read)
	require.NoError(t, err)
	require.Len(t, list, 2, "what was read, and what was before it")
	require.Equal(t, 2, list[0].Number)
	require.Equal(t, ledger.InProgress, list[0].Status)
	require.Equal(t, 1, list[1].Number)
	list, err = ledger.Attempts(ctx, db, ledger.Run{ID: run.ID, Status: ledger.Skipped})
	require.NoError(t, err)
	require.Empty(t, list, "of a skipped run")
}
