package model

import "slices"

// The model of a lease. Statements travel: they are sent, then applied by the database,
// then answered. Each of the three may come late or never. Two replicas, or three.
//
// Times are ages, in ticks since the event, and stop growing where no rule asks any more.
// A pause of a replica needs no event of its own: whatever a replica does next may come
// at any later time, and a replica that trusts its lease counts as running all the time.

// A phase is what a replica does.
type phase int8

const (
	standby   phase = iota
	claiming        // its claim travels
	committed       // its claim succeeded, and the answer travels
	leading         // it leads, if it still trusts its lease
	stopping        // it leads no more, and gives up its row
	judging         // the server runs its claim, and has judged a snapshot
)

// A life says whether a replica runs.
type life int8

const (
	down life = iota
	up
	hung // for ever
)

// A Kind is a kind of [Statement].
type Kind int8

// The last three change a row.
const (
	noStatement Kind = iota
	look
	Claim
	Heartbeat
	Release
)

func (s Kind) String() string {
	return [...]string{"nothing", "look", "claim", "heartbeat", "release"}[s]
}

// A ground is why a replica claims the lock.
type ground int8

const (
	noGround       ground = iota
	noRow                 // the look found no row
	atOnce                // a one-shot claim without a look
	expiredStamp          // the row's stamp says so
	watchedForLong        // the row has not changed for FullWatch
	byteIsFree            // proof of death
	leftover              // the row's own term has an end
)

func (g ground) String() string {
	return [...]string{"", "no row", "one-shot", "the stamp has expired",
		"unchanged for the whole watch", "proof of death", "a leftover"}[g]
}

// A request is a statement on its way.
type request struct {
	Kind           Kind
	Token          int8
	Sent           int8 // how long ago
	Applied, OK    bool
	Ground         ground
	Version, Named int8 // the version and the token of the row that a claim expects
	Provable       bool // a claim: the row will say that its holder has a byte

	Saw seen // by a look
}

type seen struct {
	Version  int8
	Row      bool
	Token    int8
	Expired  bool // by its stamp and the database's clock
	Open     bool // no row, and the newest term has no end
	Provable bool
	Leftover bool // the row's own term has an end
}

type leaseReplica struct {
	Life        life
	Phase       phase
	Token       int8
	Sent        int8 // how long ago its last good heartbeat, or its claim, was sent
	Byte        bool // it holds its byte of the lease file
	Probing     bool // it holds a byte because it probes (only with ProbeTakesByte)
	SeenVersion int8 // the watch: what it saw, and how long ago for the first time
	SeenAge     int8
	SeenToken   int8
	SeenProof   bool // the row says that its holder has a byte
	Looked      bool // in this tick, once faults have stopped
	Probed      bool // likewise

	Request request // what it waits for
	Late    request // given up, and still on its way
}

// names of tokens and versions that the states before did not have.
const (
	fresh int8 = 100 // the next one
	gone  int8 = 120 // a version that the row will never have again
)

// distantFuture is a stamp that no tick makes old.
const distantFuture int8 = -9

type leaseState struct {
	Token    int8 // of the row; 0: there is no row
	Version  int8 // changes with every change of the row: token, term and beat
	Stamp    int8 // the age of the row's stamp by the database's clock
	Provable bool // the row says that its holder has a byte of the lease file
	Open     int8 // the token of the newest term, as long as that has no end

	Fencer     int8 // the replica with an open fenced transaction, + 1
	FenceToken int8

	Steps, Crashes, Edits, Hangs int8 // faults that may still come
	LateBeats                    int8

	Calm        bool // faults have stopped
	CalmTicks   int8
	MissedTicks int8

	Replicas [maxReplicas]leaseReplica
}

// A fileByte says which byte of the lease file a holder locks.
type fileByte int8

const (
	noByte       fileByte = iota
	oneByte               // the same one for every token
	bytePerToken          // the byte of its token
)

// leaseRules are the rules and the faults of a run.
type leaseRules struct {
	Replicas      int
	TTL, Deadline int8

	// What may happen, and how often.

	Steps, Crashes, Edits, Hangs int8
	MissedTicks                  int8 // ticks that the clock of a leader misses
	LateBeats                    int8 // heartbeats that are lost once faults have stopped
	EditsToken                   bool // an edit may change the token, instead of deleting the row
	EditsEnd                     bool // it may write the end of the row's term
	Restores                     bool // an edit may be a backup without the newest term
	StepsBack                    bool // clocks step back only
	OneShot                      bool // replicas may claim without waiting
	NoReleases                   bool // leaders do not release
	Fences                       bool // the leader opens fenced transactions
	Prompt                       bool // statements are applied soon or never, not late

	// The rules of the watch.

	StampWatch       int8 // it believes an expired stamp after watching for so long
	FullWatch        int8 // it takes a row that has not changed for so long
	OpenTermsWatched bool // no row is no free lock as long as the newest term has no end
	EndsTerm         bool // a holder that finds its row gone writes the end of its term
	OneShotWatches   bool // a one-shot claim deletes no row by its stamp alone
	TakesLeftovers   bool // a row whose own term has an end is taken at once

	// The rules of the lease file.

	Byte           fileByte
	RowTellsByte   bool // the row says that there is a byte only if its holder has it
	ByteOrNothing  bool // who does not get its byte does not claim
	ByteUntilEnd   bool // a holder keeps its byte until its release was answered
	OthersCount    bool // a held byte of another token means that nothing is free or proven
	ProbeTakesByte bool // to probe is to lock the byte for a moment

	// Rules that are missing. Each makes the protocol weaker, or at least different.

	NoWatch            bool // a standby does not watch the row's version
	DeadlineFromAnswer bool // the deadline counts from the answer to a heartbeat
	LeaseFromAnswer    bool // it counts from the answer to the claim
	BeatNeedsFresh     bool // a heartbeat fails if the stamp has expired
	LateAnswerRenews   bool // an answer after the deadline renews, if the replica leads still
	LateAnswerRevives  bool // it renews even after the replica has stepped down
	WatchFromSending   bool // a watch counts from the sending of the first look
	FirstLookIsOld     bool // the first look counts as if the watch had lasted
	TakesAnyVersion    bool // a take-over does not ask for the version that was watched
	TakesAnyToken      bool // a take-over by proof does not ask for the token of the proof
	StampForBeat       bool // only the stamp tells one heartbeat from the next
	FreeDeletes        bool // a claim of a free lock deletes a row with an expired stamp
	ReleaseFirst       bool // the release is sent before the replica stops
	ByteAfterCommit    bool // the byte is locked when the claim was answered
	WatchNeedsNoByte   bool // who has watched for long claims without its byte
	FenceLocksNothing  bool // the fence is a check only

	// What is checked besides OneLeader.

	LeadsWithin int8 // once faults stop, somebody leads within so many ticks
	Settled     bool // replica A leads and stays: clocks may step, LateBeats may be lost
}

func (c *leaseRules) start() leaseState {
	s := leaseState{Version: 1, Steps: c.Steps, Crashes: c.Crashes, Edits: c.Edits,
		Hangs: c.Hangs, MissedTicks: c.MissedTicks}
	for i := range c.Replicas {
		s.Replicas[i].Life = up
	}
	if c.Settled {
		s.Calm, s.LateBeats = true, c.LateBeats
		s.Token, s.Open = 1, 1
		a := &s.Replicas[0]
		a.Phase, a.Token = leading, 1
		if c.Byte != noByte {
			a.Byte, s.Provable = true, true
		}
	}
	return s
}

// trusts reports whether r trusts its lease.
func (c *leaseRules) trusts(r *leaseReplica) bool {
	return r.Life == up && r.Phase == leading && r.Sent < c.Deadline
}

func (c *leaseRules) leaders(s *leaseState) (n int) {
	for i := range s.Replicas {
		if c.trusts(&s.Replicas[i]) {
			n++
		}
	}
	return n
}

func (c *leaseRules) broken(s *leaseState) Promise {
	broken := leadership(c.leaders(s), s.Calm, s.CalmTicks, c.LeadsWithin)
	if broken == Holds && c.Settled && !c.trusts(&s.Replicas[0]) {
		return ClocksMoveNothing
	}
	return broken
}

// done: once faults have stopped, the first leader is the end.
func (c *leaseRules) done(s *leaseState) bool {
	return s.Calm && c.LeadsWithin > 0 && c.leaders(s) > 0
}

func (c *leaseRules) interchangeable() int {
	if c.Settled { // replica A is the one that leads
		return 0
	}
	return c.Replicas
}

func (c *leaseRules) reorder(s leaseState, order [maxReplicas]int) leaseState {
	if s.Fencer > 0 {
		s.Fencer = int8(slices.Index(order[:], int(s.Fencer)-1) + 1)
	}
	s.Replicas = reordered(s.Replicas, order)
	return s
}

func (c *leaseRules) forget(s *leaseState) {
	for i := range c.Replicas {
		r := &s.Replicas[i]
		if !c.TakesAnyVersion {
			// All versions that the row has no more are alike: no claim names them
			// with success.
			if r.SeenVersion != 0 && r.SeenVersion != s.Version {
				r.SeenAge = 0
			}
			for _, v := range []*int8{&r.SeenVersion, &r.Request.Saw.Version,
				&r.Request.Version, &r.Late.Version} {
				if *v != 0 && *v != s.Version {
					*v = gone
				}
			}
		}
		if c.NoWatch && !c.OpenTermsWatched {
			r.SeenVersion, r.SeenAge, r.Request.Saw.Version = 0, 0, 0
		}
		renews := r.Late.Kind == Heartbeat || r.Late.Kind == Release
		if renews && r.Late.Token != s.Token && !(c.EndsTerm && r.Late.Token == s.Open) {
			r.Late = request{} // it will find no row
		}
	}
}

func (c *leaseRules) rename(s *leaseState) {
	var tokens, versions names
	tokens.rename(&s.Token, &s.Open, &s.FenceToken)
	versions.rename(&s.Version)
	for i := range c.Replicas {
		r := &s.Replicas[i]
		tokens.rename(&r.Token, &r.SeenToken)
		versions.rename(&r.SeenVersion)
		for _, q := range []*request{&r.Request, &r.Late} {
			tokens.rename(&q.Token, &q.Named, &q.Saw.Token)
			versions.rename(&q.Version, &q.Saw.Version)
		}
	}
}

// names gives 1, 2, 3 … in the order in which old names come. 0 and gone stay.
type names struct {
	given [gone]int8
	last  int8
}

func (n *names) rename(all ...*int8) {
	for _, name := range all {
		if *name == 0 || *name == gone {
			continue
		}
		if n.given[*name] == 0 {
			n.last++
			n.given[*name] = n.last
		}
		*name = n.given[*name]
	}
}

func (c leaseRules) search(o Options) Result { return search(c.start(), &c, o) }
