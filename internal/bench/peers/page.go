//go:build linux

package main

import (
	_ "embed"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	"example.com/schedlock/internal/bench/page"
)

// sectionText is the text below the heading "Beside the peers".
//
//go:embed page.tmpl
var sectionText string

func (b *bench) section(begin time.Time, versions [][]string) string {
	s := struct {
		Date                                string
		Took, Idle                          time.Duration
		Processors                          int
		Calls, Handovers, Crashes           int
		Ratios, Medians, Settings, Versions [][]string
		Failed                              []string
	}{Date: begin.UTC().Format(time.DateOnly), Took: time.Since(begin).Round(time.Second),
		Idle: b.idle, Processors: runtime.NumCPU(), Calls: b.calls, Handovers: b.handovers,
		Crashes: b.crashes, Versions: versions}
	for _, c := range b.contestants {
		mine, here := b.figures(c.name), b.figures(c.here)
		ratio, row := []string{c.name}, []string{c.name}
		for i := range mine {
			times, took := "", ""
			if mine[i] > 0 {
				took = page.Nanoseconds(mine[i])
				if here[i] > 0 {
					times = page.Number(mine[i] / here[i])
				}
			}
			ratio, row = append(ratio, times), append(row, took)
		}
		if n := b.results[c.name].tooSlow; n > 0 {
			row[2] = strings.TrimSpace(fmt.Sprintf("%s (%d of %d over %v)", row[2], n, b.crashes,
				b.patience))
		}
		if c.here != c.name {
			s.Ratios = append(s.Ratios, ratio)
		}
		s.Medians = append(s.Medians, row)
		s.Settings = append(s.Settings, []string{c.name, c.settings})
		for _, why := range b.results[c.name].failed {
			s.Failed = append(s.Failed, c.name+": "+why)
		}
	}
	var text strings.Builder
	t := template.Must(template.New("section").Funcs(template.FuncMap{"rows": page.Rows}).
		Parse(sectionText))
	if err := t.Execute(&text, s); err != nil {
		panic(err)
	}
	return page.Wrap(text.String())
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
