package locktest

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var runCases = []testCase{
	{Rule: Rule{52, "a run ends once",
		"Finish changes only a run that is in progress for that id, term and attempt, and tells " +
			"whether there was one; status and time of the end are kept.",
		"a run that was given up and tried again is ended by the first attempt's answer.",
		[]Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i, end := range []ledger.End{{Status: ledger.Done},
				{Status: ledger.Failed, Error: "why"}} {
				run := e.start(ref, "a", minute(i))
				other := func(f func(*ledger.Run)) ledger.Run { r := run; f(&r); return r }
				e.unchanged(func() {
					for name, r := range map[string]ledger.Run{
						"no id":           {},
						"another id":      other(func(r *ledger.Run) { r.ID += 1000 }),
						"another term":    other(func(r *ledger.Run) { r.Term++ }),
						"another attempt": other(func(r *ledger.Run) { r.Attempt++ }),
					} {
						written, err := e.ledger().Finish(e.ctx, r, ledger.End{Status: ledger.Done})
						require.NoError(e, err, name)
						require.False(e, written, name)
					}
				}, "the end of another run")
				e.finish(run, end)
				got := e.runs("a", 1)[0]
				require.WithinRange(e, got.FinishedAt, run.StartedAt, e.look().Now)
				run.Status, run.Error, run.FinishedAt = end.Status, end.Error, got.FinishedAt
				require.Equal(e, run, got)
				e.unchanged(func() {
					written, err := e.ledger().Finish(e.ctx, run,
						ledger.End{Status: ledger.Done, Error: "again"})
					require.NoError(e, err)
					require.False(e, written)
				}, "a second end")
			}
		}},
	{Rule: Rule{53, "a run ends without the lock",
		"Finish needs no lock: a leader that has lost it still records how its runs ended.",
		"runs that did their work are shown as abandoned, and run again.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			first, second := e.start(ref, "a", noon), e.start(ref, "b", noon)
			e.win(bob)
			e.finish(first, ledger.End{Status: ledger.Done})
			e.release(e.row().Ref)
			e.finish(second, ledger.End{Status: ledger.Failed, Error: "x"})
		}},
	{Rule: Rule{54, "an error's text never stops its record",
		"Finish keeps an error's text with line breaks, quotes and any letters, of 10,000 bytes; " +
			"text that the database cannot hold (NUL, no UTF-8) is changed, and the end is " +
			"recorded all the same.",
		"a job that fails with the wrong bytes stays in progress for ever.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			for i, text := range []string{
				"line 1\nline 2\r\n\t'quoted' \"twice\" – ü 🦀 $1 ? %s \\0",
				strings.Repeat("0123456789", 1000),
				"before\x00after",
				"before \xff\xfe after",
			} {
				e.finish(e.start(ref, "a", minute(i)),
					ledger.End{Status: ledger.Failed, Error: text})
				got := e.runs("a", 1)[0]
				require.Equal(e, ledger.Failed, got.Status)
				if i < 2 {
					require.Equal(e, text, got.Error)
				} else {
					require.Contains(e, got.Error, "before")
				}
			}
		}},
	{Rule: Rule{55, "what other terms left is abandoned",
		"Abandon marks the runs that other terms left in progress, with the time, returns them, " +
			"and touches no other.",
		"runs of a dead leader look alive for ever, or a leader gives up its own.",
		[]Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			left := e.start(old, "a", noon)
			also := e.start(old, "b", noon)
			e.finish(e.start(old, "c", noon), ledger.End{Status: ledger.Done})
			ref := e.win(bob)
			own := e.start(ref, "d", noon)
			runs := e.abandon(ref, nil)
			require.Len(e, runs, 2)
			for _, r := range runs {
				require.Contains(e, []int64{left.ID, also.ID}, r.ID)
				require.Equal(e, r, e.runs(r.Job, 1)[0], "as Runs has it")
				require.Equal(e, ledger.Abandoned, r.Status)
				require.WithinRange(e, r.FinishedAt, r.StartedAt, e.look().Now)
			}
			require.Equal(e, ledger.Done, e.runs("c", 1)[0].Status)
			require.Equal(e, ledger.InProgress, e.runs("d", 1)[0].Status)
			written, err := e.ledger().Finish(e.ctx, left, ledger.End{Status: ledger.Done})
			require.NoError(e, err)
			require.False(e, written, "the end of a run that was given up")
			e.unchanged(func() { require.Empty(e, e.abandon(ref, nil)) }, "Abandon again")
			e.finish(own, ledger.End{Status: ledger.Done})
		}},
	{Rule: Rule{56, "only the holder abandons",
		"Abandon returns ErrLost, and writes nothing, unless its ref holds the lock.",
		"an old leader that wakes up gives up the runs of its successor.", []Feature{Ledger}},
		run: func(e *env) {
			idle, old := e.win(bob), e.win(alice)
			_, err := e.ledger().Abandon(e.ctx, idle, nil)
			require.ErrorIs(e, err, driver.ErrLost, "the lease before, when nothing was left")
			e.start(old, "a", noon)
			ref := e.win(bob)
			e.start(ref, "b", noon)
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Abandon": func(r driver.Ref) (bool, error) {
					runs, err := e.ledger().Abandon(e.ctx, r, nil)
					return len(runs) > 0, err
				},
			})
		}},
	{Rule: Rule{57, "runs come newest tick first",
		"Runs returns at most limit runs, newest scheduled time first, of one job or of all; " +
			"none for a limit of 0 or less.",
		"the page hides the runs that matter.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			require.Empty(e, e.runs("", 10))
			for i := range 3 {
				e.start(ref, "b", minute(2*i+1))
				e.start(ref, "a", minute(2*i))
			}
			for job, want := range map[string][]time.Time{
				"":  {minute(5), minute(4), minute(3), minute(2), minute(1), minute(0)},
				"a": {minute(4), minute(2), minute(0)},
				"b": {minute(5), minute(3), minute(1)},
				"c": {},
			} {
				for _, limit := range []int{-1, 0, 1, 2, 100, 1 << 30} {
					runs := e.runs(job, limit)
					require.Len(e, runs, min(max(limit, 0), len(want)), "job %q, limit %d",
						job, limit)
					for i, r := range runs {
						require.Equal(e, want[i], r.ScheduledAt, "job %q, limit %d, run %d", job,
							limit, i)
					}
				}
			}
		}},
	{Rule: Rule{58, "ticks are kept to the microsecond, in UTC",
		"A tick is an instant: given in any time zone it is read back in UTC, with all its " +
			"microseconds, also long ago and far ahead.",
		"a tick that lost a digit is another tick: it runs twice.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			from := time.Time{}
			zone := time.FixedZone("somewhere", -9000)
			for _, tick := range []time.Time{
				time.Date(1970, 1, 1, 0, 0, 0, 1000, time.UTC),
				time.Date(2026, 3, 1, 12, 0, 0, 999999000, time.UTC),
				time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC),
				time.Date(2199, 12, 31, 23, 59, 59, 654321000, time.UTC),
			} {
				if !from.IsZero() {
					from = from.In(zone)
				}
				run, started := e.decide(ref, ledger.Decision{Job: "a", From: from,
					To: tick.In(zone), Start: tick.In(zone)})
				require.True(e, started)
				require.True(e, run.ScheduledAt.Equal(tick))
				require.Equal(e, tick, e.runs("a", 1)[0].ScheduledAt)
				require.Equal(e, tick, e.jobs()[0].Cursor)
				from = tick
			}
		}},
	{Rule: Rule{59, "an ended context ends a call to the ledger",
		"Jobs, Decide, Finish, Abandon and Runs with a context that has ended return an error, " +
			"soon, and write nothing.",
		"as rule 34.", []Feature{Ledger}},
		run: func(e *env) {
			old := e.win(alice)
			run := e.start(old, "a", noon)
			ref := e.win(bob)
			l := e.ledger()
			e.heeded(map[string]func() error{
				"Jobs": func() error { return err1(l.Jobs(ended())) },
				"Decide": func() error {
					return err2(l.Decide(ended(), ref,
						ledger.Decision{Job: "b", To: noon, Start: noon}))
				},
				"Finish": func() error {
					return err1(l.Finish(ended(), run, ledger.End{Status: ledger.Done}))
				},
				"Abandon": func() error { return err1(l.Abandon(ended(), ref, nil)) },
				"Runs":    func() error { return err1(l.Runs(ended(), "", 10)) },
			})
		}},
}
