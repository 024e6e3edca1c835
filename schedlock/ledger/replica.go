package ledger

import "time"

const (
	// PresenceInterval is how often a replica tells of itself, where that is
	// switched on.
	PresenceInterval = 30 * time.Second

	// ReplicaGone is for how long a replica may be silent before the leader
	// deletes its row.
	ReplicaGone = 10 * time.Minute
)

// A Replica is one row of scheduler_replicas: what a replica has last told of
// itself. It is shown, and decides nothing: no row is no proof that there is no
// such replica.
type Replica struct {
	Instance string // new with every start
	PID      int
	Hostname string
	Version  string // of the app; "": not known
	State    string // as in schedlock.Status: standby, leading, …
	Reason   string // of the state, in words

	// What Present ignores, and Replicas tells by the database's clock.
	SeenAt time.Time
	Silent time.Duration // since SeenAt, not below 0
}

// Ready reports whether a replica that is a standby has told so lately.
func (r Replica) Ready() bool { return r.State == "standby" && r.Silent <= 3*PresenceInterval }

// Ready counts the standbys that are.
func Ready(replicas []Replica) (n int) {
	for _, r := range replicas {
		if r.Ready() {
			n++
		}
	}
	return n
}
