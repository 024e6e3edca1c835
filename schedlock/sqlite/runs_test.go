package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// decide writes a decision that must succeed.
func decide(t testing.TB, s *Store, ref driver.Ref, d ledger.Decision) (ledger.Run, bool) {
	t.Helper()
	run, started, err := s.Decide(bg, ref, d)
	require.NoError(t, err)
	return run, started
}

func runs(t testing.TB, s *Store, job string) []ledger.Run {
	t.Helper()
	runs, err := s.Runs(bg, job, 1000)
	require.NoError(t, err)
	return runs
}

func TestDecideStartsARunAndMovesTheCursor(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
	jobs, err := s.Jobs(bg)
	require.NoError(t, err)
	require.Empty(t, jobs)

	// A new job: no row yet.
	got, started := decide(t, s, ref, ledger.Decision{Job: "j",
		Spec: "hourly", To: noon, Start: noon})
	require.True(t, started)
	want := ledger.Run{ID: got.ID, Job: "j", ScheduledAt: noon, StartedAt: clock.now(),
		Status: ledger.InProgress,
		Term:   ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1}
	assert.Equal(t, want, got)
	assert.Equal(t, []ledger.Run{want}, runs(t, s, "j"))

	// The next: with a range that was skipped, and a single tick.
	to := noon.Add(5 * time.Hour)
	_, started = decide(t, s, ref, ledger.Decision{Job: "j",
		Spec: "hourly v2", From: noon, To: to, Start: to, Skipped: []ledger.Skip{
			{First: noon.Add(time.Hour), Last: noon.Add(3 * time.Hour), Count: 3,
				Reason: ledger.Missed},
			{First: noon.Add(4 * time.Hour), Last: noon.Add(4 * time.Hour), Count: 1,
				Reason: ledger.Overlap},
		}})
	require.True(t, started)
	jobs, err = s.Jobs(bg)
	require.NoError(t, err)
	assert.Equal(t, []ledger.Job{{Name: "j", Spec: "hourly v2", Cursor: to}}, jobs)
	all := runs(t, s, "j")
	require.Len(t, all, 4)
	skipped := ledger.Run{Job: "j", Status: ledger.Skipped, Term: ref.Term, PID: ref.PID,
		Hostname: ref.Hostname}
	one, many := skipped, skipped
	one.ID, one.ScheduledAt, one.Error = all[1].ID, noon.Add(4*time.Hour), ledger.Overlap
	many.ID, many.ScheduledAt, many.Error, many.Until, many.Count = all[2].ID, noon.Add(time.Hour),
		ledger.Missed, noon.Add(3*time.Hour), 3
	assert.Equal(t, one, all[1])
	assert.Equal(t, many, all[2])

	// Only the cursor.
	_, started = decide(t, s, ref, ledger.Decision{Job: "j", Spec: "hourly v2", From: to, To: to})
	assert.False(t, started)
	assert.Len(t, runs(t, s, "j"), 4)
}

func TestDecideIsGuardedAndComparesTheCursor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ref   func(*driver.Ref)
		d     ledger.Decision
		wants error
	}{
		"another token": {func(r *driver.Ref) {
			r.Token = driver.NewToken()
		}, ledger.Decision{From: noon, To: noon.Add(1)}, driver.ErrLost},
		"another term": {func(r *driver.Ref) {
			r.Term--
		}, ledger.Decision{From: noon, To: noon.Add(1)}, driver.ErrLost},
		"the cursor stands elsewhere": {nil, ledger.Decision{From: noon.Add(-time.Microsecond),
			To: noon.Add(time.Hour)}, driver.ErrConflict},
		"the job has a row already": {nil, ledger.Decision{To: noon.Add(time.Hour)},
			driver.ErrConflict},
		"the cursor would go back": {nil, ledger.Decision{From: noon,
			To: noon.Add(-time.Microsecond)}, driver.ErrConflict},
		"the job has no row": {nil, ledger.Decision{Job: "unknown",
			From: noon, To: noon.Add(time.Hour)}, driver.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			other := foreign(t, s)
			ref := acquire(t, s, nobody)
			decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon})
			before := dump(t, other)
			if tc.ref != nil {
				tc.ref(&ref)
			}
			if tc.d.Job == "" {
				tc.d.Job = "j"
			}
			tc.d.Spec, tc.d.Start = "s", noon.Add(time.Hour)
			tc.d.Skipped = []ledger.Skip{{First: noon, Last: noon, Count: 1, Reason: ledger.Missed}}
			_, started, err := s.Decide(bg, ref, tc.d)
			require.ErrorIs(t, err, tc.wants)
			assert.False(t, started)
			assert.Equal(t, before, dump(t, other), "nothing was written")
			wantNoWriteLock(t, other, name)
		})
	}
}

func TestATickThatIsInTheLedgerIsNotStartedAgain(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	_, started := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon})
	require.True(t, started)
	// A hand has set the cursor back.
	run(t, foreign(t, s), `UPDATE scheduler_jobs SET cursor_at = '2026-03-01T11:00:00.000000Z'`)
	before := runs(t, s, "j")
	_, started = decide(t, s, ref, ledger.Decision{Job: "j",
		Spec: "s", From: noon.Add(-time.Hour), To: noon, Start: noon})
	assert.False(t, started)
	assert.Equal(t, before, runs(t, s, "j"))
	jobs, err := s.Jobs(bg)
	require.NoError(t, err)
	assert.Equal(t, noon, jobs[0].Cursor, "the cursor moves all the same")
	_, started = decide(t, s, ref, ledger.Decision{Job: "another",
		Spec: "s", To: noon, Start: noon})
	assert.True(t, started, "a tick is a job's")
}

func TestFinishIsScopedToTermAttemptAndInProgress(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
	r, _ := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon})
	before := runs(t, s, "j")
	for name, spoil := range map[string]func(*ledger.Run){
		"another id":      func(r *ledger.Run) { r.ID++ },
		"another term":    func(r *ledger.Run) { r.Term++ },
		"another attempt": func(r *ledger.Run) { r.Attempt++ },
	} {
		spoiled := r
		spoil(&spoiled)
		written, err := s.Finish(bg, spoiled, ledger.End{Status: ledger.Done})
		require.NoError(t, err)
		assert.False(t, written, name)
	}
	assert.Equal(t, before, runs(t, s, "j"))

	now := clock.add(time.Second)
	_, err := s.Release(bg, ref, driver.EndLost)
	require.NoError(t, err)
	written, err := s.Finish(bg, r, ledger.End{Status: ledger.Failed, Error: "no space left"})
	require.NoError(t, err)
	assert.True(t, written, "it needs no lock")
	want := r
	want.Status, want.FinishedAt, want.Error = ledger.Failed, now, "no space left"
	assert.Equal(t, []ledger.Run{want}, runs(t, s, "j"))
	written, err = s.Finish(bg, r, ledger.End{Status: ledger.Done})
	require.NoError(t, err)
	assert.False(t, written, "an end is written once")
	assert.Equal(t, []ledger.Run{want}, runs(t, s, "j"))
}

func TestAbandonMarksTheRunsOfEarlierTermsOnly(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	old := acquire(t, s, nobody)
	left, _ := decide(t, s, old, ledger.Decision{Job: "left", Spec: "s", To: noon, Start: noon})
	done, _ := decide(t, s, old, ledger.Decision{Job: "done", Spec: "s", To: noon, Start: noon})
	_, err := s.Finish(bg, done, ledger.End{Status: ledger.Done})
	require.NoError(t, err)
	ref := acquire(t, s, nobody)
	own, _ := decide(t, s, ref, ledger.Decision{Job: "own", Spec: "s", To: noon, Start: noon})

	_, err = s.Abandon(bg, old, nil)
	require.ErrorIs(t, err, driver.ErrLost, "only the holder may")
	now := clock.add(time.Second)
	abandoned, err := s.Abandon(bg, ref, nil)
	require.NoError(t, err)
	want := left
	want.Status, want.FinishedAt = ledger.Abandoned, now
	assert.Equal(t, []ledger.Run{want}, abandoned)
	assert.Equal(t, []ledger.Run{want}, runs(t, s, "left"))
	assert.Equal(t, ledger.Done, runs(t, s, "done")[0].Status)
	assert.Equal(t, []ledger.Run{own}, runs(t, s, "own"))
	abandoned, err = s.Abandon(bg, ref, nil)
	require.NoError(t, err)
	assert.Empty(t, abandoned)

	written, err := s.Finish(bg, left, ledger.End{Status: ledger.Done})
	require.NoError(t, err)
	assert.False(t, written, "its old leader comes too late")
}

func TestRunsAreNewestFirst(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	for _, job := range []string{"a", "b"} {
		from := time.Time{}
		for _, h := range []time.Duration{1, 2, 3} {
			at := noon.Add(h * time.Hour)
			decide(t, s, ref, ledger.Decision{Job: job, Spec: "s", From: from, To: at, Start: at})
			from = at
		}
	}
	names := func(runs []ledger.Run) (got []string) {
		for _, r := range runs {
			got = append(got, r.Job+r.ScheduledAt.Format(" 15"))
		}
		return got
	}
	assert.Equal(t, []string{"b 15", "a 15", "b 14", "a 14", "b 13", "a 13"}, names(runs(t, s, "")))
	assert.Equal(t, []string{"a 15", "a 14", "a 13"}, names(runs(t, s, "a")))
	some, err := s.Runs(bg, "", 3)
	require.NoError(t, err)
	assert.Equal(t, []string{"b 15", "a 15", "b 14"}, names(some))
	some, err = s.Runs(bg, "b", 1)
	require.NoError(t, err)
	assert.Equal(t, []string{"b 15"}, names(some))
	some, err = s.Runs(bg, "none", 100)
	require.NoError(t, err)
	assert.Equal(t, []ledger.Run{}, some, "an empty list, not null, in JSON")
	jobs, err := s.Jobs(bg)
	require.NoError(t, err)
	assert.Len(t, jobs, 2)
	assert.Equal(t, "a", jobs[0].Name)
}

func TestTheLedgerKeepsMicroseconds(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	tick := noon.Add(123456 * time.Microsecond)
	r, started := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: tick, Start: tick})
	require.True(t, started)
	assert.Equal(t, tick, runs(t, s, "j")[0].ScheduledAt)
	assert.Equal(t, tick, r.ScheduledAt)
	_, started = decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", From: tick,
		To: tick.Add(time.Microsecond), Start: tick.Add(time.Microsecond)})
	assert.True(t, started, "the next microsecond is another tick")
}
