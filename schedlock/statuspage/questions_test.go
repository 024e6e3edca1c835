package statuspage

import (
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/browsertest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// night is a fail-over that has left one run behind and missed two ticks, a failure, and a pause.
func night(t *testing.T) *moving {
	m := before(t, 3*time.Hour)
	m.leads("web-1", 41, "")
	m.job("report", ledger.Done, time.Second, "")
	m.job("import", ledger.Failed, time.Second, "no such host")
	m.pass(time.Hour)
	m.job("import", ledger.InProgress, 0, "")
	m.pass(3 * time.Minute)
	m.leads("web-2", 52, driver.EndProvenDead)
	_, err := m.Abandon(ctx, m.ref, nil)
	require.NoError(t, err)
	from, tick := m.jobs["report"], m.now.Add(-2*time.Minute)
	_, _, err = m.Decide(ctx, m.ref, ledger.Decision{Job: "report", Spec: fiveMinutely, From: from,
		To: m.now, Skipped: []ledger.Skip{{First: tick, Last: tick.Add(time.Minute), Count: 2,
			Reason: ledger.Missed}}})
	require.NoError(t, err)
	m.jobs["report"] = m.now
	m.pass(time.Hour)
	m.leads("web-1", 43, driver.EndReleased)
	m.pass(57*time.Minute - time.Second)
	m.paused(t, "import", "ann", "the host moves")
	m.job("clean", ledger.Done, time.Second, "")
	m.beat(t, m.ref)
	return m
}

func TestTheChangeOfLeadersSaysWhatJobsHaveLost(t *testing.T) {
	t.Parallel()
	s := newHandler(t, night(t).database, nil).read(ctx, nil, true)
	require.NoError(t, s.err)
	rows := newTermRows(s)
	require.Len(t, rows, 3)
	assert.Equal(t, "nothing abandoned or missed", rows[0].Lost)
	assert.Equal(t, "1 run abandoned, 2 ticks missed", rows[1].Lost)
	s.more = 1 // jobs whose runs were not read
	rows = newTermRows(s)
	assert.Empty(t, rows[0].Lost)
	assert.Equal(t, "at least 1 run abandoned, 2 ticks missed", rows[1].Lost)
}

// What people ask at three in the morning, and how many clicks the answer takes.
func TestFiveQuestionsAreAnsweredByThePage(t *testing.T) {
	t.Parallel()
	missing.Long(t, "opens a browser")
	b := browsertest.New(t)
	server := httptest.NewServer(newHandler(t, night(t).database, nil))
	t.Cleanup(server.Close)
	b.Look(looks[0])
	for _, q := range []struct {
		question string
		clicks   []string // on what
		where    string   // the answer stands
		answer   string
	}{
		{"is it healthy?", nil, "#verdict", "import has failed 2 times in a row"},
		{"what failed last night, and why?", []string{`#failures a[href$="status=failed"]`},
			".runs tbody", "no such host"},
		{"who paused import?", nil, "#job-import .note",
			"paused by ann since"},
		{"what runs next?", nil, "#next", "clean"},
		{"did the fail-over lose anything?", nil, "#terms tbody tr:nth-child(2)",
			"1 run abandoned, 2 ticks missed"},
	} {
		b.Do(chromedp.Navigate(server.URL))
		for _, selector := range q.clicks {
			b.Do(chromedp.Click(selector), chromedp.WaitVisible(q.where))
		}
		text := browsertest.Eval[string](b,
			`document.querySelector(`+strconv.Quote(q.where)+`).innerText`)
		assert.Contains(t, text, q.answer, q.question)
		t.Logf("%d clicks: %s", len(q.clicks), q.question)
	}
	b.RequireSilence()
}
