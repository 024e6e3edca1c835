package faults

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// addLocks reads what a process wrote down of named locks and tasks.
func (h *History) addLocks(process, path string) error {
	records, err := readRecords(path)
	if err != nil || records == nil {
		return err
	}
	if h.LockLogs == nil {
		h.LockLogs = map[string][]Record{}
	}
	h.LockLogs[process] = records
	h.Holds = append(h.Holds, holdsOf(process, records)...)
	h.Added = append(h.Added, addedOf(records)...)
	h.Works = append(h.Works, worksOf(process, records)...)
	return nil
}

// concerns reports whether a record of named locks and tasks belongs to a
// violation.
func (h *History) concerns(v Violation, r Record) bool {
	switch v.Rule {
	case RuleOneHolder, RuleNameTerms, RuleNameFence:
		return strings.Contains(v.Text, fmt.Sprintf("%q", r.Job))
	case RuleOneWorker, RuleTaskEnds, RuleDoneOnce, RuleRetries, RuleNoTaskLost:
		return strings.Contains(v.Text, r.Job+" ")
	}
	return false
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
