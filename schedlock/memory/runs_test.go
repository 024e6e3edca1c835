package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

var tick = noon.UTC().Truncate(time.Minute)

func TestDecide(t *testing.T) {
	db, _ := at(noon)
	ref := win(t, db)
	now := noon.UTC().Truncate(time.Microsecond)
	run, started, err := db.Decide(ctx, ref, ledger.Decision{Job: "a", Spec: "1", To: tick, Start: tick})
	require.NoError(t, err)
	require.True(t, started)
	require.Equal(t, ledger.Run{ID: 1, Job: "a", ScheduledAt: tick, StartedAt: now, Status: ledger.InProgress, Term: ref.Term, PID: 7, Hostname: "h", Attempt: 1}, run)

	next := tick.Add(5 * time.Minute)
	d := ledger.Decision{Job: "a", Spec: "2", From: tick, To: next, Start: next, Skipped: []ledger.Skip{
		{First: tick.Add(time.Minute), Last: tick.Add(3 * time.Minute), Count: 3, Reason: ledger.Missed},
		{First: tick.Add(4 * time.Minute), Last: tick.Add(4 * time.Minute), Count: 1, Reason: ledger.Overlap},
	}}
	_, started, err = db.Decide(ctx, ref, d)
	require.NoError(t, err)
	require.True(t, started)
	jobs, err := db.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, []ledger.Job{{Name: "a", Spec: "2", Cursor: next}}, jobs)
	runs, err := db.Runs(ctx, "", 9)
	require.NoError(t, err)
	require.Len(t, runs, 4)
	require.Equal(t, next, runs[0].ScheduledAt, "newest scheduled time first")
	require.Equal(t, ledger.Run{ID: 3, Job: "a", ScheduledAt: tick.Add(4 * time.Minute), Status: ledger.Skipped, Term: ref.Term, PID: 7, Hostname: "h", Error: ledger.Overlap}, runs[1])
	require.Equal(t, tick.Add(3*time.Minute), runs[2].Until)
	require.EqualValues(t, 3, runs[2].Count)

	// The cursor moves by compare and swap, and never back.
	for name, bad := range map[string]ledger.Decision{
		"from where it stood":  d,
		"a job that is known":  {Job: "a", To: next},
		"a job that is new":    {Job: "b", From: tick, To: next},
		"back":                 {Job: "a", From: next, To: tick},
		"from what never was":  {Job: "a", From: next.Add(1000), To: next.Add(time.Hour)},
		"from before, forward": {Job: "a", From: tick, To: next.Add(time.Hour)},
	} {
		_, started, err := db.Decide(ctx, ref, bad)
		require.ErrorIs(t, err, schedlock.ErrMoved, name)
		require.False(t, started, name)
	}
	again, err := db.Runs(ctx, "a", 9)
	require.NoError(t, err)
	require.Equal(t, runs, again, "nothing was written")
}

func TestATickStartsOnce(t *testing.T) {
	db, _ := at(noon)
	ref := win(t, db)
	_, started, err := db.Decide(ctx, ref, ledger.Decision{Job: "a", To: tick, Start: tick})
	require.NoError(t, err)
	require.True(t, started)
	_, started, err = db.Decide(ctx, ref, ledger.Decision{Job: "a", From: tick, To: tick.Add(time.Minute), Start: tick})
	require.NoError(t, err)
	require.False(t, started)
	jobs, err := db.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, tick.Add(time.Minute), jobs[0].Cursor, "the cursor moves all the same")
	_, started, err = db.Decide(ctx, ref, ledger.Decision{Job: "b", To: tick, Start: tick})
	require.NoError(t, err)
	require.True(t, started, "another job")
}

func TestTheLedgerIsGuardedByTheLockRow(t *testing.T) {
	db, _ := at(noon)
	old := win(t, db)
	run, _, err := db.Decide(ctx, old, ledger.Decision{Job: "a", To: tick, Start: tick})
	require.NoError(t, err)
	ref := win(t, db)
	_, started, err := db.Decide(ctx, old, ledger.Decision{Job: "a", From: tick, To: tick.Add(time.Minute), Start: tick.Add(time.Minute)})
	require.ErrorIs(t, err, schedlock.ErrLost)
	require.False(t, started)
	_, err = db.Abandon(ctx, old)
	require.ErrorIs(t, err, schedlock.ErrLost)

	_, _, err = db.Decide(ctx, ref, ledger.Decision{Job: "b", To: tick, Start: tick})
	require.NoError(t, err)
	runs, err := db.Abandon(ctx, ref)
	require.NoError(t, err)
	require.Len(t, runs, 1, "not its own")
	require.Equal(t, run.ID, runs[0].ID)
	require.Equal(t, ledger.Abandoned, runs[0].Status)
	require.False(t, runs[0].FinishedAt.IsZero())
	written, err := db.Finish(ctx, run, ledger.Done, "")
	require.NoError(t, err)
	require.False(t, written, "it is not in progress any more")
}

func TestFinish(t *testing.T) {
	db, now := at(noon)
	ref := win(t, db)
	run, _, err := db.Decide(ctx, ref, ledger.Decision{Job: "a", To: tick, Start: tick})
	require.NoError(t, err)
	*now = noon.Add(time.Second)
	for _, other := range []ledger.Run{{}, {ID: 99}, {ID: run.ID, Term: run.Term + 1, Attempt: 1}, {ID: run.ID, Term: run.Term, Attempt: 2}} {
		written, err := db.Finish(ctx, other, ledger.Done, "")
		require.NoError(t, err)
		require.False(t, written)
	}
	written, err := db.Finish(ctx, run, ledger.Failed, "boom")
	require.NoError(t, err)
	require.True(t, written)
	runs, err := db.Runs(ctx, "a", 1)
	require.NoError(t, err)
	require.Equal(t, ledger.Failed, runs[0].Status)
	require.Equal(t, "boom", runs[0].Error)
	require.Equal(t, time.Second, runs[0].FinishedAt.Sub(runs[0].StartedAt))
	runs, err = db.Runs(ctx, "b", 9)
	require.NoError(t, err)
	require.Empty(t, runs)
}
