package bans

import (
	"fmt"
	"strings"
)

// Report is what an import did.
type Report struct {
	Files []FileReport // in the order of their names
}

// FileReport is what an import found in one file.
type FileReport struct {
	Name       string
	Lines      int     // lines read, comments and empty ones too
	Bans       int     // bans stored, new or seen again
	Duplicates int     // networks that this import had stored already
	Garbage    int     // lines that are neither a network nor a comment
	FirstBad   BadLine // the first of them
	Err        error   // why the file could not be read, or not to its end
}

// Total returns the sums over all files, without names, lines and errors.
func (r Report) Total() FileReport {
	var total FileReport
	for _, f := range r.Files {
		total.Lines += f.Lines
		total.Bans += f.Bans
		total.Duplicates += f.Duplicates
		total.Garbage += f.Garbage
	}
	return total
}

// Errors returns the number of files that could not be read to their end.
func (r Report) Errors() int {
	n := 0
	for _, f := range r.Files {
		if f.Err != nil {
			n++
		}
	}
	return n
}

// String returns the sums on one line.
func (r Report) String() string {
	return fmt.Sprintf("%d lists: %s, %d unreadable", len(r.Files), r.Total().counts(), r.Errors())
}

// String returns the file's counts, its error and its first garbage line, on one
// line.
func (f FileReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q: %s", f.Name, f.counts())
	if f.Err != nil {
		fmt.Fprintf(&b, "; unreadable: %v", f.Err)
	}
	if f.Garbage > 0 {
		fmt.Fprintf(&b, "; first %s", f.FirstBad)
	}
	return b.String()
}

func (f FileReport) counts() string {
	return fmt.Sprintf("%d lines, %d bans, %d duplicates, %d garbage lines", f.Lines, f.Bans,
		f.Duplicates, f.Garbage)
}
