package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func job(t testing.TB, s *Store, name string) ledger.Job {
	t.Helper()
	jobs, err := s.Jobs(bg)
	require.NoError(t, err)
	for _, j := range jobs {
		if j.Name == name {
			return j
		}
	}
	t.Fatalf("no job %q", name)
	return ledger.Job{}
}

func finish(t testing.TB, s *Store, r ledger.Run, end ledger.End) {
	t.Helper()
	written, err := s.Finish(bg, r, end)
	require.NoError(t, err)
	require.True(t, written)
}

func retries(t testing.TB, s *Store) []ledger.Run {
	t.Helper()
	runs, err := s.Retries(bg)
	require.NoError(t, err)
	return runs
}

func TestASpoiledTimeConcernsItsRowOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	other := foreign(t, s)
	for _, name := range []string{"a", "b"} {
		r, _ := decide(t, s, ref, ledger.Decision{Job: name, Spec: "s", To: noon, Start: noon})
		finish(t, s, r, ledger.End{Status: ledger.Failed, RetryAt: noon})
	}
	bad := runs(t, s, "a")[0]
	run(t, other, `UPDATE scheduler_runs SET retry_at = 'soon' WHERE job = 'a'`)

	owed := retries(t, s)
	require.Len(t, owed, 1)
	assert.Equal(t, "b", owed[0].Job)
	clear := fmt.Sprintf(`database %s: scheduler_runs, id %d, job "a": retry_at: `+
		`time "soon" is not of the form 2006-01-02T15:04:05.000000Z`, s.Path(), bad.ID)
	_, found, err := s.Run(bg, "a", noon)
	assert.EqualError(t, err, clear)
	assert.False(t, found)
	rest, err := s.Runs(bg, "", 10)
	assert.EqualError(t, err, clear)
	require.Len(t, rest, 1, "the others come too")
	assert.Equal(t, "b", rest[0].Job)
	_, err = s.Abandon(bg, ref, nil)
	assert.NoError(t, err)

	// What was left in progress does not keep a leader from its begin.
	r, _ := decide(t, s, ref, ledger.Decision{Job: "c", Spec: "s", To: noon, Start: noon})
	run(t, other, `UPDATE scheduler_runs SET started_at = 'soon', term = 1 WHERE job = 'c'`)
	left, err := s.Abandon(bg, ref, nil)
	require.NoError(t, err)
	require.Len(t, left, 1)
	assert.Equal(t, r.ID, left[0].ID)

	// It can be mended without a shell.
	changed, err := s.GiveUp(bg, ref, bad)
	require.NoError(t, err)
	assert.True(t, changed)
	assert.True(t, runs(t, s, "a")[0].Final())

	// Times that only inform spoil nothing.
	run(t, other, `UPDATE scheduler_jobs
		SET last_failed_at = 'x', done_us = -1, longest_us = 9223372036854775807
		WHERE job = 'a'`)
	j := job(t, s, "a")
	assert.True(t, j.LastFailed.IsZero())
	assert.Zero(t, j.Total)
	assert.Positive(t, j.Longest)
}

// A hand has set the run back to its first attempt, so that the next one is the second again.
func TestARunThatWasSetBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	r, _ := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon})
	for _, text := range []string{"first", "once more"} {
		finish(t, s, r, ledger.End{Status: ledger.Failed, Error: text, RetryAt: noon})
		next, started, err := s.Retry(bg, ref, r)
		require.NoError(t, err)
		require.True(t, started)
		require.Equal(t, 2, next.Attempt)
		run(t, foreign(t, s), `UPDATE scheduler_runs SET attempt = 1`)
	}
	list, err := s.Attempts(bg, r.ID)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "first", list[0].Error)
}

// A hand may have spoiled a line: it hides no other one.
func TestALineWithoutATimeIsShown(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	run(t, foreign(t, s), `INSERT INTO scheduler_audit (at, what, job, by, reason)
		VALUES ('monday', 'pause', '', 'a hand', '')`)
	_, err := s.Pause(bg, ledger.Action{By: "ann"})
	require.NoError(t, err)
	list, err := s.Audit(bg, "", 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "ann", list[0].By)
	assert.Equal(t, ledger.AuditEntry{ID: 1, What: "pause", Action: ledger.Action{By: "a hand"}},
		list[1])
}

var order = ledger.Action{Job: "j", By: "ann", Reason: "why – ü 'x'"}

func inbox(t testing.TB, s *Store) ledger.Pending {
	t.Helper()
	in, err := s.Pending(bg)
	require.NoError(t, err)
	return in
}

// Those of many at the same time: see rule 72 of locktest.
func TestRequestsOfOneMomentGetTimesOfTheirOwn(t *testing.T) {
	t.Parallel()
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	decide(t, s, acquire(t, s), ledger.Decision{Job: "j", Spec: "s", To: noon})
	for i := range 20 {
		r, err := s.Trigger(bg, order)
		require.NoError(t, err)
		assert.Equal(t, clock.now().Add(time.Duration(i)*time.Microsecond), r.At)
	}
	assert.Len(t, inbox(t, s).Requests, 20)
}

func TestASpoiledRequestOrPauseConcernsItsRowOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	other := foreign(t, s)
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon})
	for _, at := range []string{"now", "", "2026-03-01 12:00:00", "2026-03-01T12:00:00Z"} {
		run(t, other, `INSERT INTO scheduler_requests VALUES ('j', ?, 'a hand', '')`, at)
	}
	request, err := s.Trigger(bg, order)
	require.NoError(t, err)
	assert.Equal(t, []ledger.Request{request}, inbox(t, s).Requests,
		"each that is shown can be answered")
	_, started, err := s.Answer(bg, ref, request, "")
	require.NoError(t, err)
	assert.True(t, started)

	// Whether a pause is in force does not hang on how its times are written.
	run(t, other, `INSERT INTO scheduler_pauses VALUES ('j', 'monday', 'a hand', '', NULL, NULL)`)
	_, _, err = s.Decide(bg, ref, ledger.Decision{Job: "j",
		Spec: "s", From: noon, To: noon, Start: noon})
	require.ErrorIs(t, err, ledger.ErrPaused)
	assert.NotNil(t, ledger.Pending{Pauses: inbox(t, s).Pauses}.Paused("j"))
	run(t, other, `UPDATE scheduler_pauses SET resumed_at = 'tuesday', resumed_by = 'a hand'`)
	assert.Nil(t, ledger.Pending{Pauses: inbox(t, s).Pauses}.Paused("j"))
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", From: noon, To: noon, Start: noon})
}
