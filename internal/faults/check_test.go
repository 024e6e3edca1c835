package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAHealthyHistoryBreaksNoRule(t *testing.T) {
	assert.Empty(t, Check(healthy(), 0, nil))
}

func TestEachRuleFailsOnAHistoryThatBreaksIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*History)
		rule  string // "": it is not broken
	}{
		{"two led at once", func(h *History) {
			h.Beliefs = append(h.Beliefs, led("d", 4, 850*ms, 990*ms))
		}, RuleOneLeader},
		{"a stopped one believed once more", func(h *History) {
			h.Beliefs[1] = led("b", 2, 101*ms, 450*ms)
		}, RuleOneLeader},
		{"one check, while another led", func(h *History) {
			h.Beliefs = append(h.Beliefs, led("d", 4, 500*ms, 500*ms))
		}, RuleOneLeader},
		{"the checks only touch", func(h *History) {
			h.Beliefs[0].Last = Sample{100 * ms, 102 * ms}
		}, ""},
		{"a check that was interrupted for long proves nothing", func(h *History) {
			h.Beliefs[0].Last = Sample{100 * ms, 250 * ms}
		}, ""},
		{"a quiet one a little late", func(h *History) {
			h.Beliefs[0] = quiet(led("a", 1, 0, 190*ms))
		}, ""},
		{"a quiet one far too late", func(h *History) {
			h.Beliefs[0] = quiet(led("a", 1, 0, 290*ms))
		}, RuleOneLeader},

		{"a term that falls", func(h *History) { h.Beliefs[2].Term = 1 }, RuleTermsRise},
		{"one term for two", func(h *History) { h.Beliefs[2].Term = 2 }, RuleTermsRise},

		{"a run goes on while a later term runs", func(h *History) {
			h.Runs[1].End = 130 * ms
		}, RuleRunsApart},
		{"it was told only afterwards", func(h *History) {
			h.Runs[1] = cancelled(ran("a", 1, 2, 50*ms, 130*ms), 115*ms)
		}, RuleRunsApart},
		{"it was told before", func(h *History) {
			h.Runs[1] = cancelled(ran("a", 1, 2, 50*ms, 130*ms), 95*ms)
		}, ""},
		{"its process was killed later", func(h *History) {
			h.Runs[1] = cut(ran("a", 1, 2, 50*ms, 130*ms))
		}, RuleRunsApart},
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
			tried(h, 2, ran("c", 3, 4, 500*ms, 510*ms))
		}, ""},
		{"a third attempt, and then the second", func(h *History) {
			tried(h, 2, ran("c", 3, 4, 520*ms, 530*ms))
			tried(h, 3, ran("c", 3, 4, 500*ms, 510*ms))
		}, RuleAttempts},
		{"a fourth attempt", func(h *History) {
			tried(h, 4, ran("c", 3, 4, 500*ms, 510*ms))
		}, RuleAttempts},
		{"a second attempt of an older term", func(h *History) {
			h.Runs = append(h.Runs, ran("b", 2, 8, 290*ms, 295*ms),
				attempt(2, cancelled(ran("a", 1, 8, 296*ms, 297*ms), 105*ms)))
			h.Ledger = nil
		}, RuleAttempts},
		{"but its process was stopped just before, and told", func(h *History) {
			h.Runs[3] = cancelled(ran("b", 2, 4, 600*ms, 601*ms), 600*ms)
			h.Stops = map[string][]Span{"b": {{260 * ms, 599 * ms}}}
			tried(h, 2, ran("c", 3, 4, 500*ms, 510*ms))
		}, ""},
		{"its process was stopped long before", func(h *History) {
			h.Runs[3] = cancelled(ran("b", 2, 4, 900*ms, 901*ms), 105*ms)
			h.Stops = map[string][]Span{"b": {{260 * ms, 599 * ms}}}
			tried(h, 2, ran("c", 3, 4, 500*ms, 510*ms))
		}, RuleAttempts},
		{"a second attempt while the first goes on", func(h *History) {
			tried(h, 2, ran("c", 3, 5, 415*ms, 430*ms))
		}, RuleAttempts},
		{"but the first was told to end", func(h *History) {
			h.Runs[4] = cancelled(h.Runs[4], 412*ms)
			tried(h, 2, ran("c", 3, 5, 415*ms, 430*ms))
		}, ""},
		{"but its process was stopped", func(h *History) {
			h.Stops = map[string][]Span{"c": {{411 * ms, 420 * ms}}}
			tried(h, 2, ran("c", 3, 5, 415*ms, 430*ms))
		}, ""},

		{"a run that must not be repeated is", func(h *History) {
			h.AtMostOnce = []string{"j"}
			tried(h, 2, ran("c", 3, 4, 500*ms, 510*ms))
		}, RuleAtMostOnce},
		{"it only waits for it", func(h *History) {
			h.AtMostOnce = []string{"j"}
			h.Ledger[3].Cut, h.Ledger[3].Owed = true, true
		}, RuleAtMostOnce},
		{"it was cut", func(h *History) {
			h.AtMostOnce = []string{"j"}
			h.Ledger[3].Cut = true
		}, ""},
		{"a run that was cut is not repeated", func(h *History) {
			h.Ledger[3].Cut = true
		}, RuleRetried},
		{"but will be", func(h *History) { h.Ledger[3].Cut, h.Ledger[3].Owed = true, true }, ""},
		{"it was cut once too often", func(h *History) {
			h.Ledger[3] = again(h.Ledger[3], 3, 3)
			h.Ledger[3].Cut = true
		}, ""},

		{"an old term writes into the ledger", func(h *History) {
			h.Ledger = append(h.Ledger, row(2, 6))
			h.Jobs = nil
		}, RuleLedgerOrder},
		{"a run that the ledger does not know", func(h *History) {
			h.Ledger, h.Jobs = h.Ledger[:4], nil
		}, RuleLedgerTrue},
		{"a run that the ledger has under another term", func(h *History) {
			h.Ledger[3].Term = 3
		}, RuleLedgerTrue},
		{"under a later attempt of an older term", func(h *History) {
			h.Ledger[4].Term, h.Ledger[4].Attempt = 2, 2
		}, RuleLedgerTrue},
		{"a later term has it tried again", func(h *History) {
			h.Ledger[0] = again(h.Ledger[0], 3, 2)
		}, ""},
		{"an old term tries again", func(h *History) {
			h.Runs, h.Ledger[4] = h.Runs[:4], again(h.Ledger[4], 1, 2)
			h.Injections = nil
		}, RuleLedgerOrder},
		{"a run that the ledger has as skipped", func(h *History) {
			h.Ledger[3].Started = false
		}, RuleLedgerTrue},
		{"a term that the history does not know", func(h *History) {
			h.Terms = h.Terms[:2]
		}, RuleLedgerTrue},
		{"it was lost with the database", func(h *History) {
			h.Terms, h.Forgot = []int64{3}, []Span{{350 * ms, 360 * ms}}
		}, ""},

		{"a tick is not in the ledger", func(h *History) { drop(h, 2) }, RuleNoTickLost},
		{"it is in a range", func(h *History) {
			drop(h, 2)
			h.Ledger = append(h.Ledger, skipped(3, 3))
		}, ""},
		{"it is in a range that counts one too many", func(h *History) {
			drop(h, 2)
			h.Ledger = append(h.Ledger, skipped(3, 3))
			h.Ledger[4].Count = 2
		}, RuleNoTickLost},
		{"a range overlaps a run", func(h *History) {
			drop(h, 2)
			h.Ledger = append(h.Ledger, skipped(3, 4))
		}, RuleNoTickLost},
		{"a clock was set", func(h *History) {
			h.Ledger = append(h.Ledger, skipped(3, 4))
			h.Injections[0].Fault = "clock stepped"
			drop(h, 2)
			h.Jobs[0].Cursor = 4 * grid
		}, ""},
		{"a clock was set, and a tick is not in the ledger", func(h *History) {
			h.Injections[0].Fault = "clock stepped"
			drop(h, 2)
		}, RuleNoTickLost},
		{"it was set, and the cursor put back was deleted before it came to a tick",
			func(h *History) {
				h.Injections[0].Fault = "clock stepped"
				drop(h, 2)
				h.Anew = []Anew{{Newest: 5, Jobs: []JobRow{{Name: "j", Cursor: 2*grid + 1}}}}
			}, ""},
		{"it was set, and a tick before the deleted cursor is not in the ledger", func(h *History) {
			h.Injections[0].Fault = "clock stepped"
			drop(h, 2)
			h.Anew = []Anew{{Newest: 5, Jobs: []JobRow{{Name: "j", Cursor: 5*grid + 1}}}}
		}, RuleNoTickLost},
		{"a range ends between two ticks", func(h *History) {
			h.Ledger = append(h.Ledger, skipped(6, 8))
			h.Ledger[5].Until--
			h.Jobs[0].Cursor = 8 * grid
		}, RuleNoTickLost},
		{"a run between two ticks", func(h *History) {
			h.Ledger = append(h.Ledger, row(3, 6))
			h.Ledger[5].Tick++
		}, RuleNoTickLost},
		{"but it was asked for", func(h *History) {
			h.Ledger = append(h.Ledger, row(3, 6))
			h.Ledger[5].Tick++
			h.Ledger[5].AskedBy, h.Ledger[5].AskedFor = "a", "7"
		}, ""},
		{"one that was asked for takes the place of a tick", func(h *History) {
			h.Ledger = append(h.Ledger, row(3, 6), skipped(7, 8))
			h.Ledger[5].AskedBy, h.Ledger[5].AskedFor = "a", "7"
			h.Ledger[6].Tick = 6*grid + 1
			h.Jobs[0].Cursor = 8 * grid
		}, ""},
		{"it does not, and a range begins behind it", func(h *History) {
			h.Ledger = append(h.Ledger, skipped(7, 8))
			h.Ledger[5].Tick = 6*grid + 1
			h.Jobs[0].Cursor = 8 * grid
		}, RuleNoTickLost},
		{"the cursor has passed a tick", func(h *History) {
			h.Jobs[0].Cursor = 6 * grid
		}, RuleNoTickLost},
		{"the cursor stands before a run", func(h *History) {
			h.Jobs[0].Cursor = 4 * grid
		}, RuleNoTickLost},
		{"the cursors were deleted between", func(h *History) {
			drop(h, 2)
			h.Anew = []Anew{{Newest: 2}}
		}, ""},
		{"ticks have rows from before they were deleted", anew, ""},
		{"and those behind them have none", func(h *History) {
			anew(h)
			h.Ledger = slices.Delete(h.Ledger, 6, 7)
		}, RuleNoTickLost},
		{"a range behind a tick that has a row counts it", func(h *History) {
			anew(h)
			h.Ledger[6].Count++
		}, RuleNoTickLost},
		{"a range begins between two ticks", func(h *History) {
			anew(h)
			h.Ledger[6].Tick += 100
		}, RuleNoTickLost},
		{"they were deleted elsewhere", func(h *History) {
			drop(h, 2)
			h.Anew = []Anew{{Newest: 1}, {Newest: 4}}
		}, RuleNoTickLost},

		{"a request", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Ledger = append(h.Ledger, asked(1))
		}, ""},
		{"a request that is lost", func(h *History) { ask(h, 1, 500*ms, 501*ms) }, RuleRequests},
		{"with the database", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Forgot = []Span{{600 * ms, 610 * ms}}
		}, ""},
		{"a request that was not granted", func(h *History) { ask(h, 1, 500*ms, 0) }, ""},
		{"a request that has made two", func(h *History) {
			ask(h, 1, 500*ms, 0)
			h.Ledger = append(h.Ledger, asked(1), asked(1))
		}, RuleRequests},
		{"a request that runs, and waits", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Ledger, h.Pending = append(h.Ledger, asked(1)), h.asks()
		}, RuleRequests},
		{"a request under another time", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Ledger = append(h.Ledger, asked(1))
			h.Ledger[5].Tick++
		}, RuleRequests},
		{"a request that was skipped for no reason", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Ledger = append(h.Ledger, asked(1))
			h.Ledger[5].Started = false
		}, RuleRequests},
		{"a request that waits", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Pending = h.asks()
		}, ""},
		{"a request that waits, although somebody leads", func(h *History) {
			ask(h, 1, 500*ms, 501*ms)
			h.Pending = h.asks()
			h.Beliefs[2].Last = Sample{11 * time.Second, 11 * time.Second}
		}, RuleRequests},

		{"a run starts during a pause", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
		}, RulePauses},
		{"it starts only shortly after the pause", func(h *History) {
			pause(h, 200*ms, 210*ms, 0)
		}, ""},
		{"it starts before the pause", func(h *History) { pause(h, 405*ms, 411*ms, 0) }, ""},
		{"it starts after the end of the pause", func(h *History) {
			pause(h, 5*ms, 6*ms, 105*ms)
		}, ""},
		{"the ledger had it before", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Ledger[4].StartedAt = 100
		}, ""},
		{"the ledger had it just after", func(h *History) {
			pause(h, 400*ms, 409*ms, 0)
			h.Ledger[4].StartedAt = 101
		}, RulePauses},
		{"the clock of the database was set meanwhile", func(h *History) {
			pause(h, 400*ms, 409*ms, 0)
			h.Ledger[4].StartedAt = time.Hour.Microseconds()
		}, ""},
		{"its answer was held up meanwhile", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Injections = []Injection{{From: 50 * ms, To: 390 * ms, idle: true,
				Muted: true}}
		}, ""},
		{"another fault was under way", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Injections = []Injection{{From: 50 * ms, To: 390 * ms, idle: true}}
		}, RulePauses},
		{"answers were held up, but the ledger had it after", func(h *History) {
			pause(h, 400*ms, 409*ms, 0)
			h.Injections = []Injection{{From: 50 * ms, To: 390 * ms, idle: true,
				Muted: true}}
			h.Ledger[4].StartedAt = 101
		}, RulePauses},
		{"answers were held up only later", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Injections = []Injection{{From: 200 * ms, To: 390 * ms, idle: true,
				Muted: true}}
		}, RulePauses},
		{"its process was stopped meanwhile", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Stops = map[string][]Span{"c": {{200 * ms, 405 * ms}}}
		}, ""},
		{"an order to resume was under way", func(h *History) {
			h.Logs = map[string][]Record{"b": {{At: 90 * ms, Kind: KindResuming, Attempt: 1}}}
			pause(h, 100*ms, 110*ms, 0)
		}, ""},
		{"it was carried out before", func(h *History) {
			h.Logs = map[string][]Record{"b": {{At: 90 * ms, Kind: KindResuming, Attempt: 1},
				{At: 95 * ms, Kind: KindResumed, Attempt: 1}}}
			pause(h, 100*ms, 110*ms, 0)
		}, RulePauses},
		{"the database has forgotten the pause", func(h *History) {
			pause(h, 100*ms, 110*ms, 0)
			h.Ledger, h.Forgot = nil, []Span{{200 * ms, 210 * ms}}
		}, ""},

		{"an old term commits", func(h *History) {
			h.Writes = append(h.Writes, Write{"", 2})
		}, RuleFence},
		{"an old term commits where ids say nothing", func(h *History) {
			h.Saw = []Saw{{"", 2, 1}, {"", 3, 3}}
		}, RuleFence},
		{"all old terms were seen", func(h *History) {
			h.Saw = []Saw{{"", 2, 2}, {"", 2, 2}, {"", 3, 3}}
		}, ""},

		{"two held a lock at once", func(h *History) { h.Holds[1].From = 45 * ms }, RuleOneHolder},
		{"a stopped one held it once more", func(h *History) {
			h.Holds[0].To = 135 * ms
		}, RuleOneHolder},
		{"one look, while another held it", func(h *History) {
			h.Holds = append(h.Holds, held("c", 4, 135*ms, 135*ms))
		}, RuleOneHolder},
		{"a look that was interrupted for long proves nothing", func(h *History) {
			h.Holds = append(h.Holds, Hold{"c", "n", 4,
				false, 125 * ms, Span{135 * ms, 125 * ms}, false})
		}, ""},
		{"they held different ones", func(h *History) {
			h.Holds[0].To, h.Holds[0].Name = 135*ms, "m"
		}, ""},
		{"the database forgot the first", func(h *History) {
			h.Holds[1].From = 45 * ms
			h.Forgot = []Span{{20 * ms, 40 * ms}}
		}, ""},
		{"the database forgot the first, and was promoted", func(h *History) {
			h.Holds[1].From = 45 * ms
			h.Forgot, h.Promoted = []Span{{20 * ms, 40 * ms}}, []Span{{20 * ms, 40 * ms}}
		}, RuleOneHolder},
		{"a clock that locks are judged by was set", func(h *History) {
			h.Holds[1].From = 45 * ms
			h.Stepped = []Span{{20 * ms, 40 * ms}}
		}, ""},
		{"it was set before", func(h *History) {
			h.Holds[1].From = 45 * ms
			h.Stepped = []Span{{2 * ms, 4 * ms}}
		}, RuleOneHolder},
		{"the term of a name falls", func(h *History) { h.Holds[2].Term = 1 }, RuleNameTerms},
		{"one term for two holds", func(h *History) { h.Holds[2].Term = 2 }, RuleNameTerms},
		{"another name has a term of its own", func(h *History) {
			h.Holds[2].Term, h.Holds[2].Name = 1, "m"
		}, ""},
		{"the first look took long", func(h *History) {
			h.Holds[1].Before, h.Holds[1].Term, h.Holds[0].Term = 5*ms, 1, 2
		}, ""},
		{"it falls, and not as far as a term that was had", func(h *History) {
			h.Holds[1].Term, h.Holds[2].Term = 4, 3
		}, RuleNameTerms},
		{"two held it as its clock was set, and one looked late", func(h *History) {
			h.Holds[1].Term, h.Holds[2].Term = 4, 3
			h.Stepped = []Span{{55 * ms, 135 * ms}}
		}, ""},
		{"it falls after a clock was set", func(h *History) {
			h.Holds[1].Term, h.Holds[2].Term = 4, 3
			h.Stepped = []Span{{55 * ms, 125 * ms}}
		}, RuleNameTerms},
		{"it falls although a clock was set since", func(h *History) {
			h.Holds[1].Term, h.Holds[2].Term = 4, 3
			h.Stepped = []Span{{65 * ms, 135 * ms}}
		}, RuleNameTerms},
		{"the word of a quiet one on terms", func(h *History) {
			h.Holds[1].Term, h.Holds[2].Term, h.Holds[2].Quiet = 4, 3, true
		}, ""},
		{"an old term of a name commits", func(h *History) {
			h.Writes = append(h.Writes, Write{"n", 2})
		}, RuleNameFence},
		{"an old term of a name commits where ids say nothing", func(h *History) {
			h.Writes = []Write{{"n", 1}, {"n", 2}}
			h.Saw = []Saw{{"n", 2, 0}}
		}, RuleNameFence},
		{"a write under another name was not seen", func(h *History) {
			h.Writes = []Write{{"m", 1}, {"n", 2}}
			h.Saw = []Saw{{"n", 2, 0}}
		}, ""},
		{"one of another name", func(h *History) {
			h.Writes = append(h.Writes, Write{"m", 2})
		}, ""},

		{"two had a task at once", func(h *History) {
			h.Works[1].From, h.Works[0].Ended = 25*ms, 0
		}, RuleOneWorker},
		{"a stopped one had it once more", func(h *History) {
			h.Works[0].To = 115 * ms
		}, RuleOneWorker},
		{"one capture for two", func(h *History) { h.Works[0].Attempt = 2 }, RuleOneWorker},
		{"between, the database was put back", func(h *History) {
			h.Works[0].Attempt = 2
			h.Forgot = []Span{{50 * ms, 60 * ms}}
		}, ""},
		{"between, and neither was certain to have it", func(h *History) {
			h.Works[0].Attempt = 2
			h.Works[0].Span, h.Works[1].Span = Span{}, Span{}
			h.Forgot = []Span{{50 * ms, 60 * ms}}
		}, ""},
		{"one capture for two, and neither was certain to have it", func(h *History) {
			h.Works[0].Attempt = 2
			h.Works[0].Span, h.Works[1].Span = Span{}, Span{}
		}, RuleOneWorker},
		{"one that was never certain to have it", func(h *History) {
			h.Works[0].Span = Span{}
		}, ""},
		{"a task is ended by one who had lost it", func(h *History) {
			h.Works[0].Asked, h.Works[0].Ended = 115*ms, 116*ms
		}, RuleTaskEnds},
		{"the database forgot that he had lost it", func(h *History) {
			h.Works[0].Sent, h.Works[0].From, h.Works[0].To = 125*ms, 126*ms, 127*ms
			h.Works[0].Asked, h.Works[0].Ended, h.Forgot = 128*ms, 129*ms,
				[]Span{{122 * ms, 123 * ms}}
		}, ""},
		{"a task is ended after its time-out", func(h *History) {
			h.Works[0].Late = true
		}, RuleTaskEnds},
		{"that was refused", func(h *History) {
			h.Works[0].Asked, h.Works[0].Ended = 115*ms, 0
		}, ""},
		{"a task is captured after it was done", func(h *History) {
			h.Works[0].End = KindDoing
		}, RuleDoneOnce},
		{"it was on its way before", func(h *History) {
			h.Works[0].End = KindDoing
			h.Works[1].Sent, h.Works[1].End = 15*ms, KindFailing
		}, ""},
		{"a task is done twice", func(h *History) {
			h.Works[0].End = KindDoing
			h.Works[1].Sent = 15 * ms
		}, RuleDoneOnce},
		{"a task is attempted too often", func(h *History) { h.Added[0].Retries = 0 }, RuleRetries},
		{"but it was released", func(h *History) {
			h.Added[0].Retries, h.Works[0].End = 0, KindReleasing
		}, ""},
		{"the table says that it was attempted too often", func(h *History) {
			h.Tasks[0].Attempts = 3
		}, RuleRetries},
		{"a task is given up too early", func(h *History) {
			h.Works = h.Works[:1]
			h.Tasks[0] = TaskRow{"t", "failed", 1, 0}
		}, RuleRetries},
		{"a task is given up with a retry left", func(h *History) {
			h.Works[1].End = KindFailing
			h.Tasks[0] = TaskRow{"t", "failed", 2, 1}
		}, RuleRetries},
		{"a task is lost", func(h *History) {
			h.Tasks, h.Works = []TaskRow{}, nil
		}, RuleNoTaskLost},
		{"with the database", func(h *History) {
			h.Tasks, h.Works = []TaskRow{}, nil
			h.Forgot = []Span{{7 * ms, 8 * ms}}
		}, ""},
		{"what was not granted may be lost", func(h *History) {
			h.Tasks, h.Works = []TaskRow{}, nil
			h.Added[0].Granted = 0
		}, ""},
		{"what was done is not done", func(h *History) {
			h.Tasks[0].State = "pending"
		}, RuleNoTaskLost},
		{"done, and nobody did it", func(h *History) { h.Works[1].End = "" }, RuleNoTaskLost},
		{"a task that nobody has added", func(h *History) {
			h.Tasks = append(h.Tasks, TaskRow{"u", "pending", 0, 0})
		}, RuleNoTaskLost},
		{"a task in no state", func(h *History) {
			h.Works[1].End, h.Tasks[0].State = "", "gone"
		}, RuleNoTaskLost},

		{"nobody leads for long", func(h *History) {
			h.Injections[0].Bound = 99 * ms
		}, RuleSomebody},
		{"nobody leads any more", func(h *History) {
			h.Injections[0].Until = 2 * time.Second
		}, RuleSomebody},
		{"nobody need lead", func(h *History) {
			h.Injections[0].Bound, h.Injections[0].Silent = 0, true
		}, ""},
		{"nothing runs", func(h *History) { h.Runs, h.Ledger = h.Runs[:4], nil }, RuleStartsWork},
		{"another leads, where it should not", func(h *History) {
			h.Injections[0].Keeps = 2
		}, RuleKeeps},
		{"somebody took over too early", func(h *History) {
			h.Injections[0].Early = "odd"
		}, RuleEarly},
		{"the fault saw something", func(h *History) {
			h.Injections[0].Problem = "odd"
		}, RuleFault},
		{"a process died", func(h *History) {
			h.Exits = []Exit{{Process: "a", At: 5, Code: 2, Stderr: "panic"}}
		}, RuleLives},
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

	h = healthy()
	h.Injections[0].Keeps = 2
	stalled := func(d time.Duration) func(Span) time.Duration {
		return func(Span) time.Duration { return d }
	}
	assert.NotEmpty(t, Check(h, 0, stalled(keepsStall-1)))
	assert.Empty(t, Check(h, 0, stalled(keepsStall)),
		"another may lead because the machine stood still")
	assert.NotEmpty(t, Check(h, keepsSlack-1, nil))
	assert.Empty(t, Check(h, keepsSlack, nil))
}

func TestAViolationNamesTheFaultBeforeIt(t *testing.T) {
	h := healthy()
	h.Injections = append(h.Injections, Injection{Fault: "later",
		From: 880 * ms, To: 880 * ms, Until: 890 * ms, Silent: true})
	h.Beliefs = append(h.Beliefs, led("d", 4, 850*ms, 990*ms))
	vs := Check(h, 0, nil)
	require.Len(t, vs, 1)
	assert.Equal(t, "kill", vs[0].Fault)
	assert.Contains(t, Evidence(h, vs[0], t.TempDir()), "d led in term 4")
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
