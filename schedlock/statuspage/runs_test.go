package statuspage

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock/ledger"
)

var tick = regexp.MustCompile(`data-label="tick" class="num"><time datetime="([^"]+)"`)

// ticksOn are the ticks on a page, newest first.
func ticksOn(page string) (ticks []string) {
	for _, m := range tick.FindAllStringSubmatch(page, -1) {
		ticks = append(ticks, m[1])
	}
	return ticks
}

// linkOn is where a link with this text leads; "": there is none.
func linkOn(page, text string) string {
	m := regexp.MustCompile(`href="(job-runs[^"]*)"[^>]*>` + text + `<`).FindStringSubmatch(page)
	if m == nil {
		return ""
	}
	return "/" + html.UnescapeString(m[1])
}

func TestThePageOfAJobShowsItsRuns(t *testing.T) {
	t.Parallel()
	h := newHandler(t, minutely(t, "mail & more", 120), nil)
	page := func(path string) string {
		w := get(h, path)
		require.Equal(t, http.StatusOK, w.Code, "%s: %s", path, w.Body)
		return w.Body.String()
	}
	front := page("/")
	assert.NotEmpty(t, linkOn(front, "mail &amp; more"), "beside the axis")
	assert.NotContains(t, front, "asked for by")
	first := page(linkOn(front, "all runs"))
	assert.Contains(t, first, "<h1 id=\"runs-title\">Runs of mail &amp; more</h1>")
	assert.Len(t, ticksOn(first), runsOnAPage)
	assert.Equal(t, "2026-11-21T12:00:00Z", ticksOn(first)[0])
	assert.Contains(t, first, "no such host 110")
	assert.Empty(t, linkOn(first, "newer"))

	second := page(linkOn(first, "older"))
	assert.Equal(t, "2026-11-21T11:10:00Z", ticksOn(second)[0], "none is left out")
	third := page(linkOn(second, "older"))
	assert.Len(t, ticksOn(third), 20)
	assert.Empty(t, linkOn(third, "older"))
	assert.Equal(t, ticksOn(second), ticksOn(page(linkOn(third, "newer"))), "and back")
	assert.Equal(t, ticksOn(first), ticksOn(page(linkOn(page(linkOn(third, "newer")), "newer"))))

	failed := page(linkOn(first, "failed"))
	assert.Len(t, ticksOn(failed), 12)
	assert.Equal(t, 12, strings.Count(failed, "no such host"))
	quarter := page(linkOn(failed, "15m"))
	assert.Len(t, ticksOn(quarter), 1, "both filters hold")
	assert.Contains(t, quarter, `aria-current="true">failed<`)
	assert.Contains(t, quarter, `aria-current="true">15m<`)
	assert.Contains(t, page("/job-runs?job=mail+%26+more&status=abandoned"), "no runs that match")

	// A bar of the axis leads to its runs.
	bar := regexp.MustCompile(`href="([^"]+)" class="run f"><title>21 Nov 11:51:00: failed`)
	found := bar.FindStringSubmatch(page("/?span=15m"))
	require.NotEmpty(t, found)
	assert.Equal(t, "2026-11-21T11:51:00Z", ticksOn(page("/" + html.UnescapeString(found[1])))[0])
	several := page("/job-runs?job=mail+%26+more&since=2026-11-21T11:50:00Z" +
		"&until=2026-11-21T11:52:00Z")
	assert.Len(t, ticksOn(several), 3)
	assert.Contains(t, several, "Ticks from 21 Nov 11:50:00 UTC up to 21 Nov 11:52:00 UTC.")
}

func TestARunSaysWhoAskedAndWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "mail", "", "")
	run := db.asked(t, ref, "mail", "ann", "a <test>")
	h := newHandler(t, db, nil)
	stands := func(step string) {
		t.Helper()
		assert.Contains(t, get(h, "/").Body.String(), `<strong aria-current="step">`+step+"<")
	}
	stands("running")
	db.finish(t, run, ledger.End{Status: ledger.Failed, Error: "no <host>", RetryAt: time.Now()})
	stands("attempt 1 failed, to be tried again")
	run.Status = ledger.Failed
	run, started, err := db.Retry(ctx, ref, run)
	require.NoError(t, err)
	require.True(t, started)
	stands("running")
	page := get(h, "/").Body.String()
	assert.Contains(t, page, "a run is being tried again")
	assert.NotContains(t, page, "no run failed")
	w := get(h, "/job-runs?job=mail")
	require.Equal(t, http.StatusOK, w.Code)
	for _, text := range []string{"asked for by ann: a &lt;test&gt;", "no &lt;host&gt;",
		`">2<span class="unseen"> attempts`, "in progress", "so far", "pid 41 on web-1"} {
		assert.Contains(t, w.Body.String(), text)
	}
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "form-action 'none'")
	assert.NotContains(t, w.Body.String(), "<script")

	db.run(t, ref, "post", "", "")
	request, err := db.Trigger(ctx, ledger.Action{Job: "post", By: "ann"})
	require.NoError(t, err)
	_, started, err = db.Answer(ctx, ref, request, ledger.Overlap)
	require.NoError(t, err)
	require.False(t, started)
	skipped := get(h, "/job-runs?job=post").Body.String()
	assert.Contains(t, skipped, ledger.Overlap)
	assert.NotRegexp(t, "so far|0001", skipped, "it has not begun")

	db.finish(t, run, ledger.End{Status: ledger.Done})
	stands("done")
	db.set(time.Now().Add(recently + time.Minute))
	assert.NotContains(t, get(h, "/").Body.String(), "Run asked for by")
}

// The number of its attempts, and its bar on the axis, lead to the run alone.
func TestARunAloneHasItsAttempts(t *testing.T) {
	t.Parallel()
	db := minutely(t, "mail", 150) // it is far behind the newest ones
	db.pass(time.Minute)
	db.tried("mail", 103, "no <host> ")
	h := newHandler(t, db, nil)
	list := get(h, "/job-runs?job=mail").Body.String()
	assert.NotContains(t, list, "no &lt;host&gt;")
	assert.NotContains(t, list, "Attempts of this run")
	link := linkOn(list, "103")
	require.NotEmpty(t, link)
	assert.Contains(t, html.UnescapeString(get(h, "/?span=15m").Body.String()), link[1:],
		"the bar leads there too")
	db.runsRead.Store(0)
	w := get(h, link)
	require.Equal(t, http.StatusOK, w.Code)
	page := w.Body.String()
	assert.Zero(t, db.runsRead.Load(), "no other run is read")
	assert.Equal(t, []string{"2026-11-21T12:01:00Z"}, ticksOn(page))
	assert.Contains(t, page, "The run at 21 Nov 12:01:00 UTC.")
	attempts := regexp.MustCompile(`(?s)data-label="began" class="num"><[^>]*>[^<]*</time></td>
`+
		`<td data-label="outcome">.*?data-label="attempt" class="num">(\d+)<.*?</tr>`).
		FindAllStringSubmatch(page, -1)
	require.Len(t, attempts, 101, "the latest, and those before that are kept")
	for i, a := range attempts {
		require.Equal(t, fmt.Sprint(103-i), a[1], "newest first")
	}
	assert.Contains(t, attempts[0][0], "</span> done")
	assert.NotContains(t, attempts[0][0], "no &lt;host&gt;")
	for _, text := range []string{"no &lt;host&gt; 102<", "</span> failed", "pid 41 on web-1",
		fmt.Sprintf("term %d", db.ref.Term), "21 Nov 12:02:41<"} {
		assert.Contains(t, attempts[1][0], text)
	}
	assert.Contains(t, page, "The ledger has not kept 2 of the earlier attempts.")
	assert.Contains(t, get(h, "/job-runs?job=mail&since=2026-11-21T12:01:01Z&"+
		"until=2026-11-21T12:01:01Z").Body.String(), "no runs that match")
}

func TestThePageOfAJobRefusesWhatItCannotShow(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.run(t, ref, "mail", ledger.Done, "")
	log := &logtest.Log{}
	h := newHandler(t, db, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	for path, want := range map[string]string{
		"":                                    "400 job is missing: give the name of one, as in job-runs?job=import",
		"?job=mail&status=well":               `400 status "well" is not one of in_progress, done, failed, abandoned, skipped`,
		"?job=mail&since=1y":                  `400 since "1y" is neither one of 15m, 1h, 24h, 7d, all nor a time such as 2026-11-24T02:14:00Z`,
		"?job=mail&until=noon":                `400 until "noon" is not a time such as 2026-11-24T02:14:00Z`,
		"?job=mail&after=2026":                `400 after "2026" is not a time such as 2026-11-24T02:14:00Z`,
		"?job=post":                           `404 no leader has had a job "post" yet`,
		"?job=%00" + strings.Repeat("x", 500): "404 no leader has had a job",

		"?job=mail&since=2026-11-24T02:14:00Z":                            "200 ",
		"?job=mail&until=2026-11-24T02:14:00Z&after=2026-11-24T02:14:00Z": `400 until "2026-11-24T02:14:00Z" and after "2026-11-24T02:14:00Z": give one of them`,
		"?job=mail&until=2026-11-24T02:14:00Z&since=2026-11-24T02:15:00Z": `400 since "2026-11-24T02:15:00Z" is later than until "2026-11-24T02:14:00Z"`,
	} {
		w := get(h, "/job-runs"+path)
		assert.True(t, strings.HasPrefix(fmt.Sprint(w.Code, " ", w.Body), want), "%s: %d %s", path,
			w.Code, w.Body)
	}
	db.fail(errors.New("cannot open /secret/app.db"))
	w := get(h, "/job-runs?job=mail")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "the database cannot be read\n", w.Body.String())
	get(h, "/")
	assert.Equal(t, 1, log.Count("status page cannot read the database"), "%s", log)
	db.heal()
	get(h, "/")
	get(h, "/")
	assert.Equal(t, 1, log.Count("status page can read the database again"))
}

func TestASearchForRunsIsBounded(t *testing.T) {
	t.Parallel()
	db := minutely(t, "mail", 300)
	h := newHandler(t, db, nil)
	db.runsRead.Store(0)
	assert.Equal(t, http.StatusOK, get(h, "/job-runs?job=mail").Code)
	assert.EqualValues(t, firstSearch, db.runsRead.Load(), "a page needs no more")
	w := get(newHandler(t, manyRuns{db.database}, nil), "/job-runs?job=mail&status=abandoned")
	assert.Contains(t, w.Body.String(), "Only the newest 10000 runs were looked at.")
}

// manyRuns has more runs than anybody reads.
type manyRuns struct{ *database }

func (manyRuns) Runs(_ context.Context, _ string, limit int) ([]ledger.Run, error) {
	runs := make([]ledger.Run, min(limit, 2*lastSearch))
	for i := range runs {
		runs[i] = ran(ledger.Done, time.Duration(i)*time.Minute, time.Second)
	}
	return runs, nil
}
