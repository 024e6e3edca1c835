package locktest

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// noon is a tick, with all digits that the ledger keeps.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// minute is the tick n minutes past noon.
func minute(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }

func sortJobs(jobs []ledger.Job) {
	slices.SortFunc(jobs, func(a, b ledger.Job) int { return cmp.Compare(a.Name, b.Name) })
}

func sortPauses(pauses []ledger.Pause) {
	slices.SortFunc(pauses, func(a, b ledger.Pause) int { return cmp.Compare(a.Job, b.Job) })
}

func (e *env) ledger() ledger.Store { return e.s.(ledger.Store) }

// decide makes a decision that must be accepted.
func (e *env) decide(ref driver.Ref, d ledger.Decision, why ...string) (run ledger.Run,
	started bool) {
	e.Helper()
	run, started, err := e.ledger().Decide(e.ctx, ref, d)
	require.NoError(e, err, "Decide %s", why)
	return run, started
}

// missed are the ticks from the first to the last minute.
func missed(first, last int) ledger.Skip {
	return ledger.Skip{First: minute(first), Last: minute(last), Count: int64(last - first + 1),
		Reason: ledger.Missed}
}

// start decides to run a tick, from where the job's cursor stands, if it has one.
func (e *env) start(ref driver.Ref, job string, tick time.Time) ledger.Run {
	e.Helper()
	d := ledger.Decision{Job: job, Spec: "s", To: tick, Start: tick}
	for _, j := range e.jobs() {
		if j.Name == job {
			d.From = j.Cursor
		}
	}
	run, started := e.decide(ref, d)
	require.True(e, started, "Decide: started")
	// As a table keeps them: a store may return what it was given, or its clock.
	run.ScheduledAt = run.ScheduledAt.UTC()
	run.StartedAt = run.StartedAt.Truncate(time.Microsecond)
	return run
}

// finish ends an attempt that is in progress.
func (e *env) finish(run ledger.Run, end ledger.End) {
	e.Helper()
	written, err := e.ledger().Finish(e.ctx, run, end)
	require.NoError(e, err, "Finish")
	require.True(e, written, "Finish: written")
}

func (e *env) runs(job string, limit int) []ledger.Run {
	e.Helper()
	runs, err := e.ledger().Runs(e.ctx, job, limit)
	require.NoError(e, err, "Runs")
	return runs
}

func (e *env) jobs() []ledger.Job {
	e.Helper()
	jobs, err := e.ledger().Jobs(e.ctx)
	require.NoError(e, err, "Jobs")
	sortJobs(jobs)
	return jobs
}

// oneStarts calls f on all handles at the same time, once more after an error,
// and fails unless one of them is told that it started something.
func (e *env) oneStarts(handles []driver.Store, f func(l ledger.Store) (mine bool, err error)) {
	e.Helper()
	var started, unknown atomic.Int64
	together(handles, func(s driver.Store) {
		for e.ctx.Err() == nil {
			mine, err := f(s.(ledger.Store))
			if mine {
				started.Add(1)
			}
			if err == nil {
				return
			}
			unknown.Add(1) // it was busy: once more
		}
	})
	require.LessOrEqual(e, started.Load(), int64(1), "how many were told that they started it")
	if unknown.Load() == 0 {
		require.EqualValues(e, 1, started.Load(), "how many were told that they started it")
	}
}

var ledgerCases = []testCase{
	{Rule: Rule{44, "a job begins once",
		"Decide with From zero inserts the job's row; it returns ErrConflict if there is one, " +
			"and a Decide with From returns ErrConflict if there is none.",
		"two leaders in a row both begin a job anew, and its ticks run twice.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			require.Empty(e, e.jobs())
			e.start(ref, "a", noon)
			e.unchanged(func() {
				for name, d := range map[string]ledger.Decision{
					"the job has a row": {Job: "a", Spec: "other", To: minute(1),
						Start: minute(1)},
					"the job has no row": {Job: "b", Spec: "s", From: noon, To: minute(1),
						Start: minute(1)},
					"the job has this row": {Job: "a", Spec: "s", To: noon},
				} {
					_, started, err := e.ledger().Decide(e.ctx, ref, d)
					require.ErrorIs(e, err, driver.ErrConflict, name)
					require.False(e, started, name)
				}
			}, "a decision that has moved")
		}},
	{Rule: Rule{45, "only the holder decides",
		"Decide returns ErrLost, and writes nothing, for another token, another term, the lease " +
			"before, and without a row.",
		"an old leader starts runs beside its successor.", []Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			e.start(old, "a", noon)
			ref := e.win(alice)
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Decide": func(r driver.Ref) (bool, error) {
					_, started, err := e.ledger().Decide(e.ctx, r, ledger.Decision{Job: "a",
						Spec: "s", From: noon, To: minute(1), Start: minute(1)})
					return started, err
				},
				"Decide, of a new job": func(r driver.Ref) (bool, error) {
					_, started, err := e.ledger().Decide(e.ctx, r,
						ledger.Decision{Job: "b", Spec: "s", To: noon, Start: noon})
					return started, err
				},
			})
		}},
	{Rule: Rule{46, "the cursor is compared and swapped",
		"Decide returns ErrConflict, and writes nothing, unless the cursor stands at From, to " +
			"the microsecond; and the cursor never goes back.",
		"ticks are decided twice, or passed over.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.start(ref, "a", noon)
			e.start(ref, "a", minute(2))
			e.unchanged(func() {
				for name, d := range map[string]ledger.Decision{
					"the cursor has moved": {From: noon, To: minute(3), Start: minute(3)},
					"it stands 1 µs earlier": {From: minute(2).Add(time.Microsecond),
						To: minute(3), Start: minute(3)},
					"it stands 1 µs later": {From: minute(2).Add(-time.Microsecond),
						To: minute(3), Start: minute(3)},
					"the cursor would go back": {From: minute(2), To: minute(1)},
					"it would go back, and skip": {From: minute(2), To: minute(1),
						Skipped: []ledger.Skip{missed(1, 1)}},
					"the cursor has moved, with skips": {From: noon, To: minute(3),
						Skipped: []ledger.Skip{missed(1, 1)}},
				} {
					d.Job, d.Spec = "a", "other"
					_, started, err := e.ledger().Decide(e.ctx, ref, d)
					require.ErrorIs(e, err, driver.ErrConflict, name)
					require.False(e, started, name)
				}
			}, "a decision that has moved")
			// In place it may stay: a new spec.
			e.decide(ref, ledger.Decision{Job: "a", Spec: "new",
				From: minute(2).In(time.FixedZone("", 3600)), To: minute(2)})
		}},
	{Rule: Rule{47, "a tick starts once",
		"A second Decide of a tick that is in the ledger returns started = false; the cursor " +
			"moves all the same. Other jobs are no concern.",
		"a job runs twice for one scheduled time.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.finish(e.start(ref, "a", noon), ledger.End{Status: ledger.Done})
			ref = e.win(bob)
			want := e.runs("a", 10)
			_, started := e.decide(ref,
				ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(1), Start: noon})
			require.False(e, started, "a tick that has run")
			require.Equal(e, want, e.runs("a", 10))
			require.Equal(e, minute(1), e.jobs()[0].Cursor, "the cursor")
			e.start(ref, "b", noon)
			e.start(ref, "a", minute(2))
		}},
	{Rule: Rule{48, "one of many starts a tick",
		"Of many decisions about the same tick at the same time exactly one is told that it " +
			"started it.",
		"two schedulers of one leader, or a retried decision, run a job twice.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			handles := e.handles(5)
			from := time.Time{}
			for round := range 4 {
				to := minute(round)
				e.oneStarts(handles, func(l ledger.Store) (bool, error) {
					_, mine, err := l.Decide(e.ctx, ref,
						ledger.Decision{Job: "a", Spec: "s", From: from, To: to, Start: to})
					if errors.Is(err, driver.ErrConflict) {
						return mine, nil
					}
					return mine, err
				})
				require.Len(e, e.runs("a", 100), round+1, "runs")
				from = to
			}
		}},
	{Rule: Rule{49, "a run is recorded whole",
		"Decide returns the run as Runs does: in progress, attempt 1, with the id, the tick, the " +
			"database's time, and the holder's term, pid and hostname.",
		"the end of a run cannot be recorded, or the history blames another replica.",
		[]Feature{Ledger}},
		run: func(e *env) {
			for i, owner := range []driver.Owner{alice, {PID: 1<<31 - 1, Hostname: "o'hara-ü"}} {
				job := []string{"a", `job "x" – 'ü' 🦀; --`}[i]
				ref := e.win(owner)
				before := e.look().Now.Truncate(time.Microsecond)
				run := e.start(ref, job, noon)
				require.NotZero(e, run.ID)
				require.WithinRange(e, run.StartedAt, before, e.look().Now)
				want := ledger.Run{ID: run.ID, Job: job, ScheduledAt: noon,
					StartedAt: run.StartedAt, Status: ledger.InProgress,
					Term: ref.Term, PID: owner.PID, Hostname: owner.Hostname, Attempt: 1}
				require.Equal(e, want, e.runs(job, 1)[0], "Runs")
				require.Equal(e, want, run, "Decide")
			}
		}},
	{Rule: Rule{50, "skipped ticks are recorded",
		"A range of skipped ticks is one row, with its last tick, count and reason; a single one " +
			"has neither last tick nor count; one that is in the ledger stays as it was.",
		"a tick is neither run nor accounted for, or a run is overwritten.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.start(ref, "a", noon)
			d := ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(9), Start: minute(9),
				Skipped: []ledger.Skip{
					missed(0, 0),
					missed(1, 5),
					{First: minute(6), Last: minute(6), Count: 1, Reason: ledger.Overlap},
					{First: minute(7), Last: minute(8), Count: 2, Reason: ledger.Paused},
				}}
			_, started := e.decide(ref, d)
			require.True(e, started)
			runs := e.runs("a", 10)
			require.Len(e, runs, 5)
			require.Equal(e, ledger.InProgress, runs[4].Status, "a tick that was in the ledger")
			for i, want := range []ledger.Run{
				{ScheduledAt: minute(7), Until: minute(8), Count: 2, Error: ledger.Paused},
				{ScheduledAt: minute(6), Error: ledger.Overlap},
				{ScheduledAt: minute(1), Until: minute(5), Count: 5, Error: ledger.Missed},
			} {
				want.ID, want.Job, want.Status, want.Term, want.PID, want.Hostname = runs[i+1].ID,
					"a", ledger.Skipped, ref.Term, ref.PID, ref.Hostname
				require.Equal(e, want, runs[i+1])
			}
			// A range alone, as the first decision.
			_, started = e.decide(ref, ledger.Decision{Job: "b", Spec: "s", To: minute(3),
				Skipped: []ledger.Skip{missed(1, 3)}})
			require.False(e, started)
			require.Len(e, e.runs("b", 10), 1)
		}},
	{Rule: Rule{51, "jobs are listed",
		"Jobs returns every job with the spec and the cursor of its last decision.",
		"a new leader begins jobs anew, or does not see that a spec has changed.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i, job := range []string{"c", "a", "b"} {
				e.decide(ref, ledger.Decision{Job: job, Spec: "old", To: minute(i)})
			}
			e.decide(ref, ledger.Decision{Job: "a", Spec: `every "1m" – ü`, From: minute(1),
				To: minute(7)})
			e.win(bob)
			require.Equal(e, []ledger.Job{
				{Name: "a", Spec: `every "1m" – ü`, Cursor: minute(7)},
				{Name: "b", Spec: "old", Cursor: minute(2)},
				{Name: "c", Spec: "old", Cursor: minute(0)},
			}, e.jobs())
			require.Empty(e, e.runs("", 10), "a decision that passes nothing")
		}},
}
