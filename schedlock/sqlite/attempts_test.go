package sqlite

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
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

func TestTheLastErrorIsCutBetweenCharacters(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	from := time.Time{}
	for i, tc := range []struct{ text, want string }{
		{strings.Repeat("ü", 1000), strings.Repeat("ü", 1000)},
		{strings.Repeat("🦀", 1001), strings.Repeat("🦀", 1000)},
		{"a\x00b" + strings.Repeat("x", 5000), "a\x00b" + strings.Repeat("x", 997)},
		{strings.Repeat("\xff", 2000), strings.Repeat("\xff", 1000)},
		{"", ""},
	} {
		at := noon.Add(time.Duration(i) * time.Hour)
		r, _ := decide(t, s, ref, ledger.Decision{Job: "j",
			Spec: "s", From: from, To: at, Start: at})
		from = at
		finish(t, s, r, ledger.End{Status: ledger.Failed, Error: tc.text})
		assert.Equal(t, tc.want, job(t, s, "j").LastError)
		assert.Equal(t, tc.text, runs(t, s, "j")[0].Error, "the run has all of it")
	}
}

func init() {
	// Dies between two of the runs that it abandons.
	child.Modes["ledger abandon"] = func() {
		s, err := Open(bg, os.Args[1])
		if err != nil {
			panic(err)
		}
		v, err := s.Look(bg)
		if err != nil {
			panic(err)
		}
		asked := 0
		_, err = s.Abandon(bg, v.Row.Ref, func(ledger.Run) time.Time {
			if asked++; asked == 2 {
				fmt.Println("in the middle")
				select {}
			}
			return noon
		})
		panic(err)
	}
}

func TestAProcessKilledWhileItAbandonsHasWrittenNothing(t *testing.T) {
	s := newStore(t)
	old := acquire(t, s, nobody)
	for _, name := range []string{"a", "b", "c"} {
		decide(t, s, old, ledger.Decision{Job: name, Spec: "s", To: noon, Start: noon})
	}
	ref := acquire(t, s, nobody)
	other := foreign(t, s)
	before := dump(t, other)
	process := child.Start(t, "ledger abandon", s.Path())
	require.Equal(t, "in the middle", process.Line())
	require.NoError(t, process.Cmd.Process.Kill())
	_ = process.Cmd.Wait()
	wantNoWriteLock(t, other, "the child")
	assert.Equal(t, before, dump(t, other))

	due := noon.Add(time.Hour)
	var asked []ledger.Run
	abandoned, err := s.Abandon(bg, ref, func(r ledger.Run) time.Time {
		asked = append(asked, r)
		if r.Job == "b" {
			return time.Time{}
		}
		return due.Add(time.Nanosecond)
	})
	require.NoError(t, err)
	require.Len(t, abandoned, 3)
	for i, r := range abandoned {
		assert.Equal(t, []ledger.Run{r}, runs(t, s, r.Job))
		assert.Equal(t, r.Job != "b", r.RetryAt.Equal(due))
		r.RetryAt = time.Time{}
		assert.Equal(t, r, asked[i], "it is asked about what is in the row then")
		assert.Equal(t, ledger.Stats{Failed: 1, Streak: 1, LastFailed: r.FinishedAt},
			job(t, s, r.Job).Stats)
	}
	assert.Len(t, retries(t, s), 2)
}

func TestASpoiledTimeConcernsItsRowOnly(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
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

// An attempt and the copy of the one before are written together, or not at all.
func TestARetryThatCannotKeepTheAttemptBeforeDoesNotStart(t *testing.T) {
	s := newStore(t)
	conn := foreign(t, s)
	ref := acquire(t, s, nobody)
	r, _ := decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon, Start: noon})
	finish(t, s, r, ledger.End{Status: ledger.Failed, Error: "why", RetryAt: noon})
	run(t, conn, `CREATE TRIGGER full BEFORE INSERT ON scheduler_attempts
		BEGIN SELECT RAISE(ABORT, 'no attempts here'); END`)
	before := dump(t, conn)
	_, started, err := s.Retry(bg, ref, r)
	require.ErrorContains(t, err, "no attempts here")
	require.False(t, started)
	require.Equal(t, before, dump(t, conn))
	run(t, conn, `DROP TRIGGER full`)
	_, started, err = s.Retry(bg, ref, r)
	require.NoError(t, err)
	require.True(t, started)
}

// A hand has set the run back to its first attempt, so that the next one is the second again.
func TestARunThatWasSetBackIsTriedAgain(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
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
