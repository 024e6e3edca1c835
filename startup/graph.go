package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// defaultStartTimeout is the StartTimeout of a stage that sets none.
	defaultStartTimeout = 30 * time.Second

	// defaultStopTimeout is the StopTimeout of a stage that sets none.
	defaultStopTimeout = 10 * time.Second

	// grace is what a stage gets in any case: to return once its context has
	// been cancelled, and to stop when the budget of Graph.Stop is used up.
	grace = time.Second
)

// Stage is one part of an application.
//
// Start and Stop are each called at most once, on a goroutine of their own, and
// never while a function of another stage runs, unless that one was left behind
// after its deadline.
type Stage struct {
	// Name identifies the stage in After, errors and logs. It must be unique
	// and not blank.
	Name string

	// After names the stages that must have started before this one starts, and
	// that are stopped only after this one has stopped.
	After []string

	// Start brings the stage up and returns; what is to go on runs on
	// goroutines that Stop ends. Its context is cancelled when StartTimeout
	// passes, when the caller gives up, and as soon as Start has returned: tie
	// no goroutine to it that is to outlive Start. A Start that fails must
	// clean up after itself, as Stop is not called then. Nil: nothing to do.
	Start func(ctx context.Context) error

	// Stop undoes Start. It is called only if Start succeeded, even if it did so
	// too late. Its context is cancelled when StopTimeout or the budget of
	// Graph.Stop is used up; its deadline tells how long there is. Nil: nothing
	// to do.
	Stop func(ctx context.Context) error

	// StartTimeout is how long Start may take. 0 means 30 s; negative
	// is refused.
	StartTimeout time.Duration

	// StopTimeout is how long Stop may take. 0 means 10 s; negative
	// is refused.
	StopTimeout time.Duration
}

// Graph is a checked and ordered list of stages. It goes through one life:
// New, Start, Stop; it cannot be started again. All methods may be called
// concurrently.
type Graph struct {
	stages []Stage // in the order in which they start
	log    *slog.Logger

	mu        sync.Mutex
	begun     bool                    // Start or Stop was called
	interrupt context.CancelCauseFunc // ends the running Start; nil before it
	stopCtx   context.Context         // of the first Stop; nil before it

	// settled is closed when started and late change no more: no further stage
	// will be started.
	settled chan struct{}
	started []Stage    // in the order in which they started
	late    *lateStart // the stage that was left behind while it started, or nil

	budget context.Context    // ends with the shortest budget given to Stop
	cut    context.CancelFunc // ends budget

	unwindOnce once
	unwindErrs []error
	stopOnce   once
	stopErr    error
}

// New checks stages and puts them in order: of the stages whose dependencies
// all come earlier, the one given first is next. It starts nothing. The graph logs
// one line for each stage that started or stopped, and one for each that failed
// to. A log that is nil is slog.Default() at the time of New.
//
// The error names every fault, not only the first: blank and duplicate names,
// dependencies that no stage bears the name of, negative timeouts, and cycles. Of
// cycles that share a stage at least one is named.
func New(stages []Stage, log *slog.Logger) (*Graph, error) {
	g := &Graph{log: cmp.Or(log, slog.Default()), settled: make(chan struct{}),
		unwindOnce: newOnce(), stopOnce: newOnce()}
	g.budget, g.cut = context.WithCancel(context.Background())

	faults := check(stages)
	ordered, cycles := order(stages)
	for _, cycle := range cycles {
		faults = append(faults,
			fmt.Errorf("stages wait for each other: %s; break the cycle in After",
				strings.Join(cycle, " → ")))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}

	for _, st := range ordered {
		if st.StartTimeout == 0 {
			st.StartTimeout = defaultStartTimeout
		}
		if st.StopTimeout == 0 {
			st.StopTimeout = defaultStopTimeout
		}
		g.stages = append(g.stages, st)
	}
	return g, nil
}

// check returns every fault that is not a cycle.
func check(stages []Stage) []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}

	position := make(map[string]int, len(stages)) // counted from 1
	for i, st := range stages {
		first, taken := position[st.Name]
		switch {
		case strings.TrimSpace(st.Name) == "":
			fault("stage %d of %d: its name %q is blank; every stage needs a name", i+1,
				len(stages), st.Name)
		case taken:
			fault("stage %d of %d: its name %q is that of stage %d; names must be unique", i+1,
				len(stages), st.Name, first)
		default:
			position[st.Name] = i + 1
		}
	}
	for _, st := range stages {
		for _, dep := range st.After {
			if _, known := position[dep]; !known {
				fault("stage %q: After names %q, but no stage has that name", st.Name, dep)
			}
		}
		if st.StartTimeout < 0 {
			fault("stage %q: StartTimeout %v is negative; 0 means %v", st.Name, st.StartTimeout,
				defaultStartTimeout)
		}
		if st.StopTimeout < 0 {
			fault("stage %q: StopTimeout %v is negative; 0 means %v", st.Name, st.StopTimeout,
				defaultStopTimeout)
		}
	}
	return faults
}

// order sorts stages so that each comes after its dependencies, ties by the
// order given, and returns the cycles that make this impossible. A name that no
// stage has, and a stage with a name that is taken, are passed over: check
// reports them.
func order(stages []Stage) (ordered []Stage, cycles [][]string) {
	waiting := make(map[string]bool, len(stages))
	isWaiting := func(name string) bool { return waiting[name] }
	var rest []Stage
	for _, st := range stages {
		if !waiting[st.Name] {
			waiting[st.Name] = true
			rest = append(rest, st)
		}
	}

	for len(rest) > 0 {
		next := slices.IndexFunc(rest, func(st Stage) bool {
			return !slices.ContainsFunc(st.After, isWaiting)
		})
		if next < 0 {
			// All of them wait. Name a cycle, then look on as if its stages
			// did not wait, so that the next cycle is found too.
			cycle := findCycle(rest, isWaiting)
			cycles = append(cycles, cycle)
			for _, name := range cycle {
				delete(waiting, name)
			}
			rest = slices.DeleteFunc(rest, func(st Stage) bool { return !waiting[st.Name] })
			continue
		}
		ordered = append(ordered, rest[next])
		delete(waiting, rest[next].Name)
		rest = slices.Delete(rest, next, next+1)
	}
	return ordered, cycles
}

// findCycle returns a cycle as its names, from the one given first round to the
// same again, each waiting for the next. Every stage in rest must wait for a
// stage in rest.
func findCycle(rest []Stage, isWaiting func(string) bool) []string {
	find := func(name string) int {
		return slices.IndexFunc(rest, func(st Stage) bool { return st.Name == name })
	}
	var path []int
	at := 0
	for !slices.Contains(path, at) {
		path = append(path, at)
		dep := slices.IndexFunc(rest[at].After, isWaiting)
		at = find(rest[at].After[dep])
	}
	path = path[slices.Index(path, at):] // without the way to the cycle

	first := slices.Index(path, slices.Min(path))
	var cycle []string
	for _, i := range slices.Concat(path[first:], path[:first+1]) {
		cycle = append(cycle, rest[i].Name)
	}
	return cycle
}
