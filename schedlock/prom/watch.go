package prom

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks"
)

const (
	jobsFresh = 5 * time.Second // how old what the ledger said may be without asking again
	jobsKept  = time.Minute     // … and if it does not answer
	jobsLimit = time.Second     // how long a scrape waits for it
)

var (
	leaderDesc = desc("leader", "1 while this replica leads and may start runs, else 0 (also while it drains).")
	stateDesc  = desc("state", "1 for the state that this replica is in.", "state")
	termDesc   = desc("term", "Term (fencing token) of this replica's last lease, 0 if it had none.")
	ttlDesc    = desc("ttl_seconds", "TTL of this replica's leases.")
	ageDesc    = desc("last_heartbeat_age_seconds", "Time since the last confirmed heartbeat, or the acquisition, was sent. Only while this replica holds a lease.")

	overdueDesc     = desc("job_overdue_seconds", "For how long a tick is due and neither run nor skipped, 0 while a run of the job is under way or the job is paused. Only on the leader.", "job_name")
	nextDesc        = desc("job_next_tick_timestamp_seconds", "The oldest tick that is neither run nor skipped. Only on the leader, and while the job is not paused.", "job_name")
	lastSuccessDesc = desc("job_last_success_timestamp_seconds", "When the last success of the job ended, on whichever replica. Only on the leader.", "job_name")
	inARowDesc      = desc("job_failures_in_a_row", "Attempts that failed or were abandoned since the last success of the job, on whichever replica. Only on the leader.", "job_name")
	pausedDesc      = desc("job_paused", "1 while the job, or the whole scheduler, is paused. Only on the leader.", "job_name")

	descs = []*prometheus.Desc{
		leaderDesc, stateDesc, termDesc, ttlDesc, ageDesc,
		overdueDesc, nextDesc, lastSuccessDesc, inARowDesc, pausedDesc,
	}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("schedlock_"+name, help, labels, nil)
}

// A watched lock is what tells the gauges at a scrape.
type watched struct {
	lock   *schedlock.Lock
	runner *tasks.Runner // nil: there are no jobs to tell of

	mu      sync.Mutex
	last    reading
	reading chan struct{} // closed when the read that is under way has ended; nil: none is
}

// A reading is what the ledger said of the jobs, in one term of ours.
type reading struct {
	term int64
	at   time.Time
	jobs []jobReading
}

type jobReading struct {
	tasks.JobInfo
	overdue time.Duration
}

// Watch names the lock, which must not be nil, and the runner of its jobs, nil
// if there is none. Before it is called the gauges are 0. Called again, it
// replaces both. It panics if lock is nil: call it once the lock exists.
func (m *Metrics) Watch(lock *schedlock.Lock, runner *tasks.Runner) {
	if lock == nil {
		panic("prom: Watch: lock is nil: call it once the lock exists")
	}
	m.watched.Store(&watched{lock: lock, runner: runner})
}

// collectLock sends the gauges of the lock and of its jobs.
func (m *Metrics) collectLock(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
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
	if !status.Leader || w.runner == nil {
		return
	}
	for _, j := range m.jobInfos(w, status.Term) {
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
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// jobInfos is what the ledger says of the jobs that this replica has. It
// waits for the ledger for a second at the most; scrapes that come meanwhile
// share the answer.
func (m *Metrics) jobInfos(w *watched, term int64) []jobReading {
	w.mu.Lock()
	if w.reading == nil && (w.last.term != term || time.Since(w.last.at) >= jobsFresh) {
		w.reading = make(chan struct{})
		go m.read(w, term, w.reading)
	}
	reading := w.reading
	w.mu.Unlock()
	if reading != nil {
		limit := time.NewTimer(jobsLimit)
		defer limit.Stop()
		select {
		case <-reading:
		case <-limit.C:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.term != term || time.Since(w.last.at) >= jobsKept {
		return nil
	}
	return w.last.jobs
}

// read asks the ledger. It is a goroutine of its own, so that not even a
// database driver that does not heed its context can keep a scrape.
func (m *Metrics) read(w *watched, term int64, done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), jobsLimit)
	defer cancel()
	infos, err := w.runner.Jobs(ctx)
	lease := w.lock.Lease()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = nil
	close(done)
	if err != nil || lease == nil {
		return
	}
	w.last = reading{term: term, at: time.Now()}
	for _, j := range infos {
		if !j.Known {
			continue // code that we do not have ran it: nobody is late with it
		}
		r := jobReading{JobInfo: j}
		if !j.Next.IsZero() && j.Pause == nil && m.job(j.Name).active.Load() == 0 {
			r.overdue = max(lease.Now().Sub(j.Next), 0)
		}
		w.last.jobs = append(w.last.jobs, r)
	}
}
