package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// led is a belief that was looked at from one moment to another.
func led(process string, term int64, from, to time.Duration) Belief {
	const check = 10 * time.Microsecond
	return Belief{Process: process, Term: term, First: Sample{from - check, from},
		Last: Sample{to, to + check}}
}

// ran is a run that returned.
func ran(process string, term int64, tick int64, from, to time.Duration) Run {
	return Run{Process: process, Term: term, Job: "j", Tick: tick * grid, Attempt: 1, Start: from,
		End: to, LastSign: to + time.Hour}
}

func cancelled(r Run, at time.Duration) Run { r.Cancelled = at; return r }

// cut is a run whose process was killed.
func cut(r Run) Run { r.End, r.LastSign = 0, r.End; return r }

func quiet(b Belief) Belief { b.Quiet = true; return b }

func rows(rows ...LedgerRow) []LedgerRow { return rows }

// grid is the interval of the job, in microseconds. Its ticks have numbers.
const grid = 100_000

func row(term, tick int64) LedgerRow {
	return LedgerRow{ID: tick, Job: "j", Tick: tick * grid, Attempt: 1, Term: term, Started: true}
}

func skipped(first, last int64) LedgerRow {
	r := LedgerRow{ID: first, Job: "j", Tick: first * grid, Term: 3, Reason: "missed"}
	if last > first {
		r.Until, r.Count = last*grid, last-first+1
	}
	return r
}

// drop takes the third row out of the ledger, and its run out of the history.
func drop(h *History) {
	h.Ledger, h.Runs = slices.Delete(h.Ledger, 2, 3), slices.Delete(h.Runs, 2, 3)
}

// anew is what happens if the cursors are deleted while a clock is behind: the
// job starts anew before ticks that have rows.
func anew(h *History) {
	h.Injections[0].Fault = "clock stepped"
	h.Anew = []Anew{{Newest: 5}}
	rest := skipped(2, 7) // the range from tick 1 on, which has a row
	rest.Tick = grid + 1
	h.Ledger = append(h.Ledger, skipped(0, 0), rest, skipped(8, 8))
	for i := range h.Ledger {
		h.Ledger[i].ID = int64(i + 1)
	}
	h.Jobs[0].Cursor = 8 * grid
}

// again is the row after a later attempt.
func again(r LedgerRow, term int64, attempt int) LedgerRow {
	r.Term, r.Attempt = term, attempt
	return r
}

func attempt(n int, r Run) Run { r.Attempt = n; return r }

// tried adds a later attempt of a run of healthy, which the ledger has.
func tried(h *History, n int, r Run) {
	h.Runs = append(h.Runs, attempt(n, r))
	i := r.Tick/grid - 1
	h.Ledger[i] = again(h.Ledger[i], r.Term, n)
}

// ask lets process a ask for a run; granted is 0 if it got no answer.
func ask(h *History, granted time.Duration) {
	records := []Record{{At: 500 * ms, Kind: KindAsking, Job: "j", Attempt: 1}}
	if granted > 0 {
		records = append(records, Record{At: granted, Kind: KindAsked, Job: "j", Attempt: 1,
			Tick: 78})
	}
	h.Logs = map[string][]Record{"a": records}
}

// asked is the row of a request of process a.
func asked() LedgerRow {
	r := row(3, 0)
	r.ID, r.Tick, r.AskedBy, r.AskedFor = 100, 78, "a", "1"
	return r
}

// pause lets process a pause everything; it lasts until somebody is about to
// resume (0: to the end).
func pause(h *History, asked, from, to time.Duration) {
	records := []Record{{At: asked, Kind: KindPausing, Attempt: 5},
		{At: from, Kind: KindPaused, Attempt: 5, Tick: 100}}
	if to > 0 {
		records = append(records, Record{At: to, Kind: KindResuming, Attempt: 6})
	}
	if h.Logs == nil {
		h.Logs = map[string][]Record{}
	}
	h.Logs["a"] = records
}

// healthy is a hand-over from a to b, and a kill of b that c survives.
func healthy() *History {
	return &History{
		Beliefs: []Belief{led("a", 1, 0, 100*ms), led("b", 2, 101*ms, 300*ms),
			led("c", 3, 400*ms, 900*ms)},
		Runs: []Run{
			ran("a", 1, 1, 10*ms, 20*ms), ran("a", 1, 2, 50*ms, 99*ms),
			ran("b", 2, 3, 110*ms, 120*ms), cut(ran("b", 2, 4, 250*ms, 300*ms)),
			ran("c", 3, 5, 410*ms, 420*ms),
		},
		Terms:  []int64{1, 2, 3, 4},
		Ledger: rows(row(1, 1), row(1, 2), row(2, 3), row(2, 4), row(3, 5)),
		Jobs:   []JobRow{{Name: "j", Spec: "every 100ms offset 0s", Cursor: 5*grid + 1}},
		Writes: []Write{{"", 1}, {"", 1}, {"", 2}, {"", 3}, {"n", 1}, {"n", 3}},
		Holds: []Hold{held("a", 1, 10*ms, 50*ms), held("b", 2, 60*ms, 120*ms),
			held("a", 3, 130*ms, 140*ms)},
		Added: []Added{{Task: "t", Retries: 1, Asked: 5 * ms, Granted: 6 * ms}},
		Works: []Work{work("a", 1, 10*ms, 30*ms, KindFailing),
			work("b", 2, 110*ms, 120*ms, KindDoing)},
		Tasks: []TaskRow{{"t", "done", 2, 0}},
		Injections: []Injection{{Fault: "kill", From: 300 * ms, To: 300 * ms, Until: 800 * ms,
			Bound: 200 * ms}},
	}
}

func TestRecordsAndBeliefsReadBackAsWritten(t *testing.T) {
	for _, r := range []Record{
		{At: 5, Kind: KindStart, Term: 7, Job: "tick", Tick: 1795259582395000, Attempt: 1},
		{At: 6, Kind: KindLost, Term: 8},
	} {
		got, err := ParseRecord(r.String())
		require.NoError(t, err)
		assert.Equal(t, r, got)
	}
	_, err := ParseRecord("5 start 7")
	assert.ErrorContains(t, err, `record "5 start 7"`)

	b := quiet(led("a", 1795263364863, 100*time.Hour, 101*time.Hour))
	b.Runs = 12345
	line := b.line()
	assert.Len(t, line, beliefLine)
	got, err := parseBelief("a", line)
	require.NoError(t, err)
	assert.Equal(t, b, got)
}

func TestRunsAreMadeOfRecords(t *testing.T) {
	at := func(at time.Duration, k Kind, tick int64) Record {
		return Record{At: at, Kind: k, Term: 1, Job: "j", Tick: tick, Attempt: 1}
	}
	runs := runsOf("a", []Record{at(1, KindStart, 1), at(2, KindStart, 2), at(3, KindCancelled, 1),
		at(4, KindEnd, 1)}, []Belief{led("a", 1, 0, 9*ms)})
	assert.Equal(t, []Run{
		{Process: "a", Term: 1, Job: "j", Tick: 1, Attempt: 1, Start: 1, Cancelled: 3, End: 4,
			LastSign: 9 * ms},
		{Process: "a", Term: 1, Job: "j", Tick: 2, Attempt: 1, Start: 2, LastSign: 9 * ms},
	}, runs)
}

func TestATimeWithoutAProcessorIsAStop(t *testing.T) {
	records := []Record{{At: 5 * time.Second, Kind: KindUp},
		{At: 9 * time.Second, Kind: KindStarved, Tick: 7_000_000}}
	assert.Equal(t, []Span{{7 * time.Second, 9 * time.Second}}, starved(records))
}
