package statuspage

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	n := newTiles(s)
	require.NotNil(t, n.Last)
	assert.Equal(t, ledger.Abandoned, n.Last.Status, "it ended after the one that failed")
	assert.False(t, n.AtLeast)
	clean := &s.jobs[slices.IndexFunc(s.jobs, func(j job) bool { return j.Name == "clean" })]
	for _, unread := range []func(){
		func() { s.more = 1 },                              // the runs of other jobs
		func() { s.more, clean.read = 0, len(clean.runs) }, // older ones of this job
	} {
		unread()
		rows = newTermRows(s)
		assert.Empty(t, rows[0].Lost)
		assert.Equal(t, "at least 1 run abandoned, 2 ticks missed", rows[1].Lost)
		assert.True(t, newTiles(s).AtLeast)
	}
}

// What people ask at three in the morning, and where the answer stands: no click away, or one.
func TestFiveQuestionsAreAnsweredByThePage(t *testing.T) {
	t.Parallel()
	h := newHandler(t, night(t).database, nil)
	front := get(h, "/").Body.String()
	failed := get(h, linkOn(front, "1 of import")).Body.String()
	for question, answer := range map[string]struct{ page, stands string }{
		"is it healthy?": {front, `id="verdict" class="verdict"><p class="warning">.*` +
			`<span>import has failed 2 times in a row</span>`},
		"what failed last night, and why?": {failed, `(?s)<tbody>.*no such host.*</tbody>`},
		"who paused import?": {front, `(?s)<article class="job" id="job-import">` +
			`.{1,600}<p class="note">paused by ann since `},
		"what runs next?": {front, `id="next"><p class="number"><strong>clean</strong>`},
		"did the fail-over lose anything?": {front, `(?s)id="terms".*pid 43 on.*pid 52 on.{1,400}` +
			`1 run abandoned, 2 ticks missed</div></td>\n</tr>\n.*pid 41 on`},
	} {
		assert.Regexp(t, answer.stands, answer.page, question)
	}
}
