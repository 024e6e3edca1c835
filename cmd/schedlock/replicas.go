package main

import (
	"context"

	"github.com/spf13/pflag"

	"example.com/schedlock/schedlock/ledger"
)

const replicasHelp = `The replicas that tell of themselves, every 30 s, if their app has switched
that on (startup.Config.Presence). The leader deletes those that were silent for
10 min. It decides nothing: who leads, status says.

Examples:
  schedlock replicas
`

// A replicaJSON is what a replica has last told of itself.
type replicaJSON struct {
	Instance      string    `json:"instance"` // new with every start
	PID           int       `json:"pid"`
	Hostname      string    `json:"hostname"`
	Version       string    `json:"version"` // of the app; "": not known
	State         string    `json:"state"`
	Reason        string    `json:"reason"`
	SeenAt        timestamp `json:"seen_at"`
	SilentSeconds float64   `json:"silent_seconds"`
	Ready         bool      `json:"ready"` // a standby that has told so within 90 s
}

func newReplicaJSON(r ledger.Replica) replicaJSON {
	return replicaJSON{r.Instance, r.PID, r.Hostname, r.Version, r.State, r.Reason,
		timestamp(r.SeenAt), r.Silent.Seconds(), r.Ready()}
}

func replicas(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		return list(ctx, t, func(ctx context.Context, s store) ([]ledger.Replica, error) {
			return s.Replicas(ctx)
		}, newReplicaJSON, "no replica tells of itself (startup.Config.Presence)", t.showReplicas)
	}
}

func (t *tool) showReplicas(list []ledger.Replica) {
	b := newTable(cutting("host"), fixed("pid"), cutting("version"), fixed("state"),
		fixed("silent for"), wideOnly("instance"), wideOnly("reason"))
	for _, r := range list {
		paint := colour("")
		switch {
		case r.Silent > 3*ledger.PresenceInterval:
			paint = yellow
		case r.State == "leading":
			paint = green
		}
		b.add(paint, r.Hostname, r.PID, r.Version, r.State, span(r.Silent),
			r.Instance, r.Reason)
	}
	t.table(b)
}
