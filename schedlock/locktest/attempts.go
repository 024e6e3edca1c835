package locktest

import (
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func (e *env) attempts(run ledger.Run) []ledger.Attempt {
	e.Helper()
	list, err := e.ledger().Attempts(e.ctx, run.ID)
	require.NoError(e, err, "Attempts")
	return list
}

// again starts the attempts of a run up to the n-th. Each fails, the last too.
func (e *env) again(ref driver.Ref, run ledger.Run, n int) ledger.Run {
	e.Helper()
	for run.Attempt < n {
		run = e.retry(ref, run)
		e.finish(run, ledger.End{Status: ledger.Failed, Error: "why", RetryAt: due})
	}
	return run
}

// The attempts of a run that later ones have replaced.
var attemptCases = []testCase{
	{Rule: Rule{106, "a retry keeps the attempt before",
		"Retry keeps what the row says of the attempt that it replaces: number, start, end, " +
			"status, term, pid and hostname, and of a failed one the error. Attempts returns " +
			"them, newest first, without the latest. One that starts nothing keeps nothing.",
		"nobody knows why the first attempts failed, or an attempt that its leader's death has " +
			"ended bears the error of another.", []Feature{Ledger}},
		run: func(e *env) {
			attempt := func(r ledger.Run, text string) ledger.Attempt {
				return ledger.Attempt{Number: r.Attempt, StartedAt: r.StartedAt,
					FinishedAt: r.FinishedAt, Status: r.Status, Term: r.Term, PID: r.PID,
					Hostname: r.Hostname, Error: text}
			}
			old := e.win(alice)
			other := e.fail(old, "b", noon)
			first := e.fail(old, "a", noon)
			require.Empty(e, e.attempts(first), "of a first attempt")
			e.retry(old, first)
			want := []ledger.Attempt{attempt(first, "why")}
			require.Equal(e, want, e.attempts(first), "after a failed attempt")
			ref := e.win(bob)
			e.abandon(ref, func(ledger.Run) time.Time { return due })
			left := e.newest("a")
			require.Equal(e, want, e.attempts(first), "before the next attempt starts")
			e.pause("a")
			_, _, err := e.ledger().Retry(e.ctx, ref, left)
			require.ErrorIs(e, err, ledger.ErrPaused)
			_, started, err := e.ledger().Retry(e.ctx, ref, first)
			require.NoError(e, err)
			require.False(e, started)
			require.Equal(e, want, e.attempts(first), "after a Retry that started nothing")
			e.resume("a")
			third := e.retry(ref, left)
			text := "line 1\nline 2 – \"ü\" $1 ? 🦀"
			e.finish(third, ledger.End{Status: ledger.Failed, Error: text, RetryAt: due})
			want = []ledger.Attempt{attempt(left, ""), want[0]}
			require.Equal(e, want, e.attempts(first), "after an abandoned attempt")
			third = e.newest("a")
			e.finish(e.retry(ref, third), ledger.End{Status: ledger.Done})
			want = append([]ledger.Attempt{attempt(third, text)}, want...)
			require.Equal(e, want, e.attempts(first), "of a run that is done")
			require.Empty(e, e.attempts(other), "of another run")
			require.Empty(e, e.attempts(ledger.Run{ID: first.ID + 1000}), "of no run")

			run := e.newest("a")
			all, err := ledger.Attempts(e.ctx, e.ledger(), run)
			require.NoError(e, err)
			require.Equal(e, append([]ledger.Attempt{attempt(run, "")}, want...), all,
				"ledger.Attempts")
		}},
	{Rule: Rule{107, "old attempts go",
		"Of the attempts that were replaced the newest 100 stay, of each run.",
		"a job that fails for a day fills the disk.", []Feature{Ledger}},
		slow: true,
		run: func(e *env) {
			ref := e.win(alice)
			other := e.again(ref, e.fail(ref, "b", noon), 3)
			run := e.again(ref, e.fail(ref, "a", noon), 103)
			list := e.attempts(run)
			require.Len(e, list, ledger.KeepAttempts)
			for i, a := range list {
				require.Equal(e, 102-i, a.Number)
			}
			require.Len(e, e.attempts(other), 2, "of another run")
		}},
	{Rule: Rule{108, "attempts go with their run",
		"Prune deletes the attempts of the runs that it deletes, and no others. Attempts with a " +
			"context that has ended returns an error, soon.",
		"the ledger fills the disk with attempts of runs that are gone.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			over := func(job string, tick time.Time) ledger.Run {
				run := e.retry(ref, e.fail(ref, job, tick))
				e.finish(run, ledger.End{Status: ledger.Done})
				return run
			}
			gone := over("a", noon)
			stays := over("a", minute(1))
			other := over("b", noon) // the newest of all may stay
			deleted, err := e.ledger().Prune(e.ctx, "a", 1, 10)
			require.NoError(e, err)
			require.EqualValues(e, 1, deleted)
			require.Empty(e, e.attempts(gone), "of a run that is gone")
			require.Len(e, e.attempts(stays), 1, "of a run that stays")
			require.Len(e, e.attempts(other), 1, "of another job's run")
			e.heeded(map[string]func() error{
				"Attempts": func() error { return err1(e.ledger().Attempts(ended(), stays.ID)) },
			})
		}},
}
