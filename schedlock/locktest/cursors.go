package locktest

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// job is the row of a job.
func (e *env) job(name string) ledger.Job {
	e.Helper()
	for _, j := range e.jobs() {
		if j.Name == name {
			return j
		}
	}
	require.Fail(e, "Jobs", "job %q is not there", name)
	return ledger.Job{}
}

// What a leader, and an operator, do about cursors that are not as the ledger
// left them; and the bounds of what an app may leave in it.
var cursorCases = []testCase{
	{Rule: Rule{92, "an unreadable cursor is one job's own",
		"Jobs returns every job, also if a hand has written a cursor that is no time: that one " +
			"with the zero Cursor and a RawCursor. Decide with that RawFrom moves it; Decide " +
			"with another cursor returns ErrConflict, and writes nothing.",
		"a slip of the hand stops every job, or one of them for ever.", []Feature{Ledger, Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a", "b")
			e.db.Edit(e, Edit{CursorOf: "a"})
			require.Len(e, e.jobs(), 2, "Jobs")
			require.Equal(e, ledger.Job{Name: "b", Spec: "s", Cursor: noon}, e.job("b"))
			j := e.job("a")
			require.Zero(e, j.Cursor, "the cursor")
			require.NotEmpty(e, j.RawCursor, "RawCursor")
			e.unchanged(func() {
				for name, d := range map[string]ledger.Decision{
					"it stood elsewhere":       {From: noon},
					"it stood otherwise":       {RawFrom: strings.ToUpper(j.RawCursor) + "0"},
					"the job has a row, still": {},
				} {
					d.Job, d.Spec, d.To, d.Start = "a", "s", minute(1), minute(1)
					if name == "it stood otherwise" && d.RawFrom[0] == '"' {
						d.RawFrom = `"tomorrow"`
					}
					_, _, err := e.ledger().Decide(e.ctx, ref, d)
					require.ErrorIs(e, err, driver.ErrConflict, name)
				}
			}, "a decision that has moved")
			e.decide(ref, ledger.Decision{Job: "a", Spec: "s", RawFrom: j.RawCursor,
				To: minute(1)}, "from the cursor as it was read")
			require.Equal(e, ledger.Job{Name: "a", Spec: "s", Cursor: minute(1)}, e.job("a"))
			e.start(ref, "a", minute(2))
		}},
	{Rule: Rule{93, "an edited cursor is compared as it was read",
		"A cursor that a hand has written in the database's own words is read as that time, and " +
			"Decide moves it from the Cursor and the RawCursor that Jobs has returned.",
		"the leader decides about the job again and again, as fast as it can, and it never runs.",
		[]Feature{Ledger, Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a")
			at := noon.Truncate(time.Second).Add(-time.Hour)
			e.db.Edit(e, Edit{CursorOf: "a", CursorAt: at})
			j := e.job("a")
			require.Equal(e, at, j.Cursor, "the cursor")
			e.unchanged(func() {
				for _, back := range []bool{false, true} {
					_, _, err := e.ledger().Decide(e.ctx, ref,
						ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(1),
							Start: minute(1), Back: back})
					require.ErrorIs(e, err, driver.ErrConflict, "from where it stood before")
				}
			}, "a decision that has moved")
			run, started := e.decide(ref, ledger.Decision{Job: "a", Spec: "s", From: j.Cursor,
				RawFrom: j.RawCursor, To: noon, Start: noon}, "from the cursor as it was read")
			require.True(e, started)
			require.Equal(e, noon, run.ScheduledAt.UTC())
			e.start(ref, "a", minute(1))
		}},
	{Rule: Rule{94, "a cursor goes back if it is told to",
		"Decide with Back moves a cursor that stands as it was read to any time; without Back it " +
			"returns ErrConflict if that is earlier. What has run before does not start again.",
		"a clock that was wrong for a second stops a job for years.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			far := noon.AddDate(973, 0, 0)
			e.start(ref, "a", minute(1))
			e.start(ref, "a", far)
			e.unchanged(func() {
				_, _, err := e.ledger().Decide(e.ctx, ref,
					ledger.Decision{Job: "a", Spec: "s", From: far, To: noon})
				require.ErrorIs(e, err, driver.ErrConflict, "without Back")
				_, _, err = e.ledger().Decide(e.ctx, ref,
					ledger.Decision{Job: "a", Spec: "s", From: minute(1), To: noon, Back: true})
				require.ErrorIs(e, err, driver.ErrConflict, "from where it does not stand")
			}, "a decision that has moved")
			e.decide(ref, ledger.Decision{Job: "a", Spec: "s", From: far, To: noon, Back: true},
				"with Back")
			require.Equal(e, noon, e.job("a").Cursor)
			_, started := e.decide(ref,
				ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(1), Start: minute(1)})
			require.False(e, started, "a tick that has run")
			e.start(ref, "a", minute(2))
		}},
	{Rule: Rule{95, "an operator resets a cursor",
		"ResetCursor sets the cursor of a job to the database's time, wherever it stood, returns " +
			"the job so, and touches nothing else. It needs no leader. It returns ErrNoJob for a " +
			"job that has no row, and an error, soon, with a context that has ended.",
		"whoever cures a job by hand makes it worse.", []Feature{Ledger, Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			e.finish(e.start(ref, "a", noon),
				ledger.End{Status: ledger.Done, Took: time.Second})
			e.known(ref, "b")
			stats, runs := e.job("a").Stats, e.runs("", 10)
			for _, edit := range []Edit{{}, {CursorOf: "a"},
				{CursorOf: "a", CursorAt: noon.AddDate(973, 0, 0).Truncate(time.Second)}} {
				if edit.CursorOf != "" {
					e.db.Edit(e, edit)
				}
				before := e.look().Now.Truncate(time.Microsecond)
				j, err := e.ledger().ResetCursor(e.ctx, order("a"))
				require.NoError(e, err, "ResetCursor")
				require.WithinRange(e, j.Cursor, before, e.look().Now, "ResetCursor: the cursor")
				require.Equal(e, ledger.Job{Name: "a", Spec: "s", Cursor: j.Cursor.UTC()}, j,
					"ResetCursor")
				j.Stats = stats
				require.Equal(e, []ledger.Job{j, {Name: "b", Spec: "s", Cursor: noon}}, e.jobs(),
					"Jobs")
			}
			require.Equal(e, runs, e.runs("", 10))
			e.unchanged(func() {
				_, err := e.ledger().ResetCursor(e.ctx, order("c"))
				require.ErrorIs(e, err, ledger.ErrNoJob)
				e.soon("ResetCursor", func() { _, err = e.ledger().ResetCursor(ended(), order("a")) })
				require.Error(e, err, "ResetCursor with an ended context")
			}, "a ResetCursor that fails")
			e.release(ref)
			_, err := e.ledger().ResetCursor(e.ctx, order("a"))
			require.NoError(e, err, "without a leader")
		}},
	{Rule: Rule{96, "what one job is asked is bounded",
		"Trigger returns a *BacklogError with the count and the limit, and writes nothing, while " +
			"a job has MaxPending requests; another job is no concern. Pending tells how many each " +
			"job has, and leaves out the requests of jobs that are paused.",
		"a thousand requests of one job hide those of all others, and fill the database.",
		[]Feature{Ledger}},
		slow: true,
		run: func(e *env) {
			ref := e.win(alice)
			e.known(ref, "a", "b")
			left := ledger.MaxPending
			if e.db.Fill != nil {
				left = 10
				e.db.Fill(e, Fill{Requests: ledger.MaxPending - left, RequestsOf: "a"})
			}
			for range left {
				e.trigger("a")
			}
			first := e.inbox().Requests[0]
			e.unchanged(func() {
				_, err := e.ledger().Trigger(e.ctx, order("a"))
				require.ErrorIs(e, err, ledger.ErrBacklog)
				var backlog *ledger.BacklogError
				require.ErrorAs(e, err, &backlog)
				require.Equal(e, ledger.BacklogError{Job: "a",
					Pending: ledger.MaxPending, Limit: ledger.MaxPending}, *backlog)
			}, "one too many")
			time.Sleep(time.Millisecond) // a clock that stands still would give b its time first
			other := e.trigger("b")
			in := e.inbox()
			require.Equal(e, map[string]int{"a": ledger.MaxPending, "b": 1}, in.Backlog, "Pending")
			require.Len(e, in.Requests, ledger.PendingLimit+1)
			require.Equal(e, other, in.Requests[ledger.PendingLimit], "that of the other job")
			e.pause("a")
			in = e.inbox()
			require.Equal(e, map[string]int{"a": ledger.MaxPending, "b": 1}, in.Backlog,
				"Pending, paused")
			require.Equal(e, []ledger.Request{other}, in.Requests,
				"the requests of a job that is paused")
			e.pause("")
			require.Empty(e, e.inbox().Requests, "all are paused")
			e.resume("")
			e.resume("a")
			require.Len(e, e.inbox().Requests, ledger.PendingLimit+1)
			e.answer(ref, first)
			e.trigger("a")
		}},
	{Rule: Rule{97, "a long error is cut",
		"Of an error's text Finish keeps at most MaxText bytes, whole letters from its " +
			"beginning, and a note that it was cut.",
		"one error fills the disk, or ends the process that reads it.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i, text := range []string{
				strings.Repeat("0123456789", 100_000),
				strings.Repeat("ü🦀", 100_000),
				strings.Repeat("\x00", 100_000),
				strings.Repeat("\xff", 100_000),
				strings.Repeat("\x80", 100_000),
			} {
				e.finish(e.start(ref, "a", minute(i)),
					ledger.End{Status: ledger.Failed, Error: text})
				got := e.runs("a", 1)[0].Error
				require.LessOrEqual(e, len(got), ledger.MaxText, "%.30q", text)
				require.Contains(e, got, "cut", "%.30q", text)
				if utf8.ValidString(text) {
					require.True(e, utf8.ValidString(got), "%.30q: whole letters", text)
				}
				if i < 2 {
					require.Greater(e, len(got), ledger.MaxText-100, "%.30q", text)
					require.True(e, strings.HasPrefix(got, text[:16000]), "%.30q", text)
				}
			}
		}},
}
