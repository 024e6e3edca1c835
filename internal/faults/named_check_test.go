package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// held is a hold that was looked at from one moment to another.
func held(process string, term int64, from, to time.Duration) Hold {
	return Hold{Process: process, Name: "n", Term: term, Before: from - 10*time.Microsecond,
		Span: Span{from, to}}
}

// work is a capture that was certain from one moment to another, and then ended.
func work(process string, attempt int, from, to time.Duration, end Kind) Work {
	return Work{Process: process, Task: "t", Attempt: attempt, Sent: from - ms,
		Span: Span{from, to}, End: end, Asked: to, Ended: to + ms}
}

func TestHoldsAreMadeOfRecords(t *testing.T) {
	const later = 300 * ms
	at := func(at time.Duration, k Kind, term int64, attempt int) Record {
		return Record{At: at, Kind: k, Job: "n", Term: term, Attempt: attempt}
	}
	took := func(quiet int, term int64) Record {
		r := at(5, KindTook, term, quiet)
		r.Tick = 4
		return r
	}
	assert.Equal(t, []Hold{
		{Process: "a", Name: "n", Term: 1, Before: 4, Span: Span{5, 8}, Lost: true},
		{Process: "a", Name: "n", Term: 2, Before: 4, Span: Span{5, 4}},
		{Process: "a", Name: "n", Term: 3, Quiet: true, Before: 4,
			Span: Span{5, later - quietGrace}},
	}, holdsOf("a", []Record{
		took(0, 1), at(7, KindHolds, 1, 0), at(8, KindHolds, 1, 0), at(9, KindLeft, 1,
			1), took(0, 2),
		took(1, 3), at(later, KindHolds, 3, 0), at(later, KindLeft, 3, 0), at(6, KindLeft, 4, 0),
	}))
}

func TestTasksAreMadeOfRecords(t *testing.T) {
	at := func(at time.Duration, k Kind, task string, attempt int) Record {
		return Record{At: at, Kind: k, Job: task, Attempt: attempt}
	}
	late := func(r Record) Record { r.Term = 1; return r }
	captured := func(r Record, held int64) Record { r.Tick, r.Term = 4, held; return r }
	records := []Record{
		at(1, KindAdding, "t", 3), at(2, KindAdded, "t", 3), at(3, KindAdding, "u", 0),
		captured(at(5, KindCaptured, "t", 1), 1), at(6, KindWorks, "t",
			1), late(at(7, KindDoing, "t", 1)), at(8, KindEnded, "t", 1),
		captured(at(5, KindCaptured, "t", 2), 0), at(7, KindFailing, "t", 2), at(8, KindGone,
			"t", 2),
		captured(at(5, KindCaptured, "u", 1), 1), at(9, KindWorks, "v", 1),
	}
	assert.Equal(t, []Added{{"t", 3, 1, 2}, {"u", 0, 3, 0}}, addedOf(records))
	assert.Equal(t, []Work{
		{Process: "a", Task: "t", Attempt: 1, Sent: 4, Span: Span{5, 6}, End: KindDoing, Asked: 7,
			Late: true, Ended: 8},
		{Process: "a", Task: "t", Attempt: 2, Sent: 4, End: KindFailing, Asked: 7},
		{Process: "a", Task: "u", Attempt: 1, Sent: 4, Span: Span{5, 4}},
	}, worksOf("a", records))
}

func TestTheLastRecordsOfALongLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var text strings.Builder
	for n := range 1000 {
		text.WriteString(Record{At: time.Duration(n), Kind: KindHolds, Job: "n"}.String() + "\n")
	}
	require.NoError(t, os.WriteFile(path, []byte(text.String()+"17 ho"), 0o600))
	records := lastRecords(path)
	require.Greater(t, len(records), 100)
	assert.Equal(t, time.Duration(999), records[0].At)
	assert.Equal(t, time.Duration(998), records[1].At)
	assert.Nil(t, lastRecords(path+"x"))
}

func TestTheEvidenceOfATaskIsItsRecords(t *testing.T) {
	h := healthy()
	h.Works[0].To = 115 * ms
	h.LockLogs = map[string][]Record{"a": {{At: 100 * ms, Kind: KindWorks, Job: "t", Attempt: 1},
		{At: 100 * ms, Kind: KindWorks, Job: "u", Attempt: 7}}}
	vs := Check(h, 0, nil)
	require.Len(t, vs, 1)
	evidence := Evidence(h, vs[0], t.TempDir())
	assert.Contains(t, evidence, "a 100000000 works 0 t 0 1")
	assert.NotContains(t, evidence, "works 0 u 0 7")
}
