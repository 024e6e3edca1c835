//go:build linux

package main

import (
	"math"
	"slices"
	"time"

	"example.com/schedlock/internal/bench/page"
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

// String is the median and the largest; nothing if it was not measured.
func (s sample) String() string {
	if len(s) == 0 {
		return ""
	}
	return page.Time(s.p50()) + " (" + page.Time(s.max()) + ")"
}
