//go:build linux

package faults

import (
	"sync"
	"time"
)

// A StallMeter measures for how long the machine itself stood still: how much
// longer a short sleep took than it should. What a busy machine adds to a
// bound is no fault of the lock.
type StallMeter struct {
	end, ended chan struct{}

	mu     sync.Mutex
	stalls []stall // those worth to remember, in order
}

type stall struct{ at, took time.Duration }

const (
	stallLook  = 5 * time.Millisecond
	stallWorth = 10 * time.Millisecond
)

// NewStallMeter starts to measure, until Stop.
func NewStallMeter() *StallMeter {
	m := &StallMeter{end: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		for last := bootTime(); ; {
			select {
			case <-m.end:
				return
			case <-time.After(stallLook):
			}
			now := bootTime()
			if late := now - last - stallLook; late > stallWorth {
				m.mu.Lock()
				m.stalls = append(m.stalls, stall{now, late})
				m.mu.Unlock()
			}
			last = now
		}
	}()
	return m
}

// Stop ends the measuring.
func (m *StallMeter) Stop() {
	close(m.end)
	<-m.ended
}

// Worst is the longest stall within a span.
func (m *StallMeter) Worst(s Span) (worst time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, st := range m.stalls {
		if st.at >= s.From && st.at-st.took <= s.To {
			worst = max(worst, st.took)
		}
	}
	return worst
}
