package statuspage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

func TestTheFirstLineAndTheTabAreTheWorstFinding(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 2, 14, 1, 0, time.UTC)
	row := func(ago time.Duration) *driver.Row {
		return &driver.Row{Ref: driver.Ref{Owner: other, Term: 7}, State: driver.StateLeading,
			CreatedAt: now.Add(-time.Hour), HeartbeatAt: now.Add(-ago), Timing: timing}
	}
	led, foreign := driver.Snapshot{Row: row(0)}, row(0)
	foreign.App = driver.App{Name: "shop", Program: "shop"}
	unproven := row(0)
	unproven.TTLOnly = "a pooler is between"
	revoked, drains := row(0), row(0)
	revoked.State, drains.State = driver.StateRevoked, driver.StateDraining
	jobs := func(change ...func(*tasks.JobInfo)) (list []job) {
		for i, name := range []string{"clean", "import", "mail"} {
			j := job{JobInfo: tasks.JobInfo{Job: ledger.Job{Name: name}, Known: true}}
			if i < len(change) && change[i] != nil {
				change[i](&j.JobInfo)
			}
			list = append(list, j)
		}
		return list
	}
	streak := func(n int64) func(*tasks.JobInfo) {
		return func(j *tasks.JobInfo) { j.Streak = n }
	}
	late := func(j *tasks.JobInfo) { j.Next = now.Add(-time.Minute) }
	removed := func(j *tasks.JobInfo) { late(j); j.Known = false }
	busy := jobs(late)
	busy[0].runs = []ledger.Run{{Status: ledger.Skipped}, {Status: ledger.InProgress, Attempt: 1}}
	// terms are newest first, a second each
	terms := func(n int, reason driver.EndReason) (list []driver.Term) {
		for i := range n {
			list = append(list, driver.Term{AcquiredAt: now.Add(time.Duration(-i-1) * time.Second),
				EndedAt: now.Add(time.Duration(-i) * time.Second), EndReason: reason})
		}
		return list
	}
	retried := func(failed int) []job {
		j := job{JobInfo: tasks.JobInfo{Job: ledger.Job{Name: "import"}, Known: true},
			runs: []ledger.Run{{Status: ledger.InProgress, Attempt: failed + 1}}}
		j.Streak = int64(failed)
		return []job{j}
	}
	owed := retried(1)
	owed[0].runs[0] = ledger.Run{Status: ledger.Failed, Attempt: 1, RetryAt: now}
	paused := &ledger.Pause{Action: ledger.Action{Job: "clean", By: "ann"},
		Since: now.Add(-time.Hour)}
	for _, tt := range []struct {
		name  string
		s     snapshot
		grade grade
		text  string
		more  int
	}{
		{"all is well", snapshot{view: led, jobs: jobs()}, fine,
			"Healthy: web-1 has led for ago, 3 jobs OK", 0},
		{"more jobs than are shown", snapshot{view: led, jobs: jobs(), more: 2}, fine,
			"Healthy: web-1 has led for ago, 5 jobs OK", 0},
		{"without jobs", snapshot{view: led}, fine, "Healthy: web-1 has led for ago", 0},
		{"a crash shows by the TTL only", snapshot{view: driver.Snapshot{Row: unproven}}, fine,
			"Healthy: web-1 has led for ago", 0},
		{"and two jobs fail", snapshot{view: driver.Snapshot{Row: unproven},
			jobs: jobs(streak(1), streak(1))}, warning, "clean has failed", 1},
		{"one heartbeat is missing", snapshot{view: driver.Snapshot{Row: row(24 * time.Second)}},
			fine, "Healthy: web-1 has led for ago", 0},
		{"late", snapshot{view: driver.Snapshot{Row: row(25 * time.Second)}}, warning,
			"pid 41 on web-1 is late: no heartbeat for ago", 0},
		{"past the renew deadline", snapshot{view: driver.Snapshot{Row: row(45 * time.Second)}},
			bad, "pid 41 on web-1 is past its deadline: it has stopped itself", 0},
		{"told to leave", snapshot{view: driver.Snapshot{Row: revoked}}, warning,
			"pid 41 on web-1 is leaving", 0},
		{"it drains", snapshot{view: driver.Snapshot{Row: drains}}, warning,
			"pid 41 on web-1 is leaving", 0},
		{"a job failed", snapshot{view: led, jobs: jobs(nil, streak(1))}, warning,
			"import has failed", 0},
		{"a job fails", snapshot{view: led, jobs: jobs(nil, streak(150))}, warning,
			"import has failed 150 times in a row", 0},
		{"a job will be tried again", snapshot{view: led, jobs: owed}, fine,
			"Healthy: web-1 has led for ago, 1 job OK", 0},
		{"a job is tried again", snapshot{view: led, jobs: retried(2)}, fine,
			"Healthy: web-1 has led for ago, 1 job OK", 0},
		{"a job is tried again and again", snapshot{view: led, jobs: retried(3)}, warning,
			"import has failed 3 times in a row", 0},
		{"failing goes before overdue and paused", snapshot{view: led, jobs: jobs(
			func(j *tasks.JobInfo) { j.Pause = paused }, late, streak(2))}, warning,
			"mail has failed 2 times in a row", 2},
		{"overdue", snapshot{view: led, jobs: jobs(late)}, warning, "clean is overdue for ago", 0},
		{"while a run is under way no tick is late", snapshot{view: led, jobs: busy}, fine,
			"Healthy: web-1 has led for ago, 3 jobs OK", 0},
		{"nobody is late with a job that was removed", snapshot{view: led, jobs: jobs(removed)},
			fine, "Healthy: web-1 has led for ago, 3 jobs OK", 0},
		{"everything is paused", snapshot{view: led, jobs: jobs(),
			pause: &ledger.Pause{Action: ledger.Action{By: "ann"}, Since: now}}, warning,
			"The whole scheduler is paused by ann for ago", 0},
		{"it leads on, but somebody should act", snapshot{view: led, jobs: jobs(),
			self: schedlock.Status{Err: driver.ErrWarning}}, warning,
			"This replica leads on, but somebody should act", 0},
		{"another app leads, and a job fails", snapshot{view: driver.Snapshot{Row: foreign},
			jobs: jobs(streak(1))}, bad, "pid 41 on web-1 is a replica of another app", 1},
		{"nobody leads, and a job fails", snapshot{view: driver.Snapshot{Newest: &driver.Term{
			EndedAt: now, EndReason: driver.EndReleased}}, jobs: jobs(streak(1))}, bad,
			"Nobody has led since 02:14:01 UTC", 1},
		{"nobody has led for two days", snapshot{view: driver.Snapshot{Newest: &driver.Term{
			EndedAt: now.AddDate(0, 0, -2), EndReason: driver.EndReleased}}}, bad,
			"Nobody has led since 22 Nov 02:14:01 UTC", 0},
		{"nobody ever led", snapshot{}, bad, "Nobody leads", 0},
		{"five terms", snapshot{view: led, terms: terms(assess.FlapTerms, driver.EndExpired)}, fine,
			"Healthy: web-1 has led for ago", 0},
		{"many terms", snapshot{view: led, terms: terms(310, driver.EndReleased)}, warning,
			"310 leaders in 10 min", 0},
		{"many hand-overs", snapshot{view: led, terms: terms(310, driver.EndRevoked)}, fine,
			"Healthy: web-1 has led for ago", 0},
		{"the database is gone", snapshot{blind: true, err: errors.New("gone")}, bad,
			"The database does not answer: who leads is unknown", 0},
		{"the runs cannot be read", snapshot{view: led, err: errors.New("gone")}, warning,
			"Can't tell what happened before", 0},
		{"it starts", snapshot{blind: true, err: errStarting}, warning,
			"This replica is starting", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHandler(t, newDatabase(), nil)
			s := tt.s
			s.now, s.view.Now, s.app = now, now, driver.App{Name: "billing", Program: "billing"}
			l := newLeader(h, &s)
			v := newVerdict(l, &s, newJobViews(&s))
			text := v.Text
			if !v.Since.IsZero() {
				text += " for ago"
			}
			assert.Equal(t, tt.text, text+v.Rest)
			assert.Equal(t, tt.grade, v.Grade)
			assert.Equal(t, tt.more, v.More)

			// The tab follows it, unless nobody leads, or nobody knows who does.
			title, icon := v.Text, map[grade]string{warning: iconWarning, bad: iconNobody}[v.Grade]
			if l.Info == nil || l.Silent {
				title, icon = l.Headline, iconNobody
			} else if v.Grade == fine {
				title, icon = l.Headline, iconStandby
			}
			u := newUpdate(h, &s, nil)
			assert.Equal(t, []string{title, icon}, []string{u.title, u.icon})
		})
	}
}

// pooled is a server with sessions, in which the end of one is no sign.
type pooled struct{ *database }

func (p pooled) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	view, err := p.database.Look(ctx)
	if view.Row != nil {
		view.Row.TTLOnly = "a pooler is between the holder and the server"
	}
	return view, err
}

// A fleet that by its configuration notices a crash late is told so, and is healthy.
func TestThePageSaysThatACrashIsNoticedLate(t *testing.T) {
	t.Parallel()
	db, _ := led(t)
	require.NotContains(t, get(newHandler(t, db, nil), "/").Body.String(), "Needs attention")
	require.Regexp(t, `id="verdict" class="verdict"><p class="fine">(?s:.*)<li class="quiet">`+
		`<span class="sign" aria-hidden="true">ℹ</span> <span>A crash is noticed after 1 min, `+
		`by the TTL alone: a pooler is between the holder and the server</span></li>`,
		get(newHandler(t, pooled{db}, nil), "/").Body.String())
}

// Each finding leads to a place that exists, however a job is called.
func TestAFindingLeadsToItsPlace(t *testing.T) {
	t.Parallel()
	db, ref := led(t)
	db.beat(t, ref)
	db.run(t, ref, `mail "x" #1/2`, ledger.Failed, "no")
	w := get(newHandler(t, db, nil), "/")
	assert.Equal(t, http.StatusOK, w.Code)
	page := w.Body.String()
	assert.Contains(t, page, `<a href="#job-mail%20%22x%22%20%231%2F2">the job</a>`)
	assert.Contains(t, page, `id="job-mail%20%22x%22%20%231%2F2"`)
	assert.Less(t, strings.Index(page, `id="verdict"`), strings.Index(page, `id="findings"`))
	assert.Contains(t, page, `href="icon.svg?warning"`)
}

// Of more jobs than are shown none that needs to be looked at is left out, and the next run is
// that of all of them.
func TestNoJobInTroubleIsLeftOut(t *testing.T) {
	t.Parallel()
	m := before(t, time.Hour)
	m.leads("web-1", 41, "")
	for i := range 2 * maxJobs {
		status := ledger.Done
		if i == 2*maxJobs-1 {
			status = ledger.Failed
		}
		m.job(fmt.Sprintf("job %03d", i), status, time.Second, "no such host")
	}
	m.paused(t, fmt.Sprintf("job %03d", 2*maxJobs-2), "ann", "")
	m.pass(time.Second)
	m.job("a last one", ledger.Done, time.Second, "")
	for name, cursor := range map[string]time.Time{"removed": m.now.Add(-time.Hour),
		"sooner than all": m.now} {
		_, _, err := m.Decide(ctx, m.ref, ledger.Decision{Job: name, Spec: "every 100ms offset 0s",
			To: cursor})
		require.NoError(t, err)
	}
	s := newHandler(t, m.database, nil).read(ctx, nil, true)
	require.NoError(t, s.err)
	require.Len(t, s.jobs, maxJobs)
	require.Equal(t, maxJobs+4, s.more)
	require.True(t, slices.IsSortedFunc(s.jobs, func(a, b job) int {
		return strings.Compare(a.Name, b.Name)
	}))
	v := newVerdict(newLeader(newHandler(t, m.database, nil), s), s, newJobViews(s))
	require.Equal(t, "job 199 has failed", v.Text)
	require.Equal(t, "job 198 is paused by ann", v.Findings[1].Text)
	require.Equal(t, "sooner than all", newTiles(s).Next.Job)
}
