// Package prom has the Prometheus metrics of a scheduler lock and its runs. An
// app that does not import it does not link a Prometheus client.
//
//	m := prom.New(prom.WithJobs(jobs))
//	registry.MustRegister(m)
//	app, err := startup.NewApp(startup.Config{Jobs: jobs, Metrics: m, …})
//
// An app without package startup gives Observe to schedlock.WithObserver and OnRun
// to tasks.WithOnRun, and calls Watch once it has the lock.
//
// One Metrics is for the one lock of a process. docs/alerts.yaml has alert
// rules for what it exports.
//
// # Metrics of the lock
//
// Gauges are what the lock itself says at the moment of the scrape; until Watch
// they are 0, and the state is "starting".
//
//	schedlock_build_info{version}         gauge      1, always: the label is the version of this
//	                                                 module in the app
//	schedlock_leader                      gauge      1: leads and may start runs; 0: does not, or
//	                                                 drains
//	schedlock_state{state}                gauge      1 for the state it is in: starting, standby,
//	                                                 leading, suspended, draining, stopped
//	schedlock_term                        gauge      term of this replica's last lease; 0: it had
//	                                                 none
//	schedlock_ttl_seconds                 gauge      TTL of this replica's leases
//	schedlock_last_heartbeat_age_seconds  gauge      since the last confirmed heartbeat was sent;
//	                                                 only while it holds a lease
//	schedlock_heartbeat_duration_seconds  histogram  heartbeats, failed ones included
//	schedlock_heartbeat_failures_total    counter    heartbeats that failed and were repeated
//	schedlock_elections_total{previous}   counter    acquisitions, by how the term before had
//	                                                 ended
//	schedlock_handover_seconds{previous}  histogram  for how long nobody led before an
//	                                                 acquisition, at the most
//	schedlock_losses_total{reason}        counter    leases that ended without a release:
//	                                                 deadline, row, session, stepped_down,
//	                                                 other
//	schedlock_revocations_total           counter    orders to leave that this replica has obeyed
//	schedlock_drain_seconds               histogram  from the start of a drain to the release; one
//	                                                 that ended in a loss is not in it
//	schedlock_store_failures_total        counter    looks and acquisitions of a standby that
//	                                                 failed
//
// The label previous is released, expired, proven_dead, session_ended, revoked,
// lost, other (something else stands in the table) or none: there was no term
// before, and so no hand-over either.
//
// # Metrics of the runs
//
// They count what this replica has done and recorded while it led. The label
// with the name of the job is job_name, because Prometheus gives each target a
// label job of its own. Its values are the jobs of the app and, should a
// leader clear up after a job that its code does not have, of the ledger.
//
//	schedlock_runs_total{job_name,status}          counter    attempts that ended done or failed,
//	                                                          or were found abandoned; ticks that
//	                                                          were skipped
//	schedlock_runs_skipped_total{job_name,reason}  counter    ticks and requests that were
//	                                                          skipped: missed, overlap, paused,
//	                                                          unknown_job, other
//	schedlock_runs_in_progress{job_name}           gauge      attempts under way
//	schedlock_run_duration_seconds{job_name}       histogram  attempts that ended done or failed
//	schedlock_run_delay_seconds{job_name}          histogram  from when a run was first due to the
//	                                                          start of an attempt; repeated ones
//	                                                          included
//
// # Metrics of the jobs
//
// They come from the ledger, so they know what earlier leaders did. Only the
// leader has them, for the jobs that its code has, and only if Watch was given
// the runner. A scrape reads the database at most every 5 s and waits for it
// at most 1 s; if it does not answer, what it said last stands for one minute,
// and then they are left out.
//
//	schedlock_job_overdue_seconds                 gauge  for how long a tick is due and neither
//	                                                     run nor skipped; 0 while a run is under
//	                                                     way or the job is paused
//	schedlock_job_next_tick_timestamp_seconds     gauge  the oldest tick that is neither run nor
//	                                                     skipped, by the database's clock; none
//	                                                     while the job is paused
//	schedlock_job_last_success_timestamp_seconds  gauge  when the last success ended, by the
//	                                                     database's clock; none before the first
//	schedlock_job_failures_in_a_row               gauge  attempts that failed or were abandoned
//	                                                     since the last success
//	schedlock_job_paused                          gauge  1: the job, or the whole scheduler, is
//	                                                     paused
//
// All of these have the label job_name. Overdue is measured on the database's
// clock alone, so that an alert needs no clocks that agree.
//
// # Metrics of named locks and queues
//
// They too come from the database, and only the leader has them. Each is read
// at most every 5 s, and by itself: a queue that takes long to count keeps
// nothing else. Counting tasks reads their whole table, so it is done again after
// 100 times as long as it took, and its last figures stand until then.
//
//	schedlock_named_locks{kind}         gauge  locks, task locks, time-out locks and elections
//	                                           that somebody holds, that rest, or that were
//	                                           revoked and not taken since
//	schedlock_queue_tasks{queue,state}  gauge  tasks by state: pending (without those that are
//	                                           delayed), delayed, in_progress, done, failed
//
// The first 100 queues, by name, have series. The kinds are lock, task, timeout
// and election; of more than 1,000 locks the rest is not counted.
package prom
