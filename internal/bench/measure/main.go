//go:build linux

// Command measure measures what takes several processes, runs the benchmarks,
// and writes docs/benchmarks.md:
//
//	go run ./internal/bench/measure -o docs/benchmarks.md
//
// The benchmarks that need a real database are its tests:
//
//	go test -run '^$' -bench . ./internal/bench/measure
//
// The replicas are this program itself, started again, with package startup.
// PostgreSQL and MariaDB are temporary servers; without its programs, one is left out.
// Everything it starts is stopped, also after Ctrl-C. The databases lie in the
// folder for temporary files: set TMPDIR to measure another file system.
//
// With -only it measures some parts; the page then says of the others that they
// were not measured.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.com/schedlock/internal/bench/page"
)

// A part of the measurement.
type part struct {
	name    string
	measure func(*measurer, context.Context) error
}

// parts are all of them, in the order in which they are measured.
var parts = []part{
	{"start", (*measurer).starts},
	{"change", (*measurer).changes},
	{"crowd", (*measurer).crowds},
	{"idle", (*measurer).idle},
	{"growth", (*measurer).growth},
	{"size", (*measurer).sizes},
	{"bench", (*measurer).benchmarks},
}

func main() {
	serveReplica()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// run is main.
func run(ctx context.Context, args []string, progress io.Writer) (err error) {
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.SetOutput(progress)
	out := flags.String("o", "", "the file to write; empty: standard output")
	quick := flags.Bool("quick", false,
		"a few rounds of each, to try the program out: the figures say nothing")
	only := flags.String("only", "", "the parts to measure, separated by commas: "+
		names()+"; empty: all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	m, err := newMeasurer(*quick)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()

	m.report.Date = time.Now().UTC()
	m.report.Command = strings.Join(append([]string{"go run ./internal/bench/measure"},
		args...), " ")
	var errs []error
	for _, p := range chosen {
		begin := time.Now()
		fmt.Fprintf(progress, "%s …\n", p.name)
		m.noise(ctx, p.name)
		if err := p.measure(m, ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			m.report.Failed = append(m.report.Failed, p.name)
		}
		fmt.Fprintf(progress, "%s: %v\n", p.name, time.Since(begin).Round(time.Second))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	m.noise(ctx, "the end")
	m.report.Took = time.Since(m.report.Date)
	m.report.Facts = m.facts(ctx)
	old, _ := os.ReadFile(*out) // there may be none
	_, peers := page.Split(string(old))
	text := page.Join(m.report.page(), cmp.Or(peers, "Not measured yet: run `make peers`."))
	if *out == "" {
		_, err = os.Stdout.WriteString(text)
	} else {
		err = os.WriteFile(*out, []byte(text), 0o644)
	}
	return errors.Join(append(errs, err)...)
}

func names() string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return strings.Join(all, ", ")
}

// choose returns the parts that are named, all if none is.
func choose(only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	var chosen []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("-only %q: %q is no part: name some of %s", only, name, names())
		}
		chosen = append(chosen, parts[i])
	}
	return chosen, nil
}
