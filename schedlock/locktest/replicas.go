package locktest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func (e *env) present(r ledger.Replica, forget bool) {
	e.Helper()
	require.NoError(e, e.ledger().Present(e.ctx, r, forget), "Present")
}

func (e *env) replicas() []ledger.Replica {
	e.Helper()
	list, err := e.ledger().Replicas(e.ctx)
	require.NoError(e, err, "Replicas")
	return list
}

// Which replicas there are.
var replicaCases = []testCase{
	{Rule: Rule{104, "a replica tells of itself",
		"Present keeps what a replica tells, with the database's time, in the place of what its " +
			"instance has told before; Replicas returns all, by host name, pid and instance, and " +
			"for how long each has been silent. With forget none that has told lately goes.",
		"operators see replicas that are not there, or too few.", []Feature{Ledger}},
		run: func(e *env) {
			require.Empty(e, e.replicas())
			reason := "line 1 – \"why\" $1 ? 🦀"
			b := ledger.Replica{Instance: "b", PID: 7, Hostname: "web-2", Version: "v1.2.3",
				State: "standby", Reason: reason}
			before := e.look().Now.Truncate(time.Microsecond)
			e.present(b, false)
			list := e.replicas()
			require.Len(e, list, 1)
			require.WithinRange(e, list[0].SeenAt, before, e.look().Now, "SeenAt")
			require.Less(e, list[0].Silent, ledger.PresenceInterval, "Silent")
			e.await("a replica that has told nothing since", func() error {
				if e.replicas()[0].Silent == 0 {
					return errors.New("is not silent")
				}
				return nil
			})
			told := func() (all []ledger.Replica) {
				for _, r := range e.replicas() {
					r.SeenAt, r.Silent = time.Time{}, 0
					all = append(all, r)
				}
				return all
			}
			require.Equal(e, []ledger.Replica{b}, told())
			b.State, b.Reason = "leading", ""
			e.present(b, true)
			require.Equal(e, []ledger.Replica{b}, told(), "told again")
			a, c, d := b, b, b
			a.Hostname, a.Instance = "web-1", "z"
			c.Instance, d.PID, d.Instance = "c", 12, "a"
			for _, r := range []ledger.Replica{d, c, a} {
				e.present(r, true)
			}
			require.Equal(e, []ledger.Replica{a, b, c, d}, told(), "by host name, pid and instance")
		}},
	{Rule: Rule{105, "a replica that has left is gone",
		"Absent deletes the row of that instance, and no other; without one it does nothing. " +
			"Present, Absent and Replicas with a context that has ended return an error, soon, " +
			"and write nothing.",
		"operators wait for a replica that was stopped long ago.", []Feature{Ledger}},
		run: func(e *env) {
			for _, instance := range []string{"a", "b"} {
				e.present(ledger.Replica{Instance: instance, PID: 1, Hostname: "web-1",
					State: "standby"}, false)
			}
			require.NoError(e, e.ledger().Absent(e.ctx, "c"))
			require.Len(e, e.replicas(), 2)
			require.NoError(e, e.ledger().Absent(e.ctx, "a"))
			list := e.replicas()
			require.Len(e, list, 1, "Absent")
			require.Equal(e, "b", list[0].Instance)
			e.heeded(map[string]func() error{
				"Present": func() error {
					return e.ledger().Present(ended(), ledger.Replica{Instance: "d"}, true)
				},
				"Absent":   func() error { return e.ledger().Absent(ended(), "b") },
				"Replicas": func() error { return err1(e.ledger().Replicas(ended())) },
			})
			require.Equal(e, list[0].SeenAt, e.replicas()[0].SeenAt)
			require.Len(e, e.replicas(), 1)
		}},
}

// What is left behind comes to an end.
var leftoverCases = []testCase{
	{Rule: Rule{110, "a tick may have a request's time",
		"Answer of a request whose time a tick of its job has by then removes it and returns " +
			"started = false; the run of the tick stays as it was.",
		"a request is answered for ever, or overwrites a run.", []Feature{Ledger}},
		run: func(e *env) {
			ref := e.win(alice)
			e.decide(ref, ledger.Decision{Job: "a", Spec: "s", To: time.Unix(0, 0)})
			r := e.trigger("a")
			tick := e.start(ref, "a", r.At)
			_, started, err := e.ledger().Answer(e.ctx, ref, r, "")
			require.NoError(e, err)
			require.False(e, started, "Answer: started, of a tick that has run")
			require.Equal(e, []ledger.Run{tick}, e.runs("a", 10))
			require.Empty(e, e.inbox().Requests, "requests, after the answer")
		}},
	{Rule: Rule{111, "a silent replica is forgotten",
		"Present with forget deletes the rows of other instances that have told nothing for " +
			"longer than ReplicaGone; without forget it deletes none.",
		"replicas that have crashed are shown for ever, or live ones go.",
		[]Feature{Ledger, Edits}},
		run: func(e *env) {
			present := func(instance string, forget bool) []ledger.Replica {
				e.Helper()
				e.present(ledger.Replica{Instance: instance, PID: 1, Hostname: "h",
					State: "standby"}, forget)
				return e.replicas()
			}
			present("a", false)
			e.edit(Edit{Silent: "a", For: ledger.ReplicaGone - time.Minute})
			list := present("b", true)
			require.Len(e, list, 2, "not longer than ReplicaGone")
			require.GreaterOrEqual(e, list[0].Silent, ledger.ReplicaGone-time.Minute, "Silent")
			require.Equal(e, 1, ledger.Ready(list), "who has told lately")
			e.edit(Edit{Silent: "a", For: 2 * time.Minute})
			require.Len(e, present("b", false), 2, "without forget")
			list = present("b", true)
			require.Len(e, list, 1, "with forget")
			require.Equal(e, "b", list[0].Instance)
			e.edit(Edit{Silent: "b", For: time.Hour})
			list = present("b", true)
			require.Equal(e, 1, ledger.Ready(list), "it has come back itself")
		}},
}
