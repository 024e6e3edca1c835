package faults

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Evidence returns what was written down around a violation: the records of
// all processes, and the last lines of the log of those that the violation
// names. dir is where the cluster has its files.
func Evidence(h *History, v Violation, dir string) string {
	const before, after, most = 3 * time.Second, 500 * time.Millisecond, 60
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for process, records := range h.Logs {
		for _, r := range records {
			if r.At > v.At-before && r.At < v.At+after {
				lines = append(lines, line{r.At, process + " " + r.String()})
			}
		}
	}
	for _, b := range h.Beliefs {
		if b.Last.After > v.At-before && b.First.Before < v.At+after {
			lines = append(lines, line{b.First.Before, b.String()})
		}
	}
	for process, stops := range h.Stops {
		for _, s := range stops {
			if s.To > v.At-before && s.From < v.At+after {
				lines = append(lines, line{s.From,
					fmt.Sprintf("%s was stopped until %v", process, s.To)})
			}
		}
	}
	for process, records := range h.LockLogs {
		for _, r := range records {
			if r.At > v.At-before && r.At < v.At+after && h.concerns(v, r) {
				lines = append(lines, line{r.At, process + " " + r.String()})
			}
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var text strings.Builder
	fmt.Fprintf(&text, "around %v:\n", v.At)
	for _, l := range lines[max(0, len(lines)-most):] {
		fmt.Fprintf(&text, "  %v %s\n", l.at, l.text)
	}
	if v.Rule == RuleNoTickLost {
		for _, row := range h.Ledger {
			if strings.HasPrefix(v.Text, row.Job+",") {
				fmt.Fprintf(&text, "  %+v\n", row)
			}
		}
	}
	for process := range h.Logs {
		if strings.Contains(v.Text, process) {
			fmt.Fprintf(&text, "%s, last lines of its log:\n%s\n", process,
				tail(filepath.Join(dir, process+".stderr"), 3000))
		}
	}
	return text.String()
}

// concerns reports whether a record of named locks and tasks belongs to a
// violation.
func (h *History) concerns(v Violation, r Record) bool {
	switch v.Rule {
	case RuleOneHolder, RuleNameTerms, RuleNameFence:
		return strings.Contains(v.Text, fmt.Sprintf("%q", r.Job))
	case RuleOneWorker, RuleTaskEnds, RuleDoneOnce, RuleRetries, RuleNoTaskLost:
		return strings.Contains(v.Text, r.Job+" ")
	}
	return false
}

// writeLedger writes down what the database has in the end.
func (h *History) writeLedger(path string) error {
	var text strings.Builder
	for _, j := range h.Jobs {
		fmt.Fprintf(&text, "%+v\n", j)
	}
	for _, r := range h.Ledger {
		fmt.Fprintf(&text, "%+v\n", r)
	}
	for _, a := range h.Pending {
		fmt.Fprintf(&text, "waits: %v\n", a)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// tail returns the last n bytes of a file.
func tail(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-n):])
}
