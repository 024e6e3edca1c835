package main

import (
	"context"
	"errors"
	"fmt"
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

// didYouMean is what an error adds about a word that is none of the known ones: the one that
// may be meant, behind a prefix, or "".
func didYouMean(word, prefix string, known []string) string {
	if meant := nearest(word, known); meant != "" {
		return "; did you mean " + prefix + meant + "?"
	}
	return ""
}

// nearest is the known word that a slip may have made the given one of; "": none is near.
func nearest(word string, known []string) (meant string) {
	best := min(3, len(word)) // more than a slip
	for _, k := range known {
		if d := distance(word, k); d < best {
			best, meant = d, k
		}
	}
	return meant
}

// distance is how many letters have to be added, removed or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from what of a was seen, to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := before
			if a[i] != b[j] {
				changed++
			}
			before = row[j+1]
			row[j+1] = min(changed, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
