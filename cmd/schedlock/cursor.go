package main

import (
	"context"
	"flag"

	"example.com/schedlock/schedlock/ledger"
)

const resetHelp = `The cursor of a job says which of its ticks were decided. If a wrong clock, or a
hand, has set it far ahead, or to what is no time, this sets it to now. Ticks
before now that were not decided are not run. Ticks to come that have run
already do not run again, as long as the ledger has their runs.

Whoever leads goes on from there within one heartbeat interval.

` + orderHelp + `
Examples:
  schedlock reset-cursor import --reason "the clock was a year ahead"
`

// A cursorJSON is where a job goes on.
type cursorJSON struct {
	Job      string    `json:"job"`
	Cursor   timestamp `json:"cursor"`
	NextTick timestamp `json:"next_tick"`
}

func resetCursor(t *tool, flags *flag.FlagSet) func(context.Context) (int, error) {
	o := orderFlags(flags)
	return func(ctx context.Context) (int, error) {
		if o.Job = t.job(); o.Job == "" {
			return 0, &usageError{"reset-cursor", "reset-cursor needs the name of a job"}
		}
		var j ledger.Job
		err := t.actOnce(ctx, "reset-cursor", func(ctx context.Context, s store) (err error) {
			j, err = s.ResetCursor(ctx, *o)
			return t.offerJobs(ctx, s, o.Job, err)
		})
		if err == nil {
			t.say(cursorJSON{j.Name, timestamp(j.Cursor), timestamp(nextTick(j))},
				"job %q goes on from %s; its next tick is at %s", j.Name, t.at(j.Cursor),
				t.at(nextTick(j)))
		}
		return exitDone, err
	}
}
