package main

import (
	"fmt"
	"time"

	"example.com/schedlock/cmd/schedlock/internal/words"
	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock/driver"
)

// A verdict is what the lock is, for an operator.
type verdict assess.Verdict

const (
	held       = verdict(assess.Held)
	free       = verdict(assess.Free)
	stale      = verdict(assess.Stale)
	dead       = verdict(assess.Dead)
	unfinished = verdict(assess.Unfinished)
)

func (v verdict) exitCode() int {
	switch v {
	case held:
		return exitDone
	case free:
		return exitNothing
	}
	return exitStale
}

// colour is that of the summary.
func (a assessment) colour() colour {
	if a.late != "" {
		return yellow
	}
	return a.verdict.colour()
}

func (v verdict) colour() colour {
	switch v {
	case held:
		return green
	case free:
		return yellow
	}
	return red
}

// An assessment is what one look means.
type assessment struct {
	verdict verdict
	summary string // one line
	advice  string // what an operator can do; "": nothing needs doing
	standby wait
	late    string // what the holder has missed; "": nothing

	lateness assess.Lateness
}

// A wait is what a standby waits for before it leads.
type wait struct {
	text   string
	atOnce bool          // nothing: it takes the lock now
	most   time.Duration // for one that begins to watch now
}

// judge puts the judgement of a view into words.
func judge(v driver.Snapshot) assessment {
	j, summary, advice := words.Of(v)
	return assessment{verdict: verdict(j.Verdict), summary: summary, advice: advice,
		standby: standbyWaits(v, j), late: words.Late(v, j), lateness: j.Lateness}
}

func standbyWaits(v driver.Snapshot, j assess.Assessment) wait {
	w := unblocked(v, j)
	if v.Row == nil || v.Blocker == "" {
		return w
	}
	const end = "for the end of the transaction that keeps its row locked"
	if w.atOnce {
		return wait{text: end, most: j.TTL}
	}
	w.text = end + ", and " + w.text
	return w
}

// unblocked is what a standby waits for if nobody keeps the row locked.
func unblocked(v driver.Snapshot, j assess.Assessment) wait {
	switch r := v.Row; {
	case j.AtOnce && j.Verdict == assess.Free:
		return wait{text: "for nothing: it takes the lock now", atOnce: true}
	case j.AtOnce:
		return wait{text: "for nothing: it takes over now", atOnce: true}
	case r == nil:
		return wait{text: fmt.Sprintf("%v from now at most", j.TTL), most: j.TTL}
	case j.Grace > 0:
		return wait{text: fmt.Sprintf("for the holder to come back, for %v at most", j.Grace),
			most: j.Grace}
	default:
		text := "for a release"
		if v.Sign == driver.SignAlive {
			text += " or a proof of death"
		}
		if r.Grace > 0 && r.Grace < j.TTL {
			text = fmt.Sprintf("for a release, or for %v after the end of the holder's "+
				"database session", r.Grace)
		}
		text += fmt.Sprintf("; else for %v without another heartbeat: %v from now at most",
			j.TTL, j.TTL)
		age := v.Now.Sub(r.HeartbeatAt)
		if left := j.TTL - age; age >= 0 && left > 0 {
			text += fmt.Sprintf(" (%v if it has watched since the last one)", span(left))
		}
		return wait{text: text, most: j.TTL}
	}
}
