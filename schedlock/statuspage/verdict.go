package statuspage

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock/driver"
)

// A grade says how bad something is; the worst one is the page's.
type grade int

const (
	fine grade = iota
	note       // to be known, but nothing is wrong: the verdict is as if it were not there
	warning
	bad
)

// Sign is what tells grades apart for who sees no colours.
func (g grade) Sign() string { return [...]string{"✓", "ℹ", "▲", "✕"}[g] }

// Class is its class in style.css.
func (g grade) Class() string { return [...]string{"fine", "quiet", "warning", "bad"}[g] }

// A finding is what an operator should look at, in one sentence without its full stop.
type finding struct {
	Grade grade
	Text  string
	Since time.Time // it has lasted since then; zero: not known
	Rest  string    // of the sentence
	Link  string    // to the part of the page that has more; may be ""
	About string    // what stands on the link
	Mend  string    // leads to the question of the order that ends it; "": there is none
}

// verdict is the first line of the page: the worst finding, or that all is well.
type verdict struct {
	finding
	More     int       // findings besides, but notes
	Findings []finding // worst first
}

func newVerdict(l *leader, s *snapshot, jobs []jobView) verdict {
	if s.blind { // nothing else is known
		f := finding{Grade: bad, Text: "The database does not answer: who leads is unknown"}
		if l.Starting {
			f = finding{Grade: warning, Text: "This replica is starting"}
		}
		return verdict{finding: f}
	}
	ready := newStandbys(s)
	list := slices.Concat(leaderFindings(l, s.now), termFindings(s), ready.findings(),
		jobFindings(s, jobs))
	if errors.Is(s.self.Err, driver.ErrWarning) {
		list = append(list, finding{Grade: warning, Link: "#self-title", About: "why",
			Text: "This replica leads on, but somebody should act"})
	}
	if s.err != nil { // what happened before is not known
		list = append(list, finding{Grade: warning, Text: "Can't tell what happened before"})
	}
	slices.SortStableFunc(list, func(a, b finding) int { return int(b.Grade) - int(a.Grade) })
	notes := slices.IndexFunc(list, func(f finding) bool { return f.Grade == note })
	if notes < 0 {
		notes = len(list)
	}
	if notes > 0 {
		return verdict{finding: list[0], More: notes - 1, Findings: list}
	}
	v := verdict{finding: finding{Text: "Healthy: " + l.Info.Hostname + " has led",
		Since: l.Info.CreatedAt}, Findings: list}
	if ready.Told {
		v.Rest = ", " + count(ready.Ready, "standby") + " ready"
	}
	if len(jobs) > 0 {
		v.Rest += ", " + count(len(jobs)+s.more, "job") + " OK"
	}
	return v
}

func leaderFindings(l *leader, now time.Time) []finding {
	i := l.Info
	f := finding{Grade: bad, Text: "Nobody leads", Link: "#leader-title", About: "why"}
	switch {
	case i == nil && l.Since.IsZero():
	case i == nil:
		since, layout := l.Since.UTC(), "15:04:05 UTC"
		if since.Truncate(day) != now.UTC().Truncate(day) {
			layout = "2 Jan " + layout
		}
		f.Text = "Nobody has led since " + since.Format(layout)
	case l.Silent:
		f.Text, f.About = l.Who+" is "+l.State+silentWords[l.State], "what happens next"
	case l.Late:
		f.Grade, f.Text, f.Since = warning, l.Who+" is late: no heartbeat", i.HeartbeatAt
		f.About = "what happens next"
	case len(l.Alerts) > 0: // of a leader that leads
		f.Text, f.About = l.Who+" is a replica of another app", "what to do"
	case i.State == driver.StateRevoked, i.State == driver.StateDraining:
		f.Grade, f.Text = warning, l.Who+" is leaving"
	case i.TTLOnly != "":
		f = finding{Grade: note, Text: "A crash is noticed after " + took(i.Timing.TTL) +
			", by the TTL alone: " + cut(i.TTLOnly, 200)}
	default:
		return nil
	}
	return []finding{f}
}

// silentWords follow the state of a holder that does not lead any more.
var silentWords = map[string]string{
	"past its deadline": ": it has stopped itself",
	"cut off":           " from the database",
}

func termFindings(s *snapshot) []finding {
	taken := 0
	for i, t := range s.terms {
		if s.now.Sub(t.AcquiredAt) >= assess.FlapWindow {
			break
		}
		if i+1 == len(s.terms) || s.terms[i+1].EndReason != driver.EndRevoked {
			taken++
		}
	}
	if taken <= assess.FlapTerms {
		return nil
	}
	return []finding{{Grade: warning, Link: "#timeline-title", About: "the terms",
		Text: fmt.Sprintf("%d leaders in %s", taken, took(assess.FlapWindow))}}
}

func (b standbys) findings() []finding {
	if !b.Told || b.Ready > 0 {
		return nil
	}
	return []finding{{Grade: warning, Text: "No standby is ready", Link: "#replicas-title",
		About: "the replicas"}}
}

func jobFindings(s *snapshot, jobs []jobView) (list []finding) {
	if p := s.pause; p != nil {
		list = append(list, finding{Grade: warning, Text: fmt.Sprintf(
			"The whole scheduler is paused by %s", cut(p.By, 60)), Since: p.Since,
			Link: "#jobs-title", About: "the jobs", Mend: "orders/resume?all=true"})
	}
	for _, j := range jobs {
		f := finding{Grade: warning, Link: "#" + j.ID(), About: "the job"}
		switch {
		case j.Again: // the next attempt decides
			continue
		case j.Streak == 1:
			f.Text = j.Name + " has failed"
		case j.Streak > 1:
			f.Text = fmt.Sprintf("%s has failed %d times in a row", j.Name, j.Streak)
		case j.Overdue:
			f.Text, f.Since = j.Name+" is overdue", j.Next
		case j.Pause != nil && j.Pause.Job != "":
			f.Text, f.Since = j.Name+" is paused by "+cut(j.Pause.By, 60), j.Pause.Since
			f.Mend = "orders/resume?" + url.Values{"job": {j.Name}}.Encode()
		default:
			continue
		}
		list = append(list, f)
	}
	return list
}

// ID is the id of the job's element.
func (j jobView) ID() string { return jobID(j.Name) }

func jobID(name string) string { return "job-" + url.PathEscape(name) }
