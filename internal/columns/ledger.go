package columns

import (
	"database/sql"
	"fmt"
	"time"

	"example.com/schedlock/schedlock/ledger"
)

// Of a job, without its cursor.
const JobColumns = `job, spec, done_count, failed_count, failure_streak, last_done_at,
       last_failed_at, last_error, done_us, longest_us`

// Job takes JobColumns.
type Job struct {
	job                  ledger.Job
	lastDone, lastFailed Time
	lastError            sql.NullString
	total, longest       int64
}

// Dest returns the places of JobColumns.
func (c *Job) Dest() []any {
	return []any{&c.job.Name, &c.job.Spec, &c.job.Done, &c.job.Failed, &c.job.Streak,
		&c.lastDone, &c.lastFailed, &c.lastError, &c.total, &c.longest}
}

// Value returns the job.
func (c *Job) Value() ledger.Job {
	j := c.job
	j.LastDone, j.LastFailed, j.LastError = c.lastDone.Time, c.lastFailed.Time, c.lastError.String
	j.Total, j.Longest = Micros(c.total), Micros(c.longest)
	return j
}

// Of a run.
const RunColumns = `id, job, scheduled_at, started_at, finished_at, status, term, pid, hostname,
       attempt, error, retry_at, until, count, requested_by, request_reason`

// Run takes RunColumns.
type Run struct {
	id, term, pid, attempt, count                sql.NullInt64
	scheduled, started, finished, retryAt, until Time
	job, status, hostname, err, by, reason       sql.NullString
}

// Dest returns the places of RunColumns.
func (c *Run) Dest() []any {
	return []any{&c.id, &c.job, &c.scheduled, &c.started, &c.finished, &c.status, &c.term, &c.pid,
		&c.hostname, &c.attempt, &c.err, &c.retryAt, &c.until, &c.count, &c.by, &c.reason}
}

// Err names the time that can't be read, nil if there is none.
func (c *Run) Err() error {
	for _, t := range []struct {
		column string
		Time
	}{{"scheduled_at", c.scheduled}, {"started_at", c.started}, {"finished_at", c.finished},
		{"until", c.until}, {"retry_at", c.retryAt}} {
		if t.Err != nil {
			return fmt.Errorf("scheduler_runs, id %d, job %q: %s: %w", c.id.Int64, c.job.String,
				t.column, t.Err)
		}
	}
	return nil
}

// Value returns the run. A time that can't be read is zero.
func (c *Run) Value() ledger.Run {
	return ledger.Run{
		ID:            c.id.Int64,
		Job:           c.job.String,
		ScheduledAt:   c.scheduled.Time,
		StartedAt:     c.started.Time,
		FinishedAt:    c.finished.Time,
		Status:        ledger.Status(c.status.String),
		Term:          c.term.Int64,
		PID:           int(c.pid.Int64),
		Hostname:      c.hostname.String,
		Attempt:       int(c.attempt.Int64),
		Error:         c.err.String,
		RetryAt:       c.retryAt.Time,
		Until:         c.until.Time,
		Count:         c.count.Int64,
		RequestedBy:   c.by.String,
		RequestReason: c.reason.String,
	}
}

// Of an attempt that was replaced.
const AttemptColumns = `attempt, started_at, finished_at, status, term, pid, hostname, error`

// Attempt takes AttemptColumns.
type Attempt struct {
	number, term, pid     sql.NullInt64
	started, finished     Time
	status, hostname, err sql.NullString
}

// Dest returns the places of AttemptColumns.
func (c *Attempt) Dest() []any {
	return []any{&c.number, &c.started, &c.finished, &c.status, &c.term, &c.pid, &c.hostname,
		&c.err}
}

// Value returns the attempt. A time that can't be read is zero.
func (c *Attempt) Value() ledger.Attempt {
	return ledger.Attempt{Number: int(c.number.Int64), StartedAt: c.started.Time,
		FinishedAt: c.finished.Time, Status: ledger.Status(c.status.String), Term: c.term.Int64,
		PID: int(c.pid.Int64), Hostname: c.hostname.String, Error: c.err.String}
}

// Of a pause, as p.
const PauseColumns = `p.job, p.paused_at, p.paused_by, p.reason, p.resumed_at, p.resumed_by`

// Pause takes PauseColumns.
type Pause struct {
	Job, By, Reason, resumedBy sql.NullString
	Since, resumed             Time
}

// Dest returns the places of PauseColumns.
func (c *Pause) Dest() []any {
	return []any{&c.Job, &c.Since, &c.By, &c.Reason, &c.resumed, &c.resumedBy}
}

// Value returns the pause.
func (c *Pause) Value() ledger.Pause {
	return ledger.Pause{
		Action:    ledger.Action{Job: c.Job.String, By: c.By.String, Reason: c.Reason.String},
		Since:     c.Since.Time,
		Resumed:   c.resumed.End(),
		ResumedBy: c.resumedBy.String,
	}
}

// Of an order that was carried out, as a.
const AuditColumns = `a.id, a.at, a.what, a.job, a.by, a.reason`

// Audit takes AuditColumns.
type Audit struct {
	id                    sql.NullInt64
	at                    Time
	what, job, by, reason sql.NullString
}

// Dest returns the places of AuditColumns.
func (c *Audit) Dest() []any {
	return []any{&c.id, &c.at, &c.what, &c.job, &c.by, &c.reason}
}

// Value returns the entry. A time that can't be read is zero.
func (c *Audit) Value() ledger.AuditEntry {
	return ledger.AuditEntry{ID: c.id.Int64, At: c.at.Time, What: c.what.String,
		Action: ledger.Action{Job: c.job.String, By: c.by.String, Reason: c.reason.String}}
}

// Of a replica, as r.
const ReplicaColumns = `r.instance, r.pid, r.hostname, r.version, r.state, r.reason, r.seen_at`

// Replica takes ReplicaColumns.
type Replica struct {
	instance, hostname, version, state, reason sql.NullString
	pid                                        sql.NullInt64
	seen                                       Time
}

// Dest returns the places of ReplicaColumns.
func (c *Replica) Dest() []any {
	return []any{&c.instance, &c.pid, &c.hostname, &c.version, &c.state, &c.reason, &c.seen}
}

// Value returns the replica at a time of the database's clock. One whose time can't be read has
// been silent for ever.
func (c *Replica) Value(now time.Time) ledger.Replica {
	return ledger.Replica{Instance: c.instance.String, PID: int(c.pid.Int64),
		Hostname: c.hostname.String, Version: c.version.String, State: c.state.String,
		Reason: c.reason.String, SeenAt: c.seen.Time, Silent: max(now.Sub(c.seen.Time), 0)}
}
