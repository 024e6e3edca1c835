package prom

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks"
	"example.com/schedlock/tasks/queue"
)

const (
	readFresh = 5 * time.Second // how old what the database said may be without asking again
	readKept  = time.Minute     // … and if it does not answer
	readLimit = time.Second     // how long a scrape waits for it

	// countShare bounds what counting tasks costs, since a count reads the whole
	// table: at most one part in so many of the time.
	countShare = 100

	maxQueues = 100 // that have series: their names are the app's data
)

var (
	buildDesc = desc("build_info",
		"1, with the version of this module that the app was built with.", "version")
	leaderDesc = desc("leader",
		"1 while this replica leads and may start runs, else 0 (also while it drains).")
	stateDesc = desc("state", "1 for the state that this replica is in.", "state")
	termDesc  = desc("term",
		"Term (fencing token) of this replica's last lease, 0 if it had none.")
	ttlDesc = desc("ttl_seconds", "TTL of this replica's leases.")
	ageDesc = desc("last_heartbeat_age_seconds",
		"Time since the last confirmed heartbeat, or the acquisition, was sent. "+
			"Only while this replica holds a lease.")

	overdueDesc = desc("job_overdue_seconds",
		"For how long a tick is due and neither run nor skipped, "+
			"0 while a run of the job is under way or the job is paused. Only on the leader.",
		"job_name")
	nextDesc = desc("job_next_tick_timestamp_seconds",
		"The oldest tick that is neither run nor skipped. "+
			"Only on the leader, and while the job is not paused.", "job_name")
	lastSuccessDesc = desc("job_last_success_timestamp_seconds",
		"When the last success of the job ended, on whichever replica. Only on the leader.",
		"job_name")
	inARowDesc = desc("job_failures_in_a_row",
		"Attempts that failed or were abandoned since the last success of the job, "+
			"on whichever replica. Only on the leader.", "job_name")
	pausedDesc = desc("job_paused",
		"1 while the job, or the whole scheduler, is paused. Only on the leader.", "job_name")

	locksDesc = desc("named_locks",
		"Named locks that somebody holds, that rest, or that were revoked and not taken since. "+
			"Only on the leader.", "kind")
	tasksDesc = desc("queue_tasks",
		"Tasks of a queue: pending (without those that are delayed), delayed, in_progress, "+
			"done, failed. Only on the leader.", "queue", "state")
)

var descs []*prometheus.Desc // all of them

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("schedlock_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

// A watched lock is what tells the gauges at a scrape.
type watched struct {
	lock   *schedlock.Lock
	runner *tasks.Runner // nil: there are no jobs to tell of

	jobs   cached[[]jobReading]
	locks  cached[map[named.Kind]int]
	queues cached[[]queue.Count]
}

type jobReading struct {
	tasks.JobInfo
	overdue time.Duration
}

// Watch names the lock, which must not be nil, and the runner of its jobs, nil
// if there is none. Before it is called the gauges are 0. Called again, it
// replaces both. It panics if lock is nil: call it once the lock exists. Package
// startup calls it.
func (m *Metrics) Watch(lock *schedlock.Lock, runner *tasks.Runner) {
	if lock == nil {
		panic("prom: Watch: lock is nil: call it once the lock exists")
	}
	w := &watched{lock: lock, runner: runner}
	if runner != nil {
		w.jobs.ask = w.askJobs(m)
	}
	if s, ok := lock.Store().(interface{ Named() namedlock.Store }); ok {
		if locks, err := named.New(s.Named()); err == nil {
			w.locks.ask = func(ctx context.Context) (map[named.Kind]int, error) {
				infos, err := locks.List(ctx)
				counts := map[named.Kind]int{}
				for _, i := range infos {
					counts[i.Kind]++
				}
				return counts, err
			}
		}
	}
	if s, ok := lock.Store().(interface{ Queue() taskqueue.Store }); ok {
		if queues, err := queue.New(s.Queue()); err == nil {
			w.queues.ask, w.queues.share = queues.Count, countShare
		}
	}
	m.watched.Store(w)
}

// collectLock sends the gauges of the lock and of its jobs.
func (m *Metrics) collectLock(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	send(buildDesc, 1, build.Version())
	status := schedlock.Status{State: schedlock.SelfStarting}
	var ttl time.Duration
	w := m.watched.Load()
	if w != nil {
		status, ttl = w.lock.Status(), w.lock.Timing().TTL
	}
	send(leaderDesc, number(status.Leader))
	for _, s := range selfStates {
		send(stateDesc, number(s == status.State), string(s))
	}
	send(termDesc, float64(max(m.term.Load(), status.Term)))
	send(ttlDesc, ttl.Seconds())
	if status.Term != 0 {
		send(ageDesc, status.Confirmed.Seconds())
	}
	if !status.Leader {
		return
	}
	limit := time.NewTimer(readLimit)
	defer limit.Stop()
	for _, reading := range []<-chan struct{}{w.jobs.read(status.Term), w.locks.read(status.Term),
		w.queues.read(status.Term)} {
		select {
		case <-reading:
		case <-limit.C:
			limit.Reset(0) // for those that follow
		}
	}
	jobs, _ := w.jobs.get(status.Term)
	for _, j := range jobs {
		name := m.job(j.Name).label
		send(overdueDesc, j.overdue.Seconds(), name)
		send(inARowDesc, float64(j.Streak), name)
		send(pausedDesc, number(j.Pause != nil), name)
		if !j.Next.IsZero() && j.Pause == nil {
			send(nextDesc, seconds(j.Next), name)
		}
		if !j.LastDone.IsZero() {
			send(lastSuccessDesc, seconds(j.LastDone), name)
		}
	}
	if locks, ok := w.locks.get(status.Term); ok {
		for _, kind := range named.Kinds {
			send(locksDesc, float64(locks[kind]), string(kind))
		}
	}
	queues, _ := w.queues.get(status.Term)
	for _, c := range queues[:min(len(queues), maxQueues)] {
		name := utf8Label(c.Queue)
		send(tasksDesc, float64(c.Pending), name, "pending")
		send(tasksDesc, float64(c.Delayed), name, "delayed")
		send(tasksDesc, float64(c.InProgress), name, "in_progress")
		send(tasksDesc, float64(c.Done), name, "done")
		send(tasksDesc, float64(c.Failed), name, "failed")
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// askJobs asks the ledger for the jobs that this replica has.
func (w *watched) askJobs(m *Metrics) func(context.Context) ([]jobReading, error) {
	return func(ctx context.Context) (jobs []jobReading, err error) {
		lease := w.lock.Lease()
		infos, err := w.runner.Jobs(ctx)
		switch {
		case err != nil:
			return nil, err
		case lease == nil, w.lock.Lease() != lease: // it ended meanwhile
			return nil, schedlock.ErrNotLeader
		}
		for _, j := range infos {
			if !j.Known {
				continue // code that we do not have ran it: nobody is late with it
			}
			r := jobReading{JobInfo: j}
			if !j.Next.IsZero() && j.Pause == nil && m.job(j.Name).active.Load() == 0 {
				r.overdue = max(lease.Now().Sub(j.Next), 0)
			}
			jobs = append(jobs, r)
		}
		return jobs, nil
	}
}

// cached is what the database said of one thing, in one term of ours. Scrapes
// that come while it is asked share the answer.
type cached[T any] struct {
	ask   func(context.Context) (T, error) // nil: there is nothing to ask for
	share int                              // one part in so many of the time; 0: no bound

	mu      sync.Mutex
	value   T
	term    int64         // 0: it has said nothing yet
	at      time.Time     // when it did
	pause   time.Duration // until it may be asked again, since asked
	asked   time.Time     // when it was asked last, and had answered or failed
	reading chan struct{} // closed when the reading under way has ended; nil: none is
}

var answered = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// read asks anew if what is known is old; the channel it returns is closed once
// there is an answer, or was one. It asks in a goroutine of its own, so that
// not even a database driver that does not heed its context can keep a scrape.
func (c *cached[T]) read(term int64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ask == nil:
		return answered
	case c.reading != nil:
		return c.reading
	case c.term == term && time.Since(c.at) < readFresh, time.Since(c.asked) < c.pause:
		return answered
	}
	c.reading = make(chan struct{})
	go func(done chan struct{}) {
		ctx, cancel := context.WithTimeout(context.Background(), readLimit)
		defer cancel()
		begin := time.Now()
		value, err := c.ask(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reading = nil
		close(done)
		c.asked, c.pause = time.Now(), time.Duration(c.share)*time.Since(begin)
		if err == nil {
			c.value, c.term, c.at = value, term, time.Now()
		}
	}(c.reading)
	return c.reading
}

// get is what it said last, if that was in this term and not too long ago.
func (c *cached[T]) get(term int64) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term != term || time.Since(c.at) >= readKept+c.pause {
		return value, false
	}
	return c.value, true
}
