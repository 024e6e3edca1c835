package locktest

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var releaseCases = []testCase{
	{Rule: Rule{27, "a release deletes no other's row",
		"Release deletes the row only if pid, hostname, token and term all match, and otherwise " +
			"returns false without an error.",
		"a replica that leaves throws out the leader.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			for name, spoil := range map[string]func(*driver.Ref){
				"pid":      func(r *driver.Ref) { r.PID++ },
				"hostname": func(r *driver.Ref) { r.Hostname = "x" },
				"token":    func(r *driver.Ref) { r.Token = driver.NewToken() },
				"term":     func(r *driver.Ref) { r.Term++ },
			} {
				want := e.row()
				r := ref
				spoil(&r)
				deleted, err := e.s.Release(e.ctx, r, driver.EndReleased)
				require.NoError(e, err, name)
				require.False(e, deleted, "another %s", name)
				require.Equal(e, want, e.row(), "another %s", name)
			}
			e.beat(ref, driver.StateLeading)
		}},
	{Rule: Rule{28, "a release frees the lock",
		"Release deletes the row and writes the end of the term with its reason; a new claim " +
			"succeeds at once.",
		"every clean restart costs a TTL without a leader.", nil},
		run: func(e *env) {
			for _, reason := range []driver.EndReason{driver.EndReleased, driver.EndRevoked,
				driver.EndLost} {
				ref := e.win(alice)
				deleted, err := e.s.Release(e.ctx, ref, reason)
				require.NoError(e, err)
				require.True(e, deleted)
				v := e.look()
				require.Nil(e, v.Row, "the row")
				require.Equal(e, ref, v.Newest.Ref)
				require.False(e, v.Newest.Open(), "the term is still open")
				require.Equal(e, reason, v.Newest.EndReason)
				require.WithinRange(e, v.Newest.EndedAt, v.Newest.AcquiredAt, v.Now)
				require.Equal(e, time.UTC, v.Newest.EndedAt.Location())
			}
		}},
	{Rule: Rule{29, "a release may be repeated",
		"Release again returns false, without an error, and changes nothing.",
		"a release whose answer was lost cannot be tried again.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			e.release(ref)
			for range 2 {
				e.unchanged(func() {
					deleted, err := e.s.Release(e.ctx, ref, driver.EndLost)
					require.NoError(e, err)
					require.False(e, deleted)
				}, "a release again")
				e.win(bob)
			}
		}},
	{Rule: Rule{30, "a release touches nothing of a successor",
		"Release of an old lease changes neither the row nor the term of its successor, even if " +
			"that looks alike.",
		"in containers every process is pid 1: a late release throws out the next leader.", nil},
		run: func(e *env) {
			var old []driver.Ref
			for range 3 {
				old = append(old, e.win(alice))
			}
			e.unchanged(func() {
				for _, ref := range old[:2] {
					deleted, err := e.s.Release(e.ctx, ref, driver.EndReleased)
					require.NoError(e, err)
					require.False(e, deleted)
				}
			}, "the release of an old lease")
		}},
	{Rule: Rule{31, "a release ends the term without a row too",
		"Release of a lease whose row was deleted or edited returns false, leaves the row, and " +
			"writes the end of the lease's own term.",
		"after every edit by hand the fleet waits for a TTL, though the leader has gone.",
		[]Feature{Edits}},
		run: func(e *env) {
			for name, edit := range map[string]Edit{
				"its row was deleted": {DeleteRow: true},
				"its row was edited":  {Token: "mine now"},
			} {
				ref := e.win(alice)
				e.edit(edit)
				row := e.look().Row
				deleted, err := e.s.Release(e.ctx, ref, driver.EndLost)
				require.NoError(e, err, name)
				require.False(e, deleted, name)
				v := e.look()
				require.Equal(e, row, v.Row, name)
				require.Equal(e, ref, v.Newest.Ref, name)
				require.False(e, v.Newest.Open(), "%s: its term is still open", name)
				require.Equal(e, driver.EndLost, v.Newest.EndReason, name)
			}
		}},
	{Rule: Rule{32, "terms come newest first",
		"Terms returns at most limit terms, newest first; none for a limit of 0 or less.",
		"the page shows the wrong history, or an endless one.", nil},
		run: func(e *env) {
			var refs []driver.Ref
			for range 5 {
				refs = append(refs, e.win(alice))
			}
			for limit, want := range map[int]int{-1: 0, 0: 0, 1: 1, 3: 3, 5: 5, 6: 5, 1 << 30: 5} {
				terms := e.terms(limit)
				require.Len(e, terms, want, "limit %d", limit)
				for i, term := range terms {
					require.Equal(e, refs[len(refs)-1-i], term.Ref, "limit %d, term %d", limit, i)
				}
			}
		}},
	{Rule: Rule{33, "the history is bounded",
		"The newest 1,000 terms stay; Terms returns no older ones, which go in time.",
		"a lock that changes hands often fills the disk, or a busy day wipes the history out.",
		nil},
		slow: true,
		run: func(e *env) {
			e.ctx = e.TB.Context()
			var refs []driver.Ref
			if e.db.Fill != nil {
				e.db.Fill(e, Fill{Terms: 900})
				for _, t := range slices.Backward(e.terms(5000)) {
					refs = append(refs, t.Ref)
				}
				require.Len(e, refs, 900)
			}
			for len(refs) < 1005 {
				refs = append(refs, e.win(alice))
			}
			terms := e.terms(5000)
			require.Len(e, terms, 1000)
			require.Equal(e, refs[1004], terms[0].Ref, "the newest")
			require.Equal(e, refs[5], terms[999].Ref, "the oldest")
		}},
	{Rule: Rule{34, "an ended context ends a call",
		"Acquire, Heartbeat, Release and Terms with a context that has ended return an error, " +
			"soon, and write nothing.",
		"a replica cannot be shut down while its database hangs, or takes \"not done\" for " +
			"\"done\".", nil},
		run: func(e *env) {
			ref := e.win(alice)
			judged := e.look()
			e.heeded(map[string]func() error{
				"Acquire": func() error { return err1(e.s.Acquire(ended(), claim(judged, bob))) },
				"Heartbeat": func() error {
					return err1(e.s.Heartbeat(ended(), ref, driver.StateLeading))
				},
				"Release": func() error {
					return err1(e.s.Release(ended(), ref, driver.EndReleased))
				},
				"Terms": func() error { return err1(e.s.Terms(ended(), 10)) },
			})
		}},
}
