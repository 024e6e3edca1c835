package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// led is a belief that was looked at from one moment to another.
func led(process string, term int64, from, to time.Duration) Belief {
	const check = 10 * time.Microsecond
	return Belief{Process: process, Term: term, First: Sample{from - check, from}, Last: Sample{to, to + check}}
}

// ran is a run that returned.
func ran(process string, term int64, tick int64, from, to time.Duration) Run {
	return Run{Process: process, Term: term, Job: "j", Tick: tick, Attempt: 1, Start: from, End: to, LastSign: to + time.Hour}
}

func cancelled(r Run, at time.Duration) Run { r.Cancelled = at; return r }

// cut is a run whose process was killed.
func cut(r Run) Run { r.End, r.LastSign = 0, r.End; return r }

func quiet(b Belief) Belief { b.Quiet = true; return b }

func ledger(rows ...LedgerRow) []LedgerRow { return rows }

func row(term, tick int64) LedgerRow {
	return LedgerRow{Job: "j", Tick: tick, Attempt: 1, Term: term, Started: true}
}

// healthy is a hand-over from a to b, and a kill of b that c survives.
func healthy() *History {
	return &History{
		Beliefs: []Belief{led("a", 1, 0, 100*ms), led("b", 2, 101*ms, 300*ms), led("c", 3, 400*ms, 900*ms)},
		Runs: []Run{
			ran("a", 1, 1, 10*ms, 20*ms), ran("a", 1, 2, 50*ms, 99*ms),
			ran("b", 2, 3, 110*ms, 120*ms), cut(ran("b", 2, 4, 250*ms, 300*ms)),
			ran("c", 3, 5, 410*ms, 420*ms),
		},
		Terms:      []int64{1, 2, 3, 4},
		Ledger:     ledger(row(1, 1), row(1, 2), row(2, 3), row(2, 4), row(3, 5)),
		Writes:     []int64{1, 1, 2, 3},
		Injections: []Injection{{Fault: "kill", From: 300 * ms, To: 300 * ms, Until: 800 * ms, Bound: 200 * ms}},
	}
}

func TestAHealthyHistoryBreaksNoRule(t *testing.T) {
	assert.Empty(t, Check(healthy(), 0, nil))
}

func TestEachRuleFailsOnAHistoryThatBreaksIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*History)
		rule  string // "": it is not broken
	}{
		{"two led at once", func(h *History) { h.Beliefs = append(h.Beliefs, led("d", 4, 850*ms, 990*ms)) }, RuleOneLeader},
		{"a stopped one believed once more", func(h *History) { h.Beliefs[1] = led("b", 2, 101*ms, 450*ms) }, RuleOneLeader},
		{"one check, while another led", func(h *History) { h.Beliefs = append(h.Beliefs, led("d", 4, 500*ms, 500*ms)) }, RuleOneLeader},
		{"the checks only touch", func(h *History) { h.Beliefs[0].Last = Sample{100 * ms, 102 * ms} }, ""},
		{"a check that was interrupted for long proves nothing", func(h *History) { h.Beliefs[0].Last = Sample{100 * ms, 250 * ms} }, ""},
		{"a quiet one a little late", func(h *History) { h.Beliefs[0] = quiet(led("a", 1, 0, 190*ms)) }, ""},
		{"a quiet one far too late", func(h *History) { h.Beliefs[0] = quiet(led("a", 1, 0, 290*ms)) }, RuleOneLeader},

		{"a term that falls", func(h *History) { h.Beliefs[2].Term = 1 }, RuleTermsRise},
		{"one term for two", func(h *History) { h.Beliefs[2].Term = 2 }, RuleTermsRise},

		{"a run goes on while a later term runs", func(h *History) { h.Runs[1].End = 130 * ms }, RuleRunsApart},
		{"it was told only afterwards", func(h *History) { h.Runs[1] = cancelled(ran("a", 1, 2, 50*ms, 130*ms), 115*ms) }, RuleRunsApart},
		{"it was told before", func(h *History) { h.Runs[1] = cancelled(ran("a", 1, 2, 50*ms, 130*ms), 95*ms) }, ""},
		{"its process was killed later", func(h *History) { h.Runs[1] = cut(ran("a", 1, 2, 50*ms, 130*ms)) }, RuleRunsApart},
		{"its process was stopped", func(h *History) {
			h.Runs[1].End = 130 * ms
			h.Stops = map[string][]Span{"a": {{90 * ms, 125 * ms}}}
		}, ""},
		{"its process was stopped, but is told too late", func(h *History) {
			h.Runs[1] = cancelled(ran("a", 1, 2, 50*ms, 900*ms), 600*ms)
			h.Stops = map[string][]Span{"a": {{90 * ms, 125 * ms}}}
		}, RuleRunsApart},
		{"its process was stopped only later", func(h *History) {
			h.Runs[1].End = 800 * ms
			h.Stops = map[string][]Span{"a": {{200 * ms, 700 * ms}}}
		}, RuleRunsApart},
		{"a run of an old term starts", func(h *History) {
			h.Runs = append(h.Runs, ran("a", 1, 6, 200*ms, 201*ms))
			h.Ledger = nil
		}, RuleRunsApart},

		{"a tick runs twice", func(h *History) {
			h.Runs = append(h.Runs, ran("c", 3, 4, 500*ms, 510*ms))
			h.Ledger = nil
		}, RuleRunOnce},
		{"twice, but the database was put back between", func(h *History) {
			h.Runs = append(h.Runs, ran("c", 3, 4, 500*ms, 510*ms))
			h.Ledger, h.Forgot = nil, []Span{{350 * ms, 360 * ms}}
		}, ""},
		{"again, as a second attempt", func(h *History) {
			again := ran("c", 3, 4, 500*ms, 510*ms)
			again.Attempt = 2
			h.Runs, h.Ledger = append(h.Runs, again), nil
		}, ""},

		{"an old term writes into the ledger", func(h *History) { h.Ledger = append(h.Ledger, row(2, 9)) }, RuleLedgerOrder},
		{"a run that the ledger does not know", func(h *History) { h.Ledger = h.Ledger[:4] }, RuleLedgerTrue},
		{"a run that the ledger has under another term", func(h *History) { h.Ledger[3].Term = 3 }, RuleLedgerTrue},
		{"a run that the ledger has as skipped", func(h *History) { h.Ledger[3].Started = false }, RuleLedgerTrue},
		{"a term that the history does not know", func(h *History) { h.Terms = h.Terms[:2] }, RuleLedgerTrue},
		{"it was lost with the database", func(h *History) { h.Terms, h.Forgot = []int64{3}, []Span{{350 * ms, 360 * ms}} }, ""},

		{"an old term commits", func(h *History) { h.Writes = append(h.Writes, 2) }, RuleFence},

		{"nobody leads for long", func(h *History) { h.Injections[0].Bound = 99 * ms }, RuleSomebody},
		{"nobody leads any more", func(h *History) { h.Injections[0].Until = 2 * time.Second }, RuleSomebody},
		{"nobody need lead", func(h *History) { h.Injections[0].Bound, h.Injections[0].Silent = 0, true }, ""},
		{"nothing runs", func(h *History) { h.Runs, h.Ledger = h.Runs[:4], nil }, RuleStartsWork},
		{"another leads, where it should not", func(h *History) { h.Injections[0].Keeps = 2 }, RuleKeeps},
		{"the fault saw something", func(h *History) { h.Injections[0].Problem = "odd" }, RuleFault},
		{"a process died", func(h *History) { h.Exits = []Exit{{Process: "a", At: 5, Code: 2, Stderr: "panic"}} }, RuleLives},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := healthy()
			tc.spoil(h)
			vs := Check(h, 0, nil)
			if tc.rule == "" {
				assert.Empty(t, vs)
				return
			}
			require.NotEmpty(t, vs)
			for _, v := range vs {
				assert.Equal(t, tc.rule, v.Rule, "%v", v)
			}
		})
	}
}

func TestASlowMachineStretchesTheBounds(t *testing.T) {
	h := healthy()
	h.Injections[0].Bound = 50 * ms // it took 100
	assert.NotEmpty(t, Check(h, 49*ms, nil))
	assert.Empty(t, Check(h, 50*ms, nil))
	assert.Empty(t, Check(h, 0, func(s Span) time.Duration {
		assert.Equal(t, Span{300 * ms, 800 * ms}, s)
		return 25 * ms
	}))
}

func TestAViolationNamesTheFaultBeforeIt(t *testing.T) {
	h := healthy()
	h.Injections = append(h.Injections, Injection{Fault: "later", From: 880 * ms, To: 880 * ms, Until: 890 * ms, Silent: true})
	h.Beliefs = append(h.Beliefs, led("d", 4, 850*ms, 990*ms))
	vs := Check(h, 0, nil)
	require.Len(t, vs, 1)
	assert.Equal(t, "kill", vs[0].Fault)
	assert.Contains(t, Evidence(h, vs[0], t.TempDir()), "d led in term 4")
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
	runs := runsOf("a", []Record{at(1, KindStart, 1), at(2, KindStart, 2), at(3, KindCancelled, 1), at(4, KindEnd, 1)}, []Belief{led("a", 1, 0, 9*ms)})
	assert.Equal(t, []Run{
		{Process: "a", Term: 1, Job: "j", Tick: 1, Attempt: 1, Start: 1, Cancelled: 3, End: 4, LastSign: 9 * ms},
		{Process: "a", Term: 1, Job: "j", Tick: 2, Attempt: 1, Start: 2, LastSign: 9 * ms},
	}, runs)
}

func TestTheTable(t *testing.T) {
	var r Report
	r.line("kill")
	r.line("quake").Note = "no earth"
	h := healthy()
	r.Add(h, Check(h, 0, nil))
	r.Add(h, []Violation{{Fault: "kill"}, {}})
	var text strings.Builder
	require.NoError(t, r.Write(&text))
	assert.Equal(t, `| fault | times | violations | worst time without a leader | bound |
| --- | ---: | ---: | ---: | ---: |
| kill | 2 | 1 | 100ms | 200ms |
| quake | 0 | | no earth | |
| none yet | 0 | 1 | 0s | 0s |
| **total** | **2** | **2** | | |
`, text.String())
}
