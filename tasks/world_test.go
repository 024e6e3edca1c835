package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx     = context.Background()
	discard = slog.New(slog.DiscardHandler)
)

const (
	ttl   = 60 * time.Second // the default
	renew = ttl / 4 * 3
	every = 10 * time.Second // the default
	retry = time.Second
)

var errRefused = errors.New("connection refused")

// A world is a database and the replicas that share it, in a synctest bubble,
// which begins at midnight UTC. What is left running when a test ends is
// stopped, and synctest fails if a goroutine stays.
type world struct {
	t     *testing.T
	db    *memory.Store
	grace time.Duration // of the replicas that join; 0: their sessions are no sign

	mu       sync.Mutex
	step     time.Duration // of the database's clock
	replicas int
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		w.db = memory.New(memory.WithClock(w.now))
		f(t, w)
	})
}

// inDiary is inWorld for jobs that write into one diary.
func inDiary(t *testing.T, f func(t *testing.T, w *world, d *diary)) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *world) { f(t, w, &diary{}) })
}

// runInWorld is inWorld as a subtest.
func runInWorld(t *testing.T, name string, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inWorld(t, f) })
}

// runInDiary is inDiary as a subtest.
func runInDiary(t *testing.T, name string, f func(t *testing.T, w *world, d *diary)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inDiary(t, f) })
}

// now is the database's time.
func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.step)
}

// setClock steps the database's clock.
func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step += by
}

// holder is what the lock row says, nil if there is none.
func (w *world) holder() *schedlock.LockInfo {
	w.t.Helper()
	info, err := schedlock.GetLockInfo(ctx, w.db)
	require.NoError(w.t, err)
	return info
}

// usurp puts a row of somebody else, who is not there, in the place of the
// lock row, as if the replica that led had slept for long.
func (w *world) usurp() {
	w.t.Helper()
	view, err := w.db.Look(ctx)
	require.NoError(w.t, err)
	_, err = w.db.Acquire(ctx, driver.Claim{
		Ref: driver.Ref{Owner: driver.Owner{PID: 99, Hostname: "test"},
			Token: driver.NewToken()},
		Timing:   driver.Timing{TTL: ttl, RenewDeadline: renew, HeartbeatInterval: every},
		Expected: view, Reason: driver.EndExpired,
	})
	require.NoError(w.t, err)
}

func (w *world) terms() []driver.Term {
	w.t.Helper()
	terms, err := w.db.Terms(ctx, 100)
	require.NoError(w.t, err)
	return terms
}

// runs are the rows of the ledger, oldest tick first.
func (w *world) runs(job string) []ledger.Run {
	w.t.Helper()
	runs, err := w.db.Runs(ctx, job, 1_000_000)
	require.NoError(w.t, err)
	slices.Reverse(runs)
	return runs
}

// rows are runs as text: "00:00:05 done".
func (w *world) rows(job string) []string {
	w.t.Helper()
	var rows []string
	for _, r := range w.runs(job) {
		row := r.ScheduledAt.Format("15:04:05")
		if !r.Until.IsZero() {
			row += fmt.Sprintf("-%s (%d)", r.Until.Format("15:04:05"), r.Count)
		}
		row += " " + string(r.Status)
		if r.Error != "" && r.Status == ledger.Skipped {
			row += " " + r.Error
		}
		rows = append(rows, row)
	}
	return rows
}

// sleepUntil sleeps until d after the bubble began, and until all that
// happens then has happened.
func sleepUntil(d time.Duration) {
	time.Sleep(time.Until(midnight.Add(d)))
	synctest.Wait()
}

// midnight is when every bubble begins.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A replica is one process of the fleet.
type replica struct {
	w      *world
	link   *link
	lock   *schedlock.Lock
	runner *Runner
	log    *logtest.Log
}

// join makes a replica that has jobs. It does not campaign yet.
func (w *world) join(jobs []Job, opts ...Option) *replica {
	w.t.Helper()
	w.replicas++
	r := &replica{w: w, link: newLink(w.db), log: &logtest.Log{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if w.grace > 0 {
		r.link.connect()
	}
	r.lock, err = schedlock.New(r.link, schedlock.WithLogger(log),
		schedlock.WithSessionGrace(w.grace),
		schedlock.WithOwner(driver.Owner{PID: w.replicas, Hostname: "test"}))
	require.NoError(w.t, err)
	r.runner, err = NewRunner(r.lock, r.link, jobs,
		append([]Option{WithLogger(log), WithKeepRuns(0)}, opts...)...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		r.link.set(nil)
		require.NoError(w.t, r.runner.Stop(ctx))
		require.NoError(w.t, r.lock.Stop(ctx))
	})
	return r
}

// leader makes a replica that leads.
func (w *world) leader(jobs []Job, opts ...Option) *replica {
	w.t.Helper()
	r := w.join(jobs, opts...)
	r.lead()
	return r
}

// leadsUntil lets a replica lead until that long after midnight, and then leave.
func (w *world) leadsUntil(upto time.Duration, jobs []Job, opts ...Option) *replica {
	w.t.Helper()
	r := w.leader(jobs, opts...)
	sleepUntil(upto)
	require.NoError(w.t, r.runner.Stop(ctx))
	return r
}

// standby makes a replica that stands by.
func (w *world) standby(jobs []Job, opts ...Option) *replica {
	w.t.Helper()
	r := w.join(jobs, opts...)
	r.stand()
	return r
}

// start lets r campaign, and its jobs run if it leads.
func (r *replica) start() {
	r.runner.Start()
	r.runner.Campaign()
}

// lead makes r the leader.
func (r *replica) lead() {
	r.w.t.Helper()
	r.start()
	synctest.Wait()
	require.True(r.w.t, r.leads())
}

// stand makes r a standby.
func (r *replica) stand() {
	r.w.t.Helper()
	r.start()
	synctest.Wait()
	require.False(r.w.t, r.leads())
}

// trigger asks for a run by way of r.
func (r *replica) trigger(job, by, reason string) ledger.Request {
	r.w.t.Helper()
	request, err := r.runner.Trigger(ctx, job, by, reason)
	require.NoError(r.w.t, err)
	return request
}

// await is what has become of a request.
func (r *replica) await(request ledger.Request) ledger.Run {
	r.w.t.Helper()
	run, err := r.runner.Await(ctx, request)
	require.NoError(r.w.t, err)
	return run
}

func (r *replica) leads() bool { return r.lock.IsLeader(ctx) == nil }

// A diary is what the jobs of a test have done.
type diary struct {
	mu    sync.Mutex
	lines []string
	ended []error // the causes for which the contexts of jobs had ended
}

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

func (d *diary) end(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, cause)
}

func (d *diary) causes() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ended)
}

// job writes down each run, and then takes a time, or until it is cancelled.
func (d *diary) job(name string, spec Spec, takes time.Duration) Job {
	return Job{Name: name, Spec: spec, Do: func(ctx context.Context, run Run) error {
		d.write("%s %s", name, run.ScheduledAt.Format("15:04:05"))
		select {
		case <-time.After(takes):
			return nil
		case <-ctx.Done():
			d.end(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}}
}

// once makes a job one that is never repeated.
func once(j Job) Job {
	j.AtMostOnce = true
	return j
}

// deaf is a job that ignores its context until it may return.
func (d *diary) deaf(name string, spec Spec, mayReturn <-chan struct{}) Job {
	return Job{Name: name, Spec: spec, Do: func(_ context.Context, run Run) error {
		d.write("%s %s", name, run.ScheduledAt.Format("15:04:05"))
		<-mayReturn
		return nil
	}}
}

// at is a schedule whose only tick within a day is that long after midnight.
func at(d time.Duration) Spec { return Every(24 * time.Hour).Offset(d) }
