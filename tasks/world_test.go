package tasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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
	beats time.Duration // between their heartbeats, six in a TTL; 0: the default

	mu       sync.Mutex
	step     time.Duration // of the database's clock
	replicas int
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		w.db = memory.New(memory.WithClock(w.now))
		f(t, w)
	})
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
	log    *logText
}

// join makes a replica that has jobs. It does not campaign yet.
func (w *world) join(jobs []Job, opts ...Option) *replica {
	w.t.Helper()
	w.replicas++
	r := &replica{w: w, link: &link{Store: w.db, thawed: make(chan struct{})}, log: &logText{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if w.grace > 0 {
		r.link.connect()
	}
	settings := []schedlock.Option{schedlock.WithLogger(log), schedlock.WithSessionGrace(w.grace),
		schedlock.WithOwner(driver.Owner{PID: w.replicas, Hostname: "test"})}
	if w.beats > 0 {
		settings = append(settings, schedlock.WithTTL(6*w.beats),
			schedlock.WithHeartbeatInterval(w.beats))
	}
	r.lock, err = schedlock.New(r.link, settings...)
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

// lead makes r the leader, and its jobs run.
func (r *replica) lead() {
	r.w.t.Helper()
	r.runner.Start()
	r.runner.Campaign()
	synctest.Wait()
	require.True(r.w.t, r.leads())
}

// stand makes r a standby.
func (r *replica) stand() {
	r.w.t.Helper()
	r.runner.Start()
	r.runner.Campaign()
	synctest.Wait()
	require.False(r.w.t, r.leads())
}

func (r *replica) leads() bool { return r.lock.IsLeader(ctx) == nil }

// logText is what was logged.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// count is how many lines contain a text.
func (l *logText) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A link is one replica's connection to the database.
type link struct {
	*memory.Store

	mu      sync.Mutex
	session *session // nil: none that is a sign
	fault   func(op string) fault
	calls   []string
	called  time.Time // when the last of them was
	thawed  chan struct{}
	answer  error // of say
}

// A fault is what a statement meets. The zero fault is none.
type fault int

const (
	none   fault = iota
	refuse       // an error at once; not applied
	hang         // not applied; returns when its context ends
	freeze       // applied, but answered only when the link is set anew, whatever the context says
	lose         // applied, but the answer is an error
	usurp        // not applied; the answer is that the lock is lost
	ruin         // not applied; the answer is that the database is damaged
	say          // not applied; the answer is the link's
)

// set says what the statements of the replica meet from now on; nil: nothing.
func (l *link) set(f func(op string) fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
	close(l.thawed)
	l.thawed = make(chan struct{})
}

// on is a fault of some statements.
func on(f fault, ops ...string) func(string) fault {
	return func(op string) fault {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return f
		}
		return none
	}
}

// log are the statements since the last call, without the looks of any kind.
func (l *link) log() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

func call[T any](l *link, ctx context.Context, op, detail string,
	apply func() (T, error)) (answer T, err error) {
	l.mu.Lock()
	// Where time stands still while things happen, gocron may ring twice at one
	// instant: a heartbeat too many does no harm.
	line, now := strings.TrimSpace(op+" "+detail), time.Now()
	twice := op == "heartbeat" && len(l.calls) > 0 && l.calls[len(l.calls)-1] == line &&
		l.called.Equal(now)
	if op != "look" && op != "inbox" && !twice {
		l.calls, l.called = append(l.calls, line), now
	}
	var f fault
	if l.fault != nil {
		f = l.fault(op)
	}
	thawed, said := l.thawed, l.answer
	l.mu.Unlock()
	switch f {
	case say:
		return answer, said
	case refuse:
		return answer, errRefused
	case hang:
		<-ctx.Done()
		return answer, context.Cause(ctx)
	case freeze:
		answer, err = apply()
		<-thawed
		return answer, err
	case lose:
		_, _ = apply()
		return answer, errRefused
	case usurp:
		return answer, fmt.Errorf("%w: says the test", schedlock.ErrLost)
	case ruin:
		return answer, fmt.Errorf("%w: says the test", schedlock.ErrCorrupt)
	}
	return apply()
}

func (l *link) Look(ctx context.Context) (driver.Snapshot, error) {
	return call(l, ctx, "look", "", func() (driver.Snapshot, error) { return l.Store.Look(ctx) })
}

func (l *link) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	return call(l, ctx, "acquire", "", func() (driver.Grant, error) {
		grant, err := l.Store.Acquire(ctx, c)
		if x := l.connected(); x != nil {
			grant.Session = x
		}
		return grant, err
	})
}

func (l *link) Heartbeat(ctx context.Context, ref driver.Ref,
	s driver.State) (driver.Renewal, error) {
	return call(l, ctx, "heartbeat", string(s), func() (driver.Renewal, error) {
		beat, err := l.Store.Heartbeat(ctx, ref, s)
		if x := l.connected(); x != nil {
			beat.Session = x
		}
		return beat, err
	})
}

func (l *link) Release(ctx context.Context, ref driver.Ref, reason driver.EndReason) (bool, error) {
	return call(l, ctx, "release", string(reason), func() (bool, error) {
		return l.Store.Release(ctx, ref, reason)
	})
}

func (l *link) Revoke(ctx context.Context, term int64, by,
	reason string) (schedlock.Revocation, error) {
	return call(l, ctx, "revoke", by, func() (schedlock.Revocation, error) {
		return l.Store.Revoke(ctx, term, by, reason)
	})
}

func (l *link) Jobs(ctx context.Context) ([]ledger.Job, error) {
	return call(l, ctx, "jobs", "", func() ([]ledger.Job, error) { return l.Store.Jobs(ctx) })
}

func (l *link) Abandon(ctx context.Context, ref driver.Ref,
	retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
	return call(l, ctx, "abandon", "", func() ([]ledger.Run, error) {
		return l.Store.Abandon(ctx, ref, retryAt)
	})
}

func (l *link) Retries(ctx context.Context) ([]ledger.Run, error) {
	return call(l, ctx, "retries", "", func() ([]ledger.Run, error) { return l.Store.Retries(ctx) })
}

func (l *link) Pending(ctx context.Context) (ledger.Pending, error) {
	return call(l, ctx, "inbox", "", func() (ledger.Pending, error) { return l.Store.Pending(ctx) })
}

func (l *link) Prune(ctx context.Context, job string, keep, limit int) (int64, error) {
	return call(l, ctx, "prune", "", func() (int64, error) {
		return l.Store.Prune(ctx, job, keep, limit)
	})
}

func (l *link) Run(ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
	return callRun(l, ctx, "run", func() (ledger.Run, bool, error) {
		return l.Store.Run(ctx, job, tick)
	})
}

func (l *link) Decide(ctx context.Context, ref driver.Ref,
	d ledger.Decision) (ledger.Run, bool, error) {
	return callRun(l, ctx, "decide", func() (ledger.Run, bool, error) {
		return l.Store.Decide(ctx, ref, d)
	})
}

func (l *link) Retry(ctx context.Context, ref driver.Ref, r ledger.Run) (ledger.Run, bool, error) {
	return callRun(l, ctx, "retry", func() (ledger.Run, bool, error) {
		return l.Store.Retry(ctx, ref, r)
	})
}

func (l *link) Answer(ctx context.Context, ref driver.Ref, r ledger.Request,
	skip string) (ledger.Run, bool, error) {
	return callRun(l, ctx, "answer", func() (ledger.Run, bool, error) {
		return l.Store.Answer(ctx, ref, r, skip)
	})
}

func (l *link) GiveUp(ctx context.Context, ref driver.Ref, r ledger.Run) (bool, error) {
	return call(l, ctx, "give up", "", func() (bool, error) { return l.Store.GiveUp(ctx, ref, r) })
}

func (l *link) Finish(ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
	return call(l, ctx, "finish", string(end.Status), func() (bool, error) {
		return l.Store.Finish(ctx, run, end)
	})
}

func callRun(l *link, ctx context.Context, op string, apply func() (ledger.Run,
	bool, error)) (ledger.Run, bool, error) {
	type answer struct {
		run ledger.Run
		ok  bool
	}
	got, err := call(l, ctx, op, "", func() (answer, error) {
		run, ok, err := apply()
		return answer{run, ok}, err
	})
	return got.run, got.ok, err
}

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
