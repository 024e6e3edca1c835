//go:build linux

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A sample is what the rounds of one measurement took, shortest first.
type sample []time.Duration

func newSample(took []time.Duration) sample {
	s := slices.Clone(took)
	slices.Sort(s)
	return s
}

// quantile returns the smallest value that at least q of all do not exceed.
func (s sample) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[max(int(math.Ceil(q*float64(len(s))))-1, 0)]
}

func (s sample) p50() time.Duration { return s.quantile(0.5) }
func (s sample) p99() time.Duration { return s.quantile(0.99) }
func (s sample) max() time.Duration { return s.quantile(1) }

// cells are rounds, p50, p99 and max of a table.
func (s sample) cells() []string {
	if len(s) == 0 {
		return []string{"0", "", "", ""}
	}
	return []string{fmt.Sprint(len(s)), show(s.p50()), show(s.p99()), show(s.max())}
}

// histogram draws the sample in text, in steps of 1, 2, 5, 10, 20, …
func (s sample) histogram() string {
	if len(s) == 0 {
		return ""
	}
	var edges []time.Duration // of the buckets: [edge, next)
	for edge := time.Duration(1); ; {
		for _, step := range []time.Duration{1, 2, 5} {
			edges = append(edges, edge*step)
		}
		if edge *= 10; edge > s.max()*10 || edge > math.MaxInt64/100 {
			break
		}
	}
	first, _ := slices.BinarySearch(edges, s[0]+1)
	last, _ := slices.BinarySearch(edges, s.max()+1)
	var b strings.Builder
	for i := max(first, 1); i <= last; i++ {
		from, _ := slices.BinarySearch(s, edges[i-1])
		to, _ := slices.BinarySearch(s, edges[i])
		bar := (to - from) * 40 / len(s)
		if to > from {
			bar = max(bar, 1)
		}
		fmt.Fprintf(&b, "%8s – %-8s %4d %s\n", show(edges[i-1]), show(edges[i]), to-from,
			strings.Repeat("#", bar))
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

// show writes a duration with three digits and the unit that fits.
func show(d time.Duration) string {
	unit, name := time.Second, "s"
	switch a := d.Abs(); {
	case a == 0:
		return "0"
	case a < time.Microsecond:
		unit, name = time.Nanosecond, "ns"
	case a < time.Millisecond:
		unit, name = time.Microsecond, "µs"
	case a < time.Second:
		unit, name = time.Millisecond, "ms"
	}
	return digits(float64(d)/float64(unit)) + " " + name
}

// digits writes a number with three significant digits, never with an exponent.
func digits(f float64) string {
	switch a := math.Abs(f); {
	case a == 0:
		return "0"
	case a >= 99.95:
		return fmt.Sprintf("%.0f", f)
	case a >= 9.995:
		return trim(fmt.Sprintf("%.1f", f))
	case a >= 0.9995:
		return trim(fmt.Sprintf("%.2f", f))
	}
	return trim(fmt.Sprintf("%.3f", f))
}

func trim(s string) string {
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// bytes writes a size.
func bytes(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if math.Abs(n) >= u.size {
			return digits(n/u.size) + " " + u.name
		}
	}
	return digits(n) + " B"
}
