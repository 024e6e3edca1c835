package model

// The model of the session as a sign of death, on PostgreSQL, in ticks that are finer
// than those of the other models. A holder trusts its lease while its last answered
// heartbeat is younger than the renew deadline, and the last look that saw its session
// alive is younger than half the grace. Its jobs run JobsStop ticks longer. The standby
// takes over after two looks, a grace apart, that find the backend gone, if neither the
// beat nor the backend has changed. Replica A holds the lock, and B is the standby.

type sessionState struct {
	Alive     bool // the server has the session
	News      int8 // of its end: 0 none or lost, k on its way for k-1 ticks, arrived
	Parted    bool // client and server can't reach each other
	Heartbeat int8 // A's clock: since it sent its last answered heartbeat
	Look      int8 // likewise, since its last look that saw the session alive
	Suspended bool // A has seen the end of its session
	Stopped   int8 // since A stopped trusting its lease
	Silent    int8 // the server's clock: since the last message on this session
	SeenGone  bool // B has seen the backend gone
	SeenAge   int8 // and when
	Ends      int8 // faults that may still come
	Partings  int8
	SlowA     int8 // ticks that A's clock may miss
	FastB     int8 // ticks that B's clock may gain
}

// arrived: the news of the session's end is at the holder's socket.
const arrived int8 = 99

const (
	sessionTTL      int8 = 20
	sessionDeadline int8 = 16
)

type sessionRules struct {
	Grace    int8
	News     int8 // how long the news of a session's end is on its way at most
	JobsStop int8
	Silence  int8 // the server ends a session that is silent for so long; 0: never

	Ends, Partings, SlowA, FastB int8
	EndsInParting                bool // the server may end a session while nobody can be told

	// Rules that are missing.

	BeatElsewhere  bool // heartbeats use another session
	TrustsAnew     bool // a new session restores trust without a heartbeat
	TakesAnyBeat   bool // the claim does not ask for beat and backend
	LooksNever     bool // the holder does not ask how old its last look is
	OneLook        bool // one look of the standby is enough
	OldBeatRevives bool // a late answer on the old session restores trust
}

func (c *sessionRules) start() sessionState {
	return sessionState{Alive: true, Ends: c.Ends, Partings: c.Partings, SlowA: c.SlowA,
		FastB: c.FastB}
}

func (c *sessionRules) trusts(s *sessionState) bool {
	return !s.Suspended && s.Heartbeat < sessionDeadline && (c.LooksNever || s.Look < c.Grace/2)
}

func (c *sessionRules) next(s sessionState, emit func(sessionState, event)) {
	to := func(n sessionState, e event) {
		if c.trusts(&n) {
			n.Stopped = 0
		}
		emit(n, e)
	}
	c.holder(s, to)
	c.server(s, to)
	c.taker(s, to, emit)
	// The news arrives in time.
	if onItsWay := s.News > 0 && s.News != arrived; !onItsWay || s.News <= c.News {
		c.clocks(s, emit)
	}
}

func (c *sessionRules) holder(s sessionState, to func(sessionState, event)) {
	const a = 0
	n := s
	if s.News == arrived {
		n.Suspended = true
		to(n, by(a, "looks: its session has ended; cancels its jobs"))
	} else if !s.Suspended {
		n.Look = 0
		to(n, by(a, "looks: its session is alive"))
	}
	inTime := s.Heartbeat < sessionDeadline
	if inTime && !s.Parted && !s.Suspended && (s.Alive || c.BeatElsewhere) {
		n = s
		n.Heartbeat = 0
		c.beats(&n)
		to(n, by(a, "sends a heartbeat, which is answered"))
		if !c.BeatElsewhere {
			n = s
			c.beats(&n)
			to(n, by(a, "sends a heartbeat, and its answer is lost"))
		}
	}
	if inTime && !s.Parted && s.Suspended {
		n = s
		n.News, n.Suspended, n.Look, n.Silent = 0, false, 0, 0
		text := "has a new session, and trusts its lease without a heartbeat"
		if !c.TrustsAnew { // else the row names the old backend still
			n.Alive, n.Heartbeat = true, 0
			c.beats(&n)
			text = "has a new session, its heartbeat is answered: trusts its lease again"
		}
		to(n, by(a, text))
	}
	if c.OldBeatRevives && inTime && s.Suspended {
		n = s
		n.Suspended, n.Look, n.News = false, 0, 0
		to(n, by(a, "gets a late answer on its old session: trusts its lease again"))
	}
}

// beats: the row changes, so what the standby has seen counts no more.
func (c *sessionRules) beats(n *sessionState) {
	if !c.BeatElsewhere {
		n.Silent = 0
	}
	if !c.TakesAnyBeat {
		n.SeenGone, n.SeenAge = false, 0
	}
}

// server is what happens to the session and to the network.
func (c *sessionRules) server(s sessionState, to func(sessionState, event)) {
	ended := s
	ended.Alive, ended.News = false, 1
	if s.Parted {
		ended.News = 0
	}
	if s.Alive && s.Ends > 0 && (!s.Parted || c.EndsInParting) {
		n := ended
		n.Ends--
		to(n, fault("THE SERVER ENDS THE SESSION"))
	}
	if s.Alive && c.Silence > 0 && s.Silent >= c.Silence {
		to(ended, fault("THE SERVER ENDS THE SESSION, because it was silent for too long"))
	}
	onItsWay := s.News > 0 && s.News != arrived
	if onItsWay && !s.Parted {
		n := s
		n.News = arrived
		to(n, fault("the end of the session arrives at A's socket"))
	}
	if !s.Parted && s.Partings > 0 && (!onItsWay || c.EndsInParting) {
		n := s
		n.Partings--
		n.Parted = true
		if n.News != arrived {
			n.News = 0
		}
		to(n, fault("A AND THE SERVER CAN'T REACH EACH OTHER"))
	}
	if s.Parted {
		n := s
		n.Parted = false
		if !s.Alive && s.News == 0 {
			n.News = 1
		}
		to(n, fault("A and the server reach each other again"))
	}
}

// taker is the standby.
func (c *sessionRules) taker(s sessionState, to, leads func(sessionState, event)) {
	const b = 1
	if s.Alive && !(c.TakesAnyBeat && s.SeenGone) {
		return
	}
	switch {
	case s.SeenGone && s.SeenAge >= c.Grace || c.OneLook:
		e := by(b, "looks: the backend is gone, and the beat has not changed: LEADS")
		if c.trusts(&s) || s.Stopped < c.JobsStop {
			e.broken = OneLeader
		}
		leads(s, e)
	case !s.SeenGone:
		n := s
		n.SeenGone, n.SeenAge = true, 0
		to(n, by(b, "looks: the backend is gone"))
	}
}

func (c *sessionRules) clocks(s sessionState, emit func(sessionState, event)) {
	emit(c.tick(s, 1, 1), event{ticks: true})
	if s.SlowA > 0 {
		n := c.tick(s, 0, 1)
		n.SlowA--
		emit(n, event{who: nobody, text: "A'S CLOCK MISSES A TICK", ticks: true})
	}
	if s.FastB > 0 {
		n := c.tick(s, 1, 2)
		n.FastB--
		emit(n, event{who: nobody, text: "B'S CLOCK GAINS A TICK", ticks: true})
	}
}

// tick is one tick of time, in which the clocks of A and B move on by so many.
func (c *sessionRules) tick(s sessionState, a, b int8) sessionState {
	n := s
	if n.News > 0 && n.News != arrived {
		n.News++
	}
	if !c.trusts(&s) {
		n.Stopped = min(n.Stopped+a, 8)
	}
	n.Heartbeat = min(n.Heartbeat+a, sessionDeadline)
	n.Look = min(n.Look+a, c.Grace/2)
	n.Silent = min(n.Silent+1, max(c.Silence, 1))
	if n.SeenGone {
		n.SeenAge = min(n.SeenAge+b, c.Grace)
	}
	return n
}

func (c *sessionRules) done(*sessionState) bool      { return false }
func (c *sessionRules) broken(*sessionState) Promise { return Holds }

func (c sessionRules) search(o Options) Result { return search(c.start(), &c, o) }
