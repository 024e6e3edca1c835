package locktest

import (
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

var appCases = []testCase{
	{Rule: Rule{98, "the row names its app",
		"The row and its term keep the name and the program of the claim's app, of up to 200 " +
			"bytes with quotes and any letters, also after a heartbeat and a release. A claim " +
			"without an app leaves none.",
		"two apps that share a lock by mistake do not notice it, or replicas of one app take " +
			"each other for strangers.", nil},
		run: func(e *env) {
			for _, app := range []driver.App{
				{Name: "billing", Program: "acme.com/cmd/server"},
				{Name: strings.Repeat("n", 200), Program: strings.Repeat("p", 200)},
				{}, // nothing of the app before is left
				{Name: `o'hara"; DROP TABLE scheduler_lock; --`,
					Program: "höst-主机-🦀 $1 ?1 :x \\ %"},
				{Program: "acme.com/cmd/server"},
			} {
				c := claim(e.look(), alice)
				c.App = app
				ref := e.acquire(c)
				require.Equal(e, app, e.row().App, "the row")
				require.Equal(e, app, e.look().Newest.App, "the newest term")
				e.beat(ref, driver.StateLeading)
				require.Equal(e, app, e.row().App, "the row, after a heartbeat")
				if app.Name == "billing" {
					e.release(ref)
				}
				require.Equal(e, app, e.terms(1)[0].App, "the history")
			}
		}},
	{Rule: Rule{99, "no id is used again",
		"The ids of the ledger's rows only grow, in the order in which the rows were made, also " +
			"when Prune has deleted the newest rows of a job.",
		"the end of one run is recorded for another.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			last := int64(0)
			for i := range 6 {
				run := e.start(ref, "a", minute(i))
				require.Greater(e, run.ID, last, "an id again")
				last = run.ID
				e.finish(run, ledger.End{Status: ledger.Done})
				_, err := e.ledger().Prune(e.ctx, "a", i%2, 100)
				require.NoError(e, err)
			}
		}},
	{Rule: Rule{100, "a range finds its place",
		"A range of skipped ticks whose first tick is in the ledger already is recorded from the " +
			"next free microsecond on, without that tick; of two ticks, the second one is " +
			"recorded.",
		"after a cursor was put back, ticks are neither run nor accounted for.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.start(ref, "a", noon)
			e.decide(ref, ledger.Decision{Job: "a", Spec: "s", From: noon, To: minute(-9),
				Back: true})
			from := minute(-9)
			for i, want := range []ledger.Run{
				{ScheduledAt: noon.Add(time.Microsecond), Until: minute(5), Count: 5},
				{ScheduledAt: noon.Add(2 * time.Microsecond), Until: minute(3), Count: 3},
				{ScheduledAt: minute(1)},
				{},
			} {
				k := ledger.Skip{First: noon, Last: noon, Count: 1, Reason: ledger.Missed}
				if want.Count > 0 {
					k.Last, k.Count = want.Until, want.Count+1
				} else if !want.ScheduledAt.IsZero() {
					k.Last, k.Count = want.ScheduledAt, 2
				}
				before := e.runs("a", 10)
				to := minute(10 + i)
				e.decide(ref, ledger.Decision{Job: "a", Spec: "s", From: from, To: to,
					Skipped: []ledger.Skip{k}})
				from = to
				var added []ledger.Run
				for _, r := range e.runs("a", 10) {
					if !slices.ContainsFunc(before,
						func(b ledger.Run) bool { return b.ID == r.ID }) {
						added = append(added, r)
					}
				}
				if want.ScheduledAt.IsZero() {
					require.Empty(e, added, "its only tick is in the ledger")
					continue
				}
				require.Len(e, added, 1)
				want.ID, want.Job, want.Status, want.Error = added[0].ID, "a", ledger.Skipped,
					ledger.Missed
				want.Term, want.PID, want.Hostname = ref.Term, ref.PID, ref.Hostname
				require.Equal(e, want, added[0])
			}
		}},
}
