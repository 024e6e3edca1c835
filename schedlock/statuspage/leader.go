package statuspage

import (
	"errors"
	"fmt"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// leader is the answer to "who leads?".
type leader struct {
	Headline string // of the tab, and for who cannot see it
	Icon     string

	Unknown  bool // the database does not answer
	Starting bool // it was not asked yet
	Info     *schedlock.LockInfo
	Who      string    // its pid and host
	Here     bool      // this replica
	State    string    // of the holder, in one word
	Class    string    // of that word
	Since    time.Time // nobody leads: since when; zero: not known
	Silent   bool      // its row names it, but it does not lead any more
	Late     bool      // two heartbeats are missing
	Words    []string
	Alerts   []string
	Order    *progress // the newest hand-over that somebody asked for; nil: none lately
}

func newLeader(h *Handler, s *snapshot) *leader {
	l := &leader{Icon: iconNobody, Order: handOverProgress(s)}
	if s.blind {
		l.Unknown, l.Headline = true, "unknown who leads"
		if l.Starting = errors.Is(s.err, errStarting); l.Starting {
			l.Headline = "starting"
		}
		return l
	}
	if l.Info = s.view.Info(); l.Info == nil {
		l.nobody(h, s)
		return l
	}
	i := l.Info
	owner := driver.Owner{PID: i.PID, Hostname: i.Hostname}
	l.Who = holderName(owner)
	l.Headline, l.Icon = l.Who+" leads", iconStandby
	if l.Here = s.self.Term == i.Term && s.owner == owner; l.Here {
		l.Icon = iconLeading
	}
	l.State, l.Class = string(i.State), string(i.State)
	if app := s.app; app.Differs(i.App) {
		l.alert("It is a replica of another app, %s. "+
			"While it leads no job of this app, %s, runs: give each app a lock of its own "+
			"(postgres.WithSchema, another database of MariaDB, or another SQLite file).",
			i.App.Name, app.Name)
	}
	if i.HeartbeatAge < 0 {
		l.say("Its last heartbeat is stamped in the future, at %s: clocks differ. "+
			"Nothing is judged by that.", i.HeartbeatAt.UTC().Format("2 Jan 15:04:05 UTC"))
	}
	switch judged := assess.Of(s.view); {
	case i.Blocker != "":
		l.silent("blocked", "Nobody can take over: its row is locked by %s", i.Blocker)
	case judged.Verdict == assess.Dead:
		l.silent("dead", "%s", deadWords(i, judged))
	case judged.Grace > 0:
		l.silent("cut off", "Its database session has ended. "+
			"Unless it is back within %s a standby takes over.", took(judged.Grace))
	case judged.Verdict == assess.Stale && i.HeartbeatAge < 0:
		l.silent("stale", "Can't tell whether it leads. "+
			"A standby takes over if it sees no heartbeat for %s.", took(judged.TTL))
	case judged.Verdict == assess.Stale:
		l.silent("expired", "No heartbeat for longer than its TTL of %s. "+
			"A standby takes over as soon as it has itself watched for that long.",
			took(judged.TTL))
	case judged.Lateness == assess.PastDeadline:
		l.silent("past its deadline", "No heartbeat for its renew deadline of %s: "+
			"it has stopped itself, and leads no more. A standby takes over after %s.",
			took(i.Timing.RenewDeadline), took(judged.TTL))
	case judged.Lateness == assess.Late:
		l.Late = true
		if i.State == driver.StateLeading {
			l.State, l.Class = "late", "late"
		}
	}
	switch {
	case l.Silent: // it does nothing any more
	case i.State == driver.StateDraining:
		l.say("It is leaving: it starts nothing new, " +
			"and releases the lock when what runs has returned.")
	case i.State == driver.StateRevoked:
		l.say("%s", revokedWords(i.Revoked))
	}
	return l
}

func (l *leader) say(format string, args ...any) {
	l.Words = append(l.Words, fmt.Sprintf(format, args...))
}

func (l *leader) alert(format string, args ...any) {
	l.Alerts = append(l.Alerts, fmt.Sprintf(format, args...))
}

func deadWords(i *schedlock.LockInfo, judged assess.Assessment) string {
	text := "It has ended its term, but its row is still there."
	if i.Sign == driver.SignDead {
		text = "It is proven dead: its process gave no sign in the lease file."
	}
	if judged.AtOnce {
		return text + " A standby takes over at once."
	}
	return text + fmt.Sprintf(" The server has failed over: a standby takes over after %s.",
		took(judged.TTL))
}

// silent: the row names a holder, but that does not lead any more. The alert says what follows.
func (l *leader) silent(state, format string, args ...any) {
	l.State, l.Class, l.Icon, l.Silent = state, "bad", iconNobody, true
	l.Headline = l.Who + " is " + state
	l.alert(format, args...)
}

func revokedWords(r schedlock.Revocation) string {
	text := "Told to leave"
	if r.By != "" {
		text += " by " + r.By
	}
	if r.Reason != "" {
		text += " (" + r.Reason + ")"
	}
	return text + "; leaves at its next heartbeat, when what runs has returned."
}

// nobody says since when nobody leads, and what a standby waits for.
func (l *leader) nobody(h *Handler, s *snapshot) {
	l.Headline = "nobody leads"
	newest, retry := s.view.Newest, took(h.app.Lock().Timing().RetryInterval())
	look := fmt.Sprintf("The lock is free. A standby takes it at its next look, within %s.", retry)
	judged := assess.Of(s.view)
	switch {
	case s.view.FailedOver:
		l.say("The database server has failed over " +
			"and may have lost the newest term: a standby waits for its TTL.")
	case judged.Verdict == assess.Dead:
		l.say("The row of term %d is missing although that has no end, "+
			"and its process is proven dead. A standby takes over at once.", newest.Term)
	case judged.Verdict == assess.Unfinished && s.view.Sign == driver.SignAlive:
		l.say("There is no lock row, but a process still holds " +
			"what only a leader holds: a standby waits for it.")
	case judged.Verdict == assess.Unfinished:
		l.say("The row of term %d is missing although that has no end (deleted by hand, or a "+
			"restored backup): a standby waits for its TTL of %s, unless its holder writes the end.",
			newest.Term, took(judged.TTL))
	case newest == nil:
		l.say("Nobody ever has. %s", look)
	default:
		l.say("%s", look)
	}
	if newest != nil && !newest.Open() {
		l.Since = newest.EndedAt
		l.say("Last: %s, %s.", holderName(newest.Owner), ending(*newest))
	}
}

// beat is the bar: how much of the TTL is left. Times are in Unix milliseconds
// by the database's clock, periods in milliseconds.
type beat struct {
	At    int64  `json:"at"` // of the last heartbeat
	TTL   int64  `json:"ttl"`
	Renew int64  `json:"renew"` // the renew deadline
	Late  int64  `json:"late"`  // as old as this the last heartbeat of a late leader is
	Words string `json:"words"` // the TTL
	Rule  string `json:"rule"`  // what the periods mean
	now   int64
}

func newBeat(s *snapshot) *beat {
	i := s.view.Info()
	if s.blind || i == nil {
		return nil
	}
	t := i.Timing
	return &beat{
		At: i.HeartbeatAt.UnixMilli(), TTL: max(t.TTL.Milliseconds(), 1), Words: took(t.TTL),
		Renew: t.RenewDeadline.Milliseconds(), Late: assess.LateAfter(t).Milliseconds(),
		Rule: fmt.Sprintf("A heartbeat every %s fills the bar. "+
			"Without one the leader stops itself at the mark, after %s; "+
			"at the end, after %s, a standby may take over.",
			took(t.HeartbeatInterval), took(t.RenewDeadline), took(t.TTL)),
		now: s.now.UnixMilli(),
	}
}

// Left is what is left of the TTL.
func (b *beat) Left() time.Duration {
	return time.Duration(min(max(b.At+b.TTL-b.now, 0), b.TTL)) * time.Millisecond
}

// Percent is that in parts of the TTL.
func (b *beat) Percent() float64 { return 100 * float64(b.Left().Milliseconds()) / float64(b.TTL) }

// Mark is where the bar stands when the renew deadline passes.
func (b *beat) Mark() float64 { return 100 * float64(b.TTL-b.Renew) / float64(b.TTL) }

// Class tells a bar that runs late.
func (b *beat) Class() string {
	switch since := b.now - b.At; {
	case since >= b.Renew:
		return "low"
	case b.Late > 0 && since >= b.Late:
		return "late"
	}
	return ""
}

// AgeText and LeftText are the numbers beside the bar.
func (b *beat) AgeText() string  { return age(time.Duration(b.now-b.At) * time.Millisecond) }
func (b *beat) LeftText() string { return age(b.Left()) }
