package locktest

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var revokeCases = []testCase{
	{Rule: Rule{88, "a revocation marks the row",
		"Revoke sets the row to StateRevoked and touches nothing else of it; it keeps who, why " +
			"and the database's time with the term, and returns them as Look and Terms do.",
		"nobody knows afterwards who stopped the scheduler, or the leader does not hear of it.",
		[]Feature{Revocations}},
		run: func(e *env) {
			e.win(alice)
			ref := e.win(bob)
			want := e.row()
			const who, why = "Zoë O'Neil <zoe@example.com>", "line 1\nline \"2\" — 日本"
			before := e.look().Now
			r, err := e.s.Revoke(e.ctx, ref.Term, who, why)
			require.NoError(e, err)
			after := e.look()
			want.State = driver.StateRevoked
			require.Equal(e, want, *after.Row)
			require.Equal(e, driver.Revocation{At: r.At, By: who, Reason: why}, r)
			require.WithinRange(e, r.At, before.Truncate(time.Microsecond), after.Now)
			require.Equal(e, time.UTC, r.At.Location())
			require.Equal(e, r, after.Newest.Revoked, "Look")
			terms := e.terms(2)
			require.Equal(e, r, terms[0].Revoked, "Terms")
			require.Zero(e, terms[1].Revoked, "the term before")
			require.True(e, after.Newest.Open(), "a revocation ends no term")

			require.Equal(e, driver.StateRevoked, e.beat(ref, driver.StateLeading).State)
			deleted, err := e.s.Release(e.ctx, ref, driver.EndRevoked)
			require.NoError(e, err)
			require.True(e, deleted)
			require.Equal(e, r, e.terms(1)[0].Revoked, "after the release")

			long, reason := strings.Repeat("b", 200), strings.Repeat("r", 1000)
			next := e.win(alice)
			require.Zero(e, e.look().Newest.Revoked, "the next term")
			r, err = e.s.Revoke(e.ctx, next.Term, long, reason)
			require.NoError(e, err)
			require.Equal(e, long+reason, r.By+r.Reason)
		}},
	{Rule: Rule{89, "the first revocation stays",
		"Revoke of a term that was revoked before returns the first revocation, and writes " +
			"nothing that can be seen.",
		"the history names whoever pressed the button last.", []Feature{Revocations}},
		run: func(e *env) {
			ref := e.win(alice)
			first, err := e.s.Revoke(e.ctx, ref.Term, "bob", "")
			require.NoError(e, err)
			e.unchanged(func() {
				again, err := e.s.Revoke(e.ctx, ref.Term, "carol", "me too")
				require.NoError(e, err)
				require.Equal(e, first, again)
			}, "a revocation again")
		}},
	{Rule: Rule{90, "a revocation is of one term",
		"Revoke of a term that the row does not bear, and without a row, returns ErrConflict and " +
			"writes nothing.",
		"an order that was meant for a leader of yesterday stops today's.", []Feature{Revocations}},
		run: func(e *env) {
			old := e.win(alice)
			ref := e.win(bob)
			for _, term := range []int64{0, -1, old.Term, ref.Term - 1, ref.Term + 1} {
				e.unchanged(func() {
					r, err := e.s.Revoke(e.ctx, term, "carol", "")
					require.ErrorIs(e, err, driver.ErrConflict, "term %d", term)
					require.Zero(e, r)
				}, "term %d", term)
			}
			e.release(ref)
			e.unchanged(func() {
				_, err := e.s.Revoke(e.ctx, ref.Term, "carol", "")
				require.ErrorIs(e, err, driver.ErrConflict, "without a row")
			}, "without a row")
		}},
	{Rule: Rule{91, "an ended context ends a revocation",
		"Revoke with a context that has ended returns an error, soon, and writes nothing.",
		"a command that was cancelled stops the leader all the same.", []Feature{Revocations}},
		run: func(e *env) {
			ref := e.win(alice)
			e.heeded(map[string]func() error{"Revoke": func() error {
				return err1(e.s.Revoke(ended(), ref.Term, "carol", ""))
			}})
		}},
}
