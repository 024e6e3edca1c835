package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind says what a process writes down.
type Kind string

// What a process writes down, in the order of a life.
const (
	KindUp        Kind = "up"        // the database is open
	KindElected   Kind = "elected"   // the lock's own event
	KindStart     Kind = "start"     // a run began: the first thing that a job does
	KindCancelled Kind = "cancelled" // the context of a run has ended
	KindCommitted Kind = "committed" // a fenced write
	KindRefused   Kind = "refused"   // by the fence
	KindFailed    Kind = "failed"    // a fenced write, for any other reason
	KindEnd       Kind = "end"       // a run returned
	KindLost      Kind = "lost"      // the lock's own event
	KindReleased  Kind = "released"  // the lock's own event
	KindDown      Kind = "down"      // was told to end (SIGTERM)
	KindStarved   Kind = "starved"   // had no processor; Tick is the time since boot of its begin
)

// What a process writes down of the orders that it gives. Attempt is the
// number of the order in its Control.
const (
	KindAsking   Kind = "asking"   // will ask for a run of the job
	KindAsked    Kind = "asked"    // has; Tick is the time of the request
	KindPausing  Kind = "pausing"  // will pause all jobs
	KindPaused   Kind = "paused"   // has; Tick is the time of the pause
	KindResuming Kind = "resuming" // will end that pause
	KindResumed  Kind = "resumed"  // has
	KindDeclined Kind = "declined" // an error was the answer: it may have been done, or not
)

// A Record is one line of a process's log. At counts from the boot of the
// machine, suspend included (CLOCK_BOOTTIME). Tick is in Unix microseconds.
type Record struct {
	At      time.Duration
	Kind    Kind
	Term    int64
	Job     string // "" where there is none
	Tick    int64
	Attempt int
}

// String is the record's line, without the line feed.
func (r Record) String() string {
	job := r.Job
	if job == "" {
		job = "-"
	}
	return fmt.Sprintf("%d %s %d %s %d %d", int64(r.At), r.Kind, r.Term, job, r.Tick, r.Attempt)
}

// ParseRecord reads what String wrote.
func ParseRecord(line string) (r Record, err error) {
	fields := strings.Fields(line)
	if len(fields) != 6 {
		return r, fmt.Errorf("record %.80q: %d fields, not 6", line, len(fields))
	}
	n, err := numbers(fields[0], fields[2], fields[4], fields[5])
	if err != nil {
		return r, fmt.Errorf("record %.80q: %w", line, err)
	}
	r = Record{At: time.Duration(n[0]), Kind: Kind(fields[1]), Term: n[1], Job: fields[3],
		Tick: n[2], Attempt: int(n[3])}
	if r.Job == "-" {
		r.Job = ""
	}
	return r, nil
}

// numbers parses them all. The harness reads its files many times a second, so
// fmt would be too slow.
func numbers(texts ...string) ([]int64, error) {
	numbers := make([]int64, len(texts))
	for i, text := range texts {
		var err error
		if numbers[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// A Belief is one line of a process's beliefs file: it led in this term when
// it was asked first, and when it was asked last.
type Belief struct {
	Process string // not in the file
	Term    int64
	Quiet   bool // it was not asked but looked at; see the package comment
	First   Sample
	Last    Sample
	Runs    int // started in this term until Last
}

// A Sample is the time around one leader check.
type Sample struct{ Before, After time.Duration }

// beliefLine is the fixed length of a line, so that it can be overwritten in
// place and never crosses a page: a kill leaves the old line or the new one.
const beliefLine = 128

func (b Belief) line() string {
	quiet := 0
	if b.Quiet {
		quiet = 1
	}
	text := fmt.Sprintf("%d %d %d %d %d %d %d", b.Term, quiet,
		int64(b.First.Before), int64(b.First.After), int64(b.Last.Before), int64(b.Last.After),
		b.Runs)
	return fmt.Sprintf("%-*s\n", beliefLine-1, text)
}

func parseBelief(process, line string) (Belief, error) {
	n, err := numbers(strings.Fields(line)...)
	if err == nil && len(n) != 7 {
		err = fmt.Errorf("%d numbers, not 7", len(n))
	}
	if err != nil {
		return Belief{}, fmt.Errorf("belief %.80q: %w", line, err)
	}
	sample := func(i int) Sample { return Sample{time.Duration(n[i]), time.Duration(n[i+1])} }
	return Belief{Process: process, Term: n[0], Quiet: n[1] == 1, First: sample(2), Last: sample(4),
		Runs: int(n[6])}, nil
}

// readRecords reads a log. A process that was killed before it made one has
// done nothing.
func readRecords(path string) ([]Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var records []Record
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		r, err := ParseRecord(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		records = append(records, r)
	}
	return records, lines.Err()
}

// lastRecords returns the last records of a log, the newest first.
func lastRecords(path string) []Record {
	const most = 4096
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	text := make([]byte, min(end, most))
	if _, err := f.ReadAt(text, end-int64(len(text))); err != nil {
		return nil
	}
	var records []Record
	for line := range strings.Lines(string(text)) { // the first may be cut
		if r, err := ParseRecord(strings.TrimSuffix(line, "\n")); err == nil &&
			strings.HasSuffix(line, "\n") {
			records = append(records, r)
		}
	}
	slices.Reverse(records)
	return records
}

func readBeliefs(path, process string) ([]Belief, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // as in readRecords
	}
	if err != nil {
		return nil, err
	}
	var beliefs []Belief
	for line := range strings.Lines(string(text)) {
		b, err := parseBelief(process, line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		beliefs = append(beliefs, b)
	}
	return beliefs, nil
}

// lastBelief reads the last line of a beliefs file; ok is false if there is
// none.
func lastBelief(path, process string) (b Belief, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return b, false
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end < beliefLine {
		return b, false
	}
	var line [beliefLine]byte
	if _, err := f.ReadAt(line[:], end/beliefLine*beliefLine-beliefLine); err != nil {
		return b, false
	}
	b, err = parseBelief(process, string(line[:]))
	return b, err == nil
}
