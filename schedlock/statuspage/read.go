package statuspage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"os"
	"slices"
	"time"

	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/tasks"
)

const (
	maxTerms = 1000 // what the history keeps
	maxJobs  = 100  // that the page shows
	maxStrip = 40   // runs of one job
	maxRuns  = 600  // of all jobs together
	maxAudit = 20   // orders
)

// snapshot is what the page shows, as it was read. It is not changed.
type snapshot struct {
	now      time.Time // the database's clock; this replica's if the database does not answer
	err      error
	blind    bool // not even the lock could be read
	view     driver.Snapshot
	self     schedlock.Status
	owner    driver.Owner
	app      driver.App
	terms    []driver.Term // newest first
	jobs     []job
	more     int                       // jobs that are not shown
	next     *nextRun                  // tick of all jobs; nil: none
	pause    *ledger.Pause             // of the whole scheduler
	requests map[string]int            // how many of each job were asked for, and have not started
	asked    map[string]ledger.Request // the newest that is known of those
	audit    []ledger.AuditEntry       // newest first
	replicas []ledger.Replica
	locks    table
	queues   table
	sections []template.HTML
	full     time.Time // when everything was read, by this replica's clock
}

type job struct {
	tasks.JobInfo
	runs []ledger.Run // newest first
	read int          // how many were asked for: if there are as many, there may be older ones
	lane bool         // it is drawn
}

// read looks at the database. With before, which had no error, it reads what has
// changed: of the lock only, or of all. What this replica knows of itself is there
// also if the database does not answer.
func (h *Handler) read(ctx context.Context, before *snapshot, all bool) *snapshot {
	s := &snapshot{full: time.Now()}
	if before != nil && (!all || time.Since(before.full) < everything) {
		*s = *before
	} else {
		all = true
	}
	lock := h.app.Lock()
	if lock == nil {
		return starting()
	}
	s.now, s.owner, s.app = time.Now().UTC(), lock.Owner(), lock.App()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s.err = h.readInto(ctx, lock, s, all)
	s.self = lock.Status()
	// Else it is the client that is gone.
	if s.err == nil || !errors.Is(context.Cause(ctx), context.Canceled) {
		h.noteOutage(s.err)
	}
	return s
}

// errStarting stands for the answer of a database that is not open yet.
var errStarting = errors.New("this replica is starting: its database is not open yet")

// starting is what a replica knows that has no lock yet.
func starting() *snapshot {
	host, _ := os.Hostname()
	return &snapshot{
		now: time.Now().UTC(), err: errStarting, blind: true,
		// as a lock has it by default
		owner: driver.Owner{PID: os.Getpid(), Hostname: cmp.Or(host, "unknown")},
		self:  schedlock.Status{State: schedlock.SelfStarting, Reason: errStarting.Error()},
	}
}

func (h *Handler) readInto(ctx context.Context, lock *schedlock.Lock, s *snapshot,
	all bool) (err error) {
	store := lock.Store()
	if s.view, err = assess.LookAtSession(ctx, store); err != nil {
		s.blind = true
		return fmt.Errorf("read the scheduler lock: %w", err)
	}
	s.now = s.view.Now.UTC()
	if termsMoved(s.view, s.terms) {
		if s.terms, err = readTerms(ctx, store, s.terms); err != nil {
			return fmt.Errorf("read the terms: %w", err)
		}
	}
	if !all {
		return nil
	}
	if err := h.readJobs(ctx, lock, s); err != nil {
		return err
	}
	if store, ok := store.(ledger.Store); ok {
		if s.audit, err = store.Audit(ctx, "", maxAudit); err != nil {
			return fmt.Errorf("read the orders: %w", err)
		}
		if s.replicas, err = store.Replicas(ctx); err != nil {
			return fmt.Errorf("read the replicas: %w", err)
		}
	}
	s.locks, s.queues = h.tools.read(ctx, h, lock, s.now)
	s.sections = h.renderSections(ctx)
	return nil
}

// termsMoved reports whether the newest term is another than it was, or stands
// otherwise.
func termsMoved(v driver.Snapshot, terms []driver.Term) bool {
	if v.Newest == nil || len(terms) == 0 {
		return (v.Newest == nil) != (len(terms) == 0)
	}
	return *v.Newest != terms[0]
}

func (h *Handler) readJobs(ctx context.Context, lock *schedlock.Lock, s *snapshot) error {
	if !h.jobs {
		return nil
	}
	infos, err := h.app.Runner().Jobs(ctx)
	if err != nil {
		return err
	}
	before := s.jobs
	s.jobs, s.next = make([]job, len(infos)), nil
	for i, info := range infos {
		s.jobs[i].JobInfo = info
		// A job that was removed keeps its row, and with it a tick that nobody runs.
		if info.Pause == nil && (info.Known || info.Next.After(s.now)) {
			s.next = s.next.or(info.Name, info.Next, false)
		}
	}
	s.more = max(len(infos)-maxJobs, 0)
	if s.more > 0 { // those that need to be looked at stay
		slices.SortStableFunc(s.jobs, func(a, b job) int {
			return a.trouble(s.now) - b.trouble(s.now)
		})
		s.jobs = s.jobs[:maxJobs]
		slices.SortFunc(s.jobs, func(a, b job) int { return cmp.Compare(a.Name, b.Name) })
	}
	drawn := inLanes(s.jobs)
	for i := range s.jobs {
		j := &s.jobs[i]
		j.lane, j.read = drawn[j.Name], s.strip()
		if j.lane {
			j.read = max(j.read, min(laneMost, laneRuns/len(drawn)))
		}
	}
	store, ok := lock.Store().(ledger.Store)
	if !ok {
		return nil
	}
	inbox, err := store.Pending(ctx)
	if err != nil {
		return fmt.Errorf("read the requests: %w", err)
	}
	s.pause = inbox.Paused("")
	s.requests, s.asked = inbox.Backlog, map[string]ledger.Request{}
	for _, r := range inbox.Requests { // oldest first
		s.asked[r.Job] = r
	}
	return readRuns(ctx, store, s, before)
}

// noteOutage logs whether the database can be read.
func (h *Handler) noteOutage(err error) {
	if err == nil {
		h.outage.Over(time.Now(), func(time.Duration, int) {
			h.cfg.Log.Info("status page can read the database again")
		})
		return
	}
	h.outage.Failed(time.Now(), func(time.Duration, int) {
		h.cfg.Log.Warn("status page cannot read the database", "err", err)
	})
}
