package locktest

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

func (e *env) audit(job string, limit int) []ledger.AuditEntry {
	e.Helper()
	list, err := e.ledger().Audit(e.ctx, job, limit)
	require.NoError(e, err, "Audit")
	return list
}

// noted fails unless the newest entry tells of an order that was given since before.
func (e *env) noted(before time.Time, what string, o ledger.Action) ledger.AuditEntry {
	e.Helper()
	list := e.audit("", 1)
	require.Len(e, list, 1, "Audit after %s", what)
	a := list[0]
	require.Equal(e, ledger.AuditEntry{ID: a.ID, At: a.At, What: what, Action: o}, a, "Audit")
	require.WithinRange(e, a.At, before.Truncate(time.Microsecond),
		e.look().Now.Add(time.Microsecond), "Audit: the time of %s", what)
	require.Equal(e, time.UTC, a.At.Location())
	return a
}

// Who has ordered what.
var auditCases = []testCase{
	{Rule: Rule{101, "an order has an entry",
		"Trigger, Pause, Resume and ResetCursor write an entry each: the order, the job, who, " +
			"why (Resume: nothing) and the database's time, of a request its own. One that " +
			"changes nothing or returns an error writes none. ResetCursor refuses an order that " +
			"is not valid.",
		"nobody knows afterwards who stopped a job, or somebody is blamed for what never happened.",
		[]Feature{Ledger}},
		run: func(e *env) {
			e.known(e.win(alice), "a", "b")
			require.Empty(e, e.audit("", 10), "before the first order")
			now := func() time.Time { return e.look().Now }
			before := now()
			r := e.trigger("a")
			require.Equal(e, r.At, e.noted(before, ledger.OrderRun, order("a")).At, "of a request")
			for _, job := range []string{"b", ""} {
				before = now()
				e.pause(job)
				e.noted(before, ledger.OrderPause, order(job))
				e.unchanged(func() {
					e.pause(job)
					_, err := e.ledger().Trigger(e.ctx, order("b"))
					require.ErrorIs(e, err, ledger.ErrPaused)
				}, "a pause again, and a request during a pause")
				before = now()
				e.resume(job)
				e.noted(before, ledger.OrderResume, ledger.Action{Job: job, By: "bob"})
				e.unchanged(func() {
					resumed, err := e.ledger().Resume(e.ctx, job, "bob")
					require.NoError(e, err)
					require.False(e, resumed)
				}, "a resumption again")
			}
			before = now()
			longest := ledger.Action{Job: "a", By: strings.Repeat("x", 200),
				Reason: strings.Repeat("y", 1000)}
			_, err := e.ledger().ResetCursor(e.ctx, longest)
			require.NoError(e, err)
			e.noted(before, ledger.OrderResetCursor, longest)
			e.unchanged(func() {
				_, err := e.ledger().ResetCursor(e.ctx, order("c"))
				require.ErrorIs(e, err, ledger.ErrNoJob)
				_, err = e.ledger().ResetCursor(e.ctx, ledger.Action{Job: "a"})
				require.Error(e, err, "ResetCursor by nobody")
				_, err = e.ledger().Pause(e.ctx, order("c"))
				require.ErrorIs(e, err, ledger.ErrNoJob)
			}, "what was refused")
		}},
	{Rule: Rule{102, "a hand-over has an entry",
		"The first Revoke of a term writes an entry: a hand-over, without a job, by whom, why " +
			"and the time of the revocation. Another one of that term, and one that returns " +
			"ErrConflict, write none.",
		"nobody knows afterwards who has moved the scheduler, once the terms are deleted.",
		[]Feature{Ledger, Revocations}},
		run: func(e *env) {
			ref := e.win(alice)
			before := e.look().Now
			r, err := e.s.Revoke(e.ctx, ref.Term, "zoë", "why –\nnow")
			require.NoError(e, err)
			a := e.noted(before, ledger.OrderHandOver, ledger.Action{By: "zoë", Reason: "why –\nnow"})
			require.Equal(e, r.At, a.At)
			e.unchanged(func() {
				_, err := e.s.Revoke(e.ctx, ref.Term, "zoë", "again")
				require.NoError(e, err)
				_, err = e.s.Revoke(e.ctx, ref.Term-1, "zoë", "")
				require.ErrorIs(e, err, driver.ErrConflict)
			}, "a revocation again, and one of another term")
		}},
	{Rule: Rule{103, "the audit is read and bounded",
		"Audit returns the newest entries, newest first, at most limit, of one job or of all; " +
			"with a context that has ended an error, soon. The newest KeepAudit stay, and their " +
			"ids only grow.",
		"the newest orders are not to be found, or the table grows for ever.", []Feature{Ledger}},
		slow: true,
		run: func(e *env) {
			e.known(e.win(alice), "a")
			left := ledger.KeepAudit
			if e.db.Fill != nil {
				left = 10
				e.db.Fill(e, Fill{Orders: ledger.KeepAudit - left})
			}
			for range left / 2 {
				e.pause("")
				e.resume("")
			}
			require.Len(e, e.audit("", 2*ledger.KeepAudit), ledger.KeepAudit, "as many as stay")
			r := e.trigger("a")
			e.pause("a")
			list := e.audit("", 2*ledger.KeepAudit)
			require.Len(e, list, ledger.KeepAudit, "of two more, as many as stay")
			for i := range list[1:] {
				require.Greater(e, list[i].ID, list[i+1].ID, "newest first")
			}
			require.Equal(e, list[:3], e.audit("", 3), "at most limit")
			require.Empty(e, e.audit("", 0), "limit 0")
			require.Empty(e, e.audit("", -1), "limit -1")
			require.Equal(e, list[:2], e.audit("a", 10), "of one job")
			require.Equal(e, r.At, list[1].At)
			require.Empty(e, e.audit("b", 10), "of a job without orders")
			e.heeded(map[string]func() error{
				"Audit": func() error { return err1(e.ledger().Audit(ended(), "", 1)) },
			})
		}},
}
