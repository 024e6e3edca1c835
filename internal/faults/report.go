package faults

import (
	"fmt"
	"io"
	"slices"
	"time"

	"example.com/schedlock/internal/linear"
)

// A Line is one line of the report.
type Line struct {
	Fault      string
	Times      int
	Violations int
	Worst      time.Duration // the longest time without a leader, once the fault was over
	Bound      time.Duration // the largest bound that held, by design
	Silent     bool          // nobody need lead afterwards
	Note       string        // why it was not injected
}

// A Report counts over several clusters.
type Report struct {
	Lines []Line // one for each fault, in order
}

func (r *Report) line(fault string) *Line {
	i := slices.IndexFunc(r.Lines, func(l Line) bool { return l.Fault == fault })
	if i < 0 {
		i = len(r.Lines)
		r.Lines = append(r.Lines, Line{Fault: fault})
	}
	return &r.Lines[i]
}

// Add counts the injections of a history and the violations that it has.
func (r *Report) Add(h *History, vs []Violation) {
	for _, in := range h.Injections {
		l := r.line(in.Fault)
		l.Times++
		if l.Silent = in.Silent; !in.Silent {
			l.Worst = max(l.Worst, h.Leaderless(in))
			l.Bound = max(l.Bound, in.Bound)
		}
	}
	for _, v := range vs {
		fault := v.Fault
		if fault == "" {
			fault = "none yet"
		}
		r.line(fault).Violations++
	}
}

// count is how much of what the rules look at there was.
type count struct {
	runs, again, cut, ticks, requests, pauses              int
	holds, lost, writes, added, captured, done, recaptured int
	statements, unanswered                                 int
}

// add adds what a history has.
func (n *count) add(h *History) {
	n.runs += len(h.Runs)
	n.pauses += len(h.pauses())
	n.holds += len(h.Holds)
	n.captured += len(h.Works)
	n.statements += len(h.Statements)
	for _, op := range h.Statements {
		n.unanswered += one(op.Answer == linear.Unknown)
	}
	for _, r := range h.Runs {
		n.again += one(r.Attempt > 1)
		n.cut += one(r.End == 0)
	}
	for _, row := range h.Ledger {
		if row.AskedBy == "" {
			n.ticks += int(max(row.Count, 1))
		}
	}
	for _, a := range h.asks() {
		n.requests += one(a.Granted > 0)
	}
	for _, w := range h.Writes {
		n.writes += one(w.Name != "")
	}
	for _, d := range h.Holds {
		n.lost += one(d.Lost)
	}
	for _, a := range h.Added {
		n.added += one(a.Granted > 0)
	}
	for _, w := range h.Works {
		n.done += one(w.End == KindDoing && w.Ended > 0)
		n.recaptured += one(w.Attempt > 1)
	}
}

func one(so bool) int {
	if so {
		return 1
	}
	return 0
}

// String are three lines below the table.
func (n count) String() string {
	return fmt.Sprintf("%d runs, %d of them second or third attempts, %d cut by the death of "+
		"their process; %d ticks in the ledgers, %d requests granted, %d pauses\n"+
		"%d holds of named locks, %d of them lost, %d fenced writes under them; "+
		"%d tasks added, %d captures, %d of them second or later ones, %d done\n"+
		"%d statements on lock rows, %d of them without an answer",
		n.runs, n.again, n.cut, n.ticks, n.requests, n.pauses,
		n.holds, n.lost, n.writes, n.added, n.captured, n.recaptured, n.done,
		n.statements, n.unanswered)
}

// Write writes the table, in Markdown.
func (r *Report) Write(w io.Writer) error {
	ms := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
	text := "| fault | times | violations | worst time without a leader | bound |\n| --- | ---: " +
		"| ---: | ---: | ---: |\n"
	var times, violations int
	for _, l := range r.Lines {
		times, violations = times+l.Times, violations+l.Violations
		switch {
		case l.Times == 0 && l.Note != "":
			text += fmt.Sprintf("| %s | 0 | | %s | |\n", l.Fault, l.Note)
		case l.Silent:
			text += fmt.Sprintf("| %s | %d | %d | (nobody need lead) | |\n", l.Fault, l.Times,
				l.Violations)
		default:
			text += fmt.Sprintf("| %s | %d | %d | %s | %s |\n", l.Fault, l.Times, l.Violations,
				ms(l.Worst), ms(l.Bound))
		}
	}
	text += fmt.Sprintf("| **total** | **%d** | **%d** | | |\n", times, violations)
	_, err := io.WriteString(w, text)
	return err
}
