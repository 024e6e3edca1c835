package faults

import (
	"slices"
	"time"
)

var spoiledLedgers = []spoiled{
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

	{"a tick is not in the ledger", func(h *History) { drop(h) }, RuleNoTickLost},
	{"it is in a range", func(h *History) {
		drop(h)
		h.Ledger = append(h.Ledger, skipped(3, 3))
	}, ""},
	{"it is in a range that counts one too many", func(h *History) {
		drop(h)
		h.Ledger = append(h.Ledger, skipped(3, 3))
		h.Ledger[4].Count = 2
	}, RuleNoTickLost},
	{"a range overlaps a run", func(h *History) {
		drop(h)
		h.Ledger = append(h.Ledger, skipped(3, 4))
	}, RuleNoTickLost},
	{"a clock was set", func(h *History) {
		h.Ledger = append(h.Ledger, skipped(3, 4))
		h.Injections[0].Fault = "clock stepped"
		drop(h)
		h.Jobs[0].Cursor = 4 * grid
	}, ""},
	{"a clock was set, and a tick is not in the ledger", func(h *History) {
		h.Injections[0].Fault = "clock stepped"
		drop(h)
	}, RuleNoTickLost},
	{"it was set, and the cursor put back was deleted before it came to a tick",
		func(h *History) {
			h.Injections[0].Fault = "clock stepped"
			drop(h)
			h.Anew = []Anew{{Newest: 5, Jobs: []JobRow{{Name: "j", Cursor: 2*grid + 1}}}}
		}, ""},
	{"it was set, and a tick before the deleted cursor is not in the ledger", func(h *History) {
		h.Injections[0].Fault = "clock stepped"
		drop(h)
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
		drop(h)
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
		drop(h)
		h.Anew = []Anew{{Newest: 1}, {Newest: 4}}
	}, RuleNoTickLost},

	{"a request", func(h *History) {
		ask(h, 501*ms)
		h.Ledger = append(h.Ledger, asked())
	}, ""},
	{"a request that is lost", func(h *History) { ask(h, 501*ms) }, RuleRequests},
	{"with the database", func(h *History) {
		ask(h, 501*ms)
		h.Forgot = []Span{{600 * ms, 610 * ms}}
	}, ""},
	{"a request that was not granted", func(h *History) { ask(h, 0) }, ""},
	{"a request that has made two", func(h *History) {
		ask(h, 0)
		h.Ledger = append(h.Ledger, asked(), asked())
	}, RuleRequests},
	{"a request that runs, and waits", func(h *History) {
		ask(h, 501*ms)
		h.Ledger, h.Pending = append(h.Ledger, asked()), h.asks()
	}, RuleRequests},
	{"a request under another time", func(h *History) {
		ask(h, 501*ms)
		h.Ledger = append(h.Ledger, asked())
		h.Ledger[5].Tick++
	}, RuleRequests},
	{"a request that was skipped for no reason", func(h *History) {
		ask(h, 501*ms)
		h.Ledger = append(h.Ledger, asked())
		h.Ledger[5].Started = false
	}, RuleRequests},
	{"a request that waits", func(h *History) {
		ask(h, 501*ms)
		h.Pending = h.asks()
	}, ""},
	{"a request that waits, although somebody leads", func(h *History) {
		ask(h, 501*ms)
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
	{"the ledger had it before, and has a later attempt now", func(h *History) {
		pause(h, 100*ms, 110*ms, 0)
		h.Replaced = []LedgerRow{h.Ledger[4]}
		h.Replaced[0].StartedAt = 100
		h.Ledger[4] = again(h.Ledger[4], 3, 2)
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
}
