//go:build linux

package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// section is the text below the heading "Beside the peers".
func (b *bench) section(begin time.Time, versions [][]string) string {
	w := &strings.Builder{}
	fmt.Fprintf(w, `One run on %s took %v, on %d processors. The command, in `+
		"`internal/bench/peers`, is\n`go run . -page ../../../docs/benchmarks.md`, or `make peers`. "+
		`Each replica is a process, with the
peer's default settings. The ratio is the peer's median over that of this module, on SQLite for
locks on SQLite, on PostgreSQL for the others: more than 1 is slower than this module.
`, begin.UTC().Format("2006-01-02"), time.Since(begin).Round(time.Second), runtime.NumCPU())
	columns := []string{"hand-over", "after `kill -9`", "acquire", "release", "heartbeat",
		"check", "idle standby"}
	ratios := [][]string{}
	medians := [][]string{}
	for _, c := range b.contestants {
		name := c.about().name
		mine, here := b.figures(name), b.figures(c.about().here)
		ratio, row := []string{name}, []string{name}
		for i := range columns {
			ratio = append(ratio, over(mine[i], here[i]))
			row = append(row, text(mine[i]))
		}
		if n := b.results[name].tooSlow; n > 0 {
			row[2] = strings.TrimSpace(fmt.Sprintf("%s (%d of %d over %v)", row[2], n, b.crashes,
				b.patience))
		}
		if c.about().here != name {
			ratios = append(ratios, ratio)
		}
		medians = append(medians, row)
	}
	table(w, true, append([]string{"ratio"}, columns...), ratios)
	fmt.Fprintf(w, `
The medians: %d calls of each operation, and of each contestant %d hand-over(s) and
%d crash(es). A hand-over is from the release to the next holder's answer, a crash from the signal.
*Check* is what an app asks before it works. *Idle standby* is processor time per second of
waiting, over %v.
`, b.calls, b.handovers, b.crashes, b.idle)
	table(w, true, append([]string{"median"}, columns...), medians)
	fmt.Fprint(w, `
An advisory lock tells nobody that it is lost. Redis does not sync its writes here, while the others
do. Two processors serve all replicas, so only large differences count.
`)
	rows := [][]string{}
	for _, c := range b.contestants {
		rows = append(rows, []string{c.about().name, c.about().settings})
	}
	table(w, false, []string{"", "settings"}, rows)
	table(w, false, []string{"", "version"}, versions)
	var failed []string
	for _, c := range b.contestants {
		for _, why := range b.results[c.about().name].failed {
			failed = append(failed, fmt.Sprintf("- %s: %s", c.about().name, why))
		}
	}
	if len(failed) > 0 {
		fmt.Fprintf(w, "\nWhat failed in this run:\n\n%s\n", strings.Join(failed, "\n"))
	}
	return w.String()
}

// figures are the medians in nanoseconds, in the order of the columns; 0: none.
func (b *bench) figures(name string) [7]float64 {
	r := b.results[name]
	if r == nil {
		return [7]float64{}
	}
	return [7]float64{median(r.handover), median(r.crash), median(r.series.Acquire),
		median(r.series.Release), median(r.series.Renew), r.series.Check, r.standby * 1e9}
}

func median(all []int64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	n := len(all)
	return float64(all[(n-1)/2]+all[n/2]) / 2
}

// over is a ratio; nothing if one of the two was not measured.
func over(a, b float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return digits(a / b)
}

func text(ns float64) string {
	switch {
	case ns == 0:
		return ""
	case ns < 1e3:
		return digits(ns) + " ns"
	case ns < 1e6:
		return digits(ns/1e3) + " µs"
	case ns < 1e9:
		return digits(ns/1e6) + " ms"
	}
	return digits(ns/1e9) + " s"
}

// digits writes two or more digits.
func digits(f float64) string {
	switch {
	case f >= 9.95:
		return fmt.Sprintf("%.0f", f)
	case f >= 0.095:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2g", f)
}

func table(w *strings.Builder, numbers bool, head []string, rows [][]string) {
	align := slices.Repeat([]string{"---"}, len(head))
	for i := range align {
		if numbers && i > 0 {
			align[i] = "---:"
		}
	}
	fmt.Fprintln(w)
	for _, row := range append([][]string{head, align}, rows...) {
		fmt.Fprintln(w, "| "+strings.Join(row, " | ")+" |")
	}
}
