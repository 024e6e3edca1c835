package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/schedlock/schedlock/ledger"
)

// offerJobs adds the jobs that there are to an error that says that there is no such
// job. Other errors stay as they are.
func (t *tool) offerJobs(ctx context.Context, s store, job string, err error) error {
	if !errors.Is(err, ledger.ErrNoJob) {
		return err
	}
	list, readErr := s.Jobs(ctx)
	if readErr != nil {
		return err // the one that was asked for
	}
	if len(list) == 0 {
		return fmt.Errorf("%w; %s", err, noJobs)
	}
	known := convert(list, func(j ledger.Job) string { return j.Name })
	if meant := nearest(job, known); meant != "" {
		return fmt.Errorf("%w; did you mean %q? Known jobs: %s", err, meant, someNames(known))
	}
	return fmt.Errorf("%w; known jobs: %s", err, someNames(known))
}

const noJobs = "there are no jobs: no leader has had any yet"

// knownJob is an error that offers names unless some leader has had the job.
func (t *tool) knownJob(ctx context.Context, s store, job string) error {
	list, err := s.Jobs(ctx)
	if err != nil || slices.ContainsFunc(list, func(j ledger.Job) bool { return j.Name == job }) {
		return err
	}
	return t.offerJobs(ctx, s, job, ledger.NoJob(job))
}

// someNames are as many names as a message has room for.
func someNames(names []string) string {
	const most = 20
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

var flagIsUnknown = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)

// meantFlag is what an error about an unknown flag adds: the flag that may be meant, or "".
func meantFlag(text string, flags *flag.FlagSet) string {
	m := flagIsUnknown.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	var known []string
	flags.VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 { // one letter is near everything
			known = append(known, f.Name)
		}
	})
	return didYouMean(m[1], "--", known)
}
