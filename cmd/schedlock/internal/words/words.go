// Package words says what a lock is, for an operator: status, watch and doctor
// use the same.
package words

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock/driver"
)

// Of judges a view, and puts that into one line, and into what an operator can
// do; "": nothing needs doing.
func Of(v driver.Snapshot) (j assess.Assessment, summary, advice string) {
	j = assess.Of(v)
	if v.Row != nil {
		summary, advice = ofRow(v, j)
		if v.Blocker != "" {
			advice = "end the transaction that keeps its row locked, " +
				"as nobody can take over before: " + v.Blocker
		}
	} else {
		summary, advice = ofNoRow(v, j)
	}
	return j, summary, advice
}

func takeOver(j assess.Assessment) string {
	when := "it takes over now"
	if !j.AtOnce {
		when = fmt.Sprintf("the server has failed over, so it takes over in %v at most", j.TTL)
	}
	return "nothing to do if a standby runs: " + when + "; if none does, start one"
}

func ofRow(v driver.Snapshot, j assess.Assessment) (summary, advice string) {
	r := v.Row
	age := v.Now.Sub(r.HeartbeatAt)
	who := fmt.Sprintf("pid %d on host %q", r.PID, r.Hostname)
	switch {
	case j.Verdict == assess.Dead && v.Sign == driver.SignDead:
		return fmt.Sprintf("dead: %s held the lock (term %d), and is proven dead; "+
			"its last heartbeat was %v ago", who, r.Term, Span(age)), takeOver(j)
	case j.Verdict == assess.Dead:
		return fmt.Sprintf("dead: %s has ended its term %d (%s), but its row is still there", who,
			r.Term, v.Newest.EndReason), takeOver(j)
	case j.Grace > 0:
		return fmt.Sprintf("stale: the database session of %s (term %d) has ended; "+
				"last heartbeat %v ago", who, r.Term, Span(age)),
			"nothing to do if a standby runs: it takes over soon, " +
				"unless the holder comes back; if none does, start one"
	case j.Verdict == assess.Stale && age < 0:
		return fmt.Sprintf("stale: the last heartbeat of %s (term %d) is stamped %v "+
				"in the future, so nothing can be told from it", who, r.Term, Span(-age)),
			"look at the clocks; a standby counts by its own watch and does not mind"
	case j.Verdict == assess.Stale && v.Sign == driver.SignAlive:
		return fmt.Sprintf("stale: %s (term %d) lives, but its last heartbeat was %v ago "+
				"(TTL %v): it is stopped, hung, or cannot write", who, r.Term, Span(age), j.TTL),
			"resume the process (kill -CONT), or end it: a standby then takes over at once"
	case j.Verdict == assess.Stale:
		return fmt.Sprintf("stale: %s holds the lock (term %d), "+
				"but its last heartbeat was %v ago (TTL %v)", who, r.Term, Span(age), j.TTL),
			"look whether that process lives; " +
				"a standby that has watched it for the TTL takes over; if none runs, start one"
	case r.State == driver.StateLeading && Late(v, j) != "":
		return "held: " + Late(v, j), "see whether it reaches the database: it stops its jobs at " +
			"its renew deadline"
	case r.State == driver.StateLeading:
		return fmt.Sprintf("held: %s has led for %s (pid %d, term %d); its last heartbeat was "+
			"%v ago", r.Hostname, Aloud(v.Now.Sub(r.CreatedAt)), r.PID, r.Term, Span(age)), ""
	case r.State == driver.StateRevoked:
		return fmt.Sprintf("held: %s (term %d) was told to leave, and drains; "+
			"last heartbeat %v ago", who, r.Term, Span(age)), ""
	}
	return fmt.Sprintf("held: %s is %s (term %d), last heartbeat %v ago", who, r.State, r.Term,
		Span(age)), ""
}

// Late says what a holder has missed whose lease has not run out; "": it is on time.
func Late(v driver.Snapshot, j assess.Assessment) string {
	r := v.Row
	if j.Lateness == assess.OnTime {
		return ""
	}
	age, every := v.Now.Sub(r.HeartbeatAt), r.Timing.HeartbeatInterval
	who := fmt.Sprintf("pid %d on host %q (term %d)", r.PID, r.Hostname, r.Term)
	if j.Lateness == assess.PastDeadline {
		return fmt.Sprintf("%s is past its renew deadline of %v, so it must have stopped its jobs; "+
			"its last heartbeat was %v ago", who, r.Timing.RenewDeadline, Span(age))
	}
	return fmt.Sprintf("%s is late: it has missed %d heartbeats; its last was %v ago, "+
		"and one is due every %v", who, age/every, Span(age), every)
}

func ofNoRow(v driver.Snapshot, j assess.Assessment) (summary, advice string) {
	n := v.Newest
	switch {
	case j.Verdict == assess.Unfinished && v.Sign == driver.SignAlive:
		return "not free: there is no lock row, but a process still holds what only a leader holds",
			"do not delete rows; stop that replica, or wait until it has noticed"
	case j.Verdict == assess.Unfinished:
		return fmt.Sprintf("not free: there is no lock row, but term %d of pid %d on host %q "+
				"has no end: the row was deleted by hand, or a backup was restored",
				n.Term, n.PID, n.Hostname),
			"wait: its TTL must pass; do not delete rows to free the lock"
	case j.Verdict == assess.Dead:
		return fmt.Sprintf("dead: there is no lock row, and pid %d on host %q of term %d, "+
			"which has no end, is proven dead", n.PID, n.Hostname, n.Term), takeOver(j)
	case n == nil && !j.AtOnce:
		return "free: nobody is known to have held the lock, " +
			"but the server has failed over and may have lost a term", ""
	case n == nil:
		return "free: nobody has ever held the lock", "start a replica"
	case !j.AtOnce:
		return fmt.Sprintf("free: term %d was %s, but the server has failed over since "+
			"and may have lost a later one", n.Term, n.EndReason), ""
	}
	return fmt.Sprintf("free: nobody leads; term %d of pid %d on host %q was %s %v ago", n.Term,
			n.PID, n.Hostname, endWords(n.EndReason), Span(v.Now.Sub(n.EndedAt))),
		"start a replica"
}

// EndedByItself reports whether the end of a term was written when it happened, not when
// somebody took over or noticed a loss.
func EndedByItself(r driver.EndReason) bool {
	return r == driver.EndReleased || r == driver.EndRevoked
}

// endWords makes the end of a term a part of a sentence.
func endWords(r driver.EndReason) string {
	switch r {
	case driver.EndSessionEnded:
		return "ended with its session"
	case "":
		return "not ended"
	}
	return string(r)
}

// App is the app of a holder; "" if it is not known.
func App(a driver.App) string {
	if a.Name == a.Program || a.Program == "" {
		return a.Name
	}
	return fmt.Sprintf("%s (program %s)", a.Name, a.Program)
}

// Aloud is a duration as a person says it, rounded down to its largest unit or two.
func Aloud(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, d/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/day, d%day/time.Hour)
}

// Span shows a duration with as many digits as somebody wants to read.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Span(-d)
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./][\w@%+=:,./-]*$`)

// Argument is a name as an argument that can be pasted into a shell.
func Argument(name string) string {
	quoted := name
	if !plainWord.MatchString(name) {
		quoted = "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	if strings.HasPrefix(name, "-") {
		return "-- " + quoted
	}
	return quoted
}
