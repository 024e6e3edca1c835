//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
)

func (r *report) machine(w *writer) {
	rows := [][]string{{"date", r.Date.Format("2006-01-02 15:04 UTC") +
		fmt.Sprintf(", %v", r.Took.Round(time.Second))}, {"command", "`" + r.Command + "`"}}
	for _, f := range r.Facts {
		rows = append(rows, []string{f.name, f.value})
	}
	w.table(true, []string{"", ""}, rows)
	if r.Missing != "" {
		w.say("Nothing was measured on PostgreSQL: %s.", r.Missing)
	}
	if len(r.Failed) > 0 {
		w.say("**These parts failed, and their figures are missing or not complete: %s.**",
			strings.Join(r.Failed, ", "))
	}
	w.say("## How noisy the machine was")
	w.say("Before each part the program measured two things that do not depend on this module. " +
		"One is a fixed piece of work for one processor (SHA-256 of 1 MiB). " +
		"The other is one flush (4 KiB written, then `fdatasync`) on the file system of " +
		"the databases. " +
		"*Others* is the part of all cores that was busy during a second in which this program " +
		"did nothing. " +
		"*Stolen* is what the host took for other machines since the line before.")
	rows = nil
	others := 0.0
	for _, n := range r.Noise {
		rows = append(rows, []string{n.Before, show(n.CPU.p50()), show(n.CPU.p99()),
			show(n.Flush.p50()), show(n.Flush.p99()), n.Load,
			fmt.Sprintf("%.0f %%", n.Others*100), fmt.Sprintf("%.1f %%", n.Stolen*100)})
		others = max(others, n.Others)
	}
	w.table(false, []string{"before", "work p50", "work p99", "flush p50", "flush p99", "load",
		"others", "stolen"}, rows)
	if others > calm {
		w.say("**The machine was not calm.** Other programs used up to %.0f %% of it "+
			"between the parts. "+
			"Figures for several processes partly measure the other programs, "+
			"the largest figures above all.", others*100)
	}
	if cpu, flush := r.drift(); cpu > 0 {
		w.say("From part to part the median of the same work differed by a factor of %s, "+
			"and that of the same flush by %s. "+
			"If figures from different parts of this page differ by less, "+
			"the difference means nothing. "+
			"This does not concern ratios to a limit: the program measured both in turns.",
			digits(cpu), digits(flush))
	}
}

// drift is by how much the medians of the noise differ between parts.
func (r *report) drift() (cpu, flush float64) {
	factor := func(of func(noiseSample) sample) float64 {
		var least, most time.Duration
		for _, n := range r.Noise {
			p50 := of(n).p50()
			if least == 0 || p50 < least {
				least = p50
			}
			most = max(most, p50)
		}
		if least == 0 {
			return 0
		}
		return float64(most) / float64(least)
	}
	return factor(func(n noiseSample) sample {
		return n.CPU
	}), factor(func(n noiseSample) sample { return n.Flush })
}
