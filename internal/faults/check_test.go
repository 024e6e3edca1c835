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

// A spoiled is a history that a rule must find wrong, or none.
type spoiled struct {
	name  string
	spoil func(*History)
	rule  string // "": it is not broken
}

var spoiledLeaders = []spoiled{
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
}

func TestEachRuleFailsOnAHistoryThatBreaksIt(t *testing.T) {
	for _, tc := range slices.Concat(spoiledLeaders, spoiledLedgers, spoiledRows) {
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
