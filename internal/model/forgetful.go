package model

import (
	"cmp"
	"fmt"
)

// The model of a database that forgets. A crash brings back what was flushed, and a
// fail-over what was replicated. Claims travel, also by notification, and the holder's
// heartbeat and a look are one event each (in the model of a lease they travel too).

const (
	shortTTL      int8 = 3
	shortDeadline int8 = 2
)

// tables is what a statement sees: the newest term, and whether its row is there.
type tables struct {
	Row                        bool
	Token, Term, Version       int8
	Ended                      bool
	Timeline, TimelineOfTheEnd int8 // of the server that wrote the acquisition; the end
	Expired                    bool // the row's stamp says so (only with ByStamp)
}

func (t *tables) String() string {
	switch {
	case t.Row:
		return fmt.Sprintf("row of term %d", t.Term)
	case t.Token == 0:
		return "no row, and no history"
	case t.Ended:
		return fmt.Sprintf("no row, newest term %d, which has ended", t.Term)
	}
	return fmt.Sprintf("no row, newest term %d, which is open", t.Term)
}

// A why is why a replica claims the lock.
type why int8

const (
	noClaim       why = iota
	lookedFree        // no row, and the newest term has an end
	wasNotified       // no look; the notification names whatever helps a forger most
	rowUnchanged      // for the TTL
	gapUnchanged      // no row, but no free lock either, unchanged for the TTL
	tokenFree         // the byte of the row's token is free
	ownRow            // of a lease that this replica has stopped
	knownEnd          // this replica has read the end of the row's term
	stampOfTheRow     // it has expired
)

func (w why) String() string {
	return [...]string{"", "free by a look", "by NOTIFICATION, without a look",
		"a row that is unchanged for the TTL", "no row, unchanged for the TTL", "proof of death",
		"its own row, of a lease that it has stopped", "a row whose end it has read",
		"an expired stamp"}[w]
}

type forgetfulReplica struct {
	Phase phase
	Sent  int8 // how long ago its claim or its last heartbeat was sent
	Token int8

	Own  int8 // the token of a lease that it has stopped, until its row is gone
	Byte bool // it holds the byte of that token, or of its own
	Read int8 // a token whose term's end it has read
	Term int8 // the highest one that it has read

	SeenVersion, SeenAge, SeenTimeline, SeenStart int8 // the watch

	Why                          why // its claim, and what that expects
	Version, Expected, RowsToken int8
	AtLeast, Timeline            int8 // the term that a notification must have at least
	NewTerm                      int8
	Looked                       bool // in this tick, once faults have stopped

	Answered        int8 // on which timeline its last heartbeat was answered; 0: none was
	Late, LateVouch int8 // a heartbeat on its way: for which token, and what it vouches for
}

type forgetfulState struct {
	Now, Flushed, Replicated tables
	Timeline, Start          int8 // of the server
	HighestEver              int8
	ClockTerm                int8 // the database's clock, of which terms are made
	Tokens                   int8 // how many were drawn

	Claims, Crashes, FailOvers, Deletions, Restores, Steps int8 // that may still come
	Kills                                                  int8
	Calm                                                   bool // faults have stopped
	CalmTicks                                              int8

	Replicas [maxReplicas]forgetfulReplica
}

type forgetfulRules struct {
	Replicas int  // 0: 3
	Claims   int8 // 0: 3

	// What may happen, and how often.

	Crashes, FailOvers, Deletions, Restores, Steps, Kills int8

	// The rules.

	LazyRelease    bool // a release, and the end of a term, is not flushed
	Notifications  bool // a replica may claim because it was notified
	Proof          bool // SQLite: a byte for each token; a crash ends every process too
	TakesReturned  bool // a row that came back is taken by who stopped it or read its end
	AllSee         bool // every replica has read every term, because it looks as it waits
	Prompt         bool // a claim is applied as it is sent
	ReadCommitted  bool // the claim judges its snapshot, and inserts if there is no row
	MarksSuccessor bool // it also marks the ended term as taken over, which only one can
	LateHeartbeats bool // a heartbeat may be applied late
	HolderVouches  bool // it writes on which timeline the one before it was answered

	// Rules that are missing.

	LazyAcquisition   bool // an acquisition is not flushed
	LazyHeartbeat     bool // a heartbeat is not flushed
	ReleaseFirst      bool // the release is sent before the replica stops
	FreeDeletes       bool // a claim of a free lock deletes what it finds
	AsksNoEnd         bool // a claim of a free lock does not ask for the end of the newest term
	AsksNoTerm        bool // nor that the newest term is the one that was judged
	AsksNoRow         bool // nor that there is no row: the notification is the end
	AnyTimeline       bool // a free lock is free on any timeline
	TimelineByLook    bool // only the look compares the timeline, not the claim
	EmptyIsFree       bool // an empty history is free on any timeline
	WatchAnyTimeline  bool // a claim after a watch does not ask for the watch's timeline
	TimelineOfEnd     bool // the timeline of the end is compared, not of the acquisition
	ForgetsTerms      bool // a notification below a term that was read is believed
	ReturnedAnywhere  bool // a row that came back is taken on another timeline too
	WatchGoesOn       bool // a watch goes on over a crash or a fail-over
	TermsWithoutClock bool // terms do not follow the database's clock
	ByStamp           bool // a row with an expired stamp is over
	ServerVouches     bool // a heartbeat writes the timeline of the server that applies it

	// What is checked besides OneLeader and TermsRise.

	LeadsWithin int8 // once faults stop, somebody leads within so many ticks
}

func (c *forgetfulRules) start() forgetfulState {
	s := forgetfulState{Timeline: 1, Claims: c.Claims, Crashes: c.Crashes,
		FailOvers: c.FailOvers, Deletions: c.Deletions, Restores: c.Restores, Steps: c.Steps,
		Kills: c.Kills}
	// The migration wrote term 0, which has ended, with its timeline.
	s.Now = tables{Version: 1, Ended: true, Timeline: 1, TimelineOfTheEnd: 1}
	s.Flushed, s.Replicated = s.Now, s.Now
	return s
}

// leaders is how many replicas trust their leases.
func (s *forgetfulState) leaders() (n int) {
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Phase == leading && r.Sent < shortDeadline {
			n++
		}
	}
	return n
}

func (c *forgetfulRules) broken(s *forgetfulState) Promise {
	return leadership(s.leaders(), s.Calm, s.CalmTicks, c.LeadsWithin)
}

func (c *forgetfulRules) done(s *forgetfulState) bool { return s.Calm && s.leaders() > 0 }

// free reports whether nobody holds the lock, for a replica that has read a term.
func (c *forgetfulRules) free(s *forgetfulState, term int8, byClaim bool) bool {
	t := &s.Now
	timeline := t.Timeline
	if c.TimelineOfEnd {
		timeline = t.TimelineOfTheEnd
	}
	known := timeline == s.Timeline || c.AnyTimeline || c.TimelineByLook && byClaim ||
		c.EmptyIsFree && t.Token == 0
	return !t.Row && t.Ended && known && (c.ForgetsTerms || t.Term >= term)
}

// passes reports whether the claim of r finds what it expects.
func (c *forgetfulRules) passes(s *forgetfulState, r *forgetfulReplica) bool {
	t := &s.Now
	watched := t.Version == r.Version
	sameTimeline := r.Timeline == s.Timeline || c.WatchGoesOn
	switch r.Why {
	case lookedFree, wasNotified:
		return c.passesFree(s, r)
	case rowUnchanged:
		return t.Row && watched && (sameTimeline || c.WatchAnyTimeline)
	case gapUnchanged:
		return !t.Row && watched && sameTimeline
	case tokenFree:
		return t.Row && t.Token == r.RowsToken && !s.byteHeld(r.RowsToken)
	case ownRow, knownEnd:
		return t.Row && t.Token == r.RowsToken && (c.ReturnedAnywhere || t.Timeline == s.Timeline)
	case stampOfTheRow:
		return t.Row && watched
	}
	return false
}

func (c *forgetfulRules) passesFree(s *forgetfulState, r *forgetfulReplica) bool {
	t := &s.Now
	if c.AsksNoRow && r.Why == wasNotified || c.FreeDeletes && t.Row && r.Why == lookedFree {
		return true
	}
	// A forged notification names the newest term that is there.
	if r.Why == lookedFree && r.Expected != t.Term && !c.AsksNoTerm {
		return false
	}
	if c.AsksNoEnd && !t.Row && (c.ForgetsTerms || t.Term >= r.AtLeast) {
		return true
	}
	return c.free(s, r.AtLeast, true)
}

func (s *forgetfulState) byteHeld(token int8) bool {
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Byte && (r.Token == token || r.Own == token) {
			return true
		}
	}
	return false
}

// standsBy makes r a standby again, with what it remembers. own is the token of a lease
// that it has stopped.
func (r *forgetfulReplica) standsBy(own int8) {
	*r = forgetfulReplica{Own: own, Read: r.Read, Byte: r.Byte && own != 0, Term: r.Term,
		Looked: r.Looked, Late: r.Late, LateVouch: r.LateVouch}
}

func (r *forgetfulReplica) forgetsWatch() {
	r.SeenVersion, r.SeenAge, r.SeenTimeline, r.SeenStart = 0, 0, 0, 0
}

func (c *forgetfulRules) forget(s *forgetfulState) {
	if s.Crashes == 0 {
		s.Flushed = tables{}
	}
	if s.FailOvers == 0 && s.Restores == 0 {
		s.Replicated = tables{}
	}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		// No claim names a version with success that can't come back.
		for _, v := range []*int8{&r.SeenVersion, &r.Version} {
			if *v != s.Now.Version && *v != s.Flushed.Version && *v != s.Replicated.Version &&
				*v != 0 {
				*v = gone
			}
		}
		if r.SeenVersion == gone {
			r.SeenAge = 0
		}
		if !c.TakesReturned {
			r.Read = 0
		}
		if s.Claims == 0 && c.LeadsWithin == 0 { // nobody will claim any more
			r.forgetsWatch()
			r.Term, r.Read = 0, 0
		}
	}
}

func (c *forgetfulRules) rename(s *forgetfulState) {
	var versions names
	versions.rename(&s.Now.Version, &s.Flushed.Version, &s.Replicated.Version)
	for i := range s.Replicas {
		versions.rename(&s.Replicas[i].SeenVersion, &s.Replicas[i].Version)
	}
}

func (c *forgetfulRules) interchangeable() int { return c.Replicas }

func (c *forgetfulRules) reorder(s forgetfulState, order [maxReplicas]int) forgetfulState {
	s.Replicas = reordered(s.Replicas, order)
	return s
}

func (c forgetfulRules) search(o Options) Result {
	c.Replicas, c.Claims = cmp.Or(c.Replicas, 3), cmp.Or(c.Claims, 3)
	return search(c.start(), &c, o)
}
