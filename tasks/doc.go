// Package tasks runs background jobs on the leader only, with gocron as the
// alarm clock.
//
// A [Runner] campaigns for the lock. When it has won a term it keeps the lease
// alive from a gocron scheduler of its own (an elector gates every job of its
// scheduler, and a saturated scheduler would starve the heartbeat) and builds a
// second one for the jobs. When the term ends, on purpose or by loss, it stops
// starting runs, waits for those that run, and releases the lock last.
//
// When a job is due is not left to gocron, which keeps its schedule in memory:
// ticks are a pure function of the job's [Spec], and the ledger in the database
// knows which of them were decided. On each alarm, and when a term is won,
// every tick since is run or recorded as skipped. A run starts with a statement
// in which the database itself checks that this replica holds the lock, so no
// tick is started twice in the fleet.
//
// # The life of a runner
//
//	          Campaign            lock won             lock given back, after Stop
//	starting ──────────▶ standby ──────────▶ leading          ┌──────────▶ stopped
//	                        ▲   lost, revoked,  │             │
//	                        │       or Stop     └──────▶ draining
//	                        │                                 │
//	                        └─────────────────────────────────┘
//	                                  lock given back
//
// Acquire goes from starting to leading, and Stop from starting or standby to
// stopped. Which phase follows is said in one place, campaign.next. What always
// holds:
//
//   - A phase follows from what is the case: whether there is a lease, whether it
//     has ended or was revoked, and whether Stop was called.
//   - A run starts only while the runner leads, and only after Start. A run that
//     has started is waited for in draining, whatever it does.
//   - When a lease is lost, package schedlock first marks the replica as no leader
//     and then cancels the context of its runs. Only after that does the runner
//     hear of it, and draining touch the database.
//   - The heartbeats go on until the lock is given back.
//
// # The life of a job, while the runner leads
//
// A job is idle, running, or recording the end of a run. An alarm, the end of a
// run, a retry that is due and a request wake it: it then takes one step after the
// other until a run has started or nothing is due. A step is one statement to the
// ledger. It decides about ticks, starts a retry, or answers a request; which one
// is next is said in one place, term.choose. What always holds:
//
//   - A run starts only by a step that the database has carried out for the
//     holder of the lock, and only if this replica still trusts its lease then.
//   - A job takes one step at a time.
//   - A cursor goes forward, and every tick that it passes is in the ledger. It is
//     put back only when a term begins, or a hand has edited it, and only if it
//     stands further ahead than the next tick.
//   - A loop that the ledger does not agree with pauses.
//
// # What an app chooses
//
// What happens with ticks that were missed, with a run that is due while
// another has not ended, and with one that failed or was cut short, is the
// job's choice: [CatchUp], [Overlap], [Retry], AtMostOnce. Any replica can ask
// for a run, pause and resume, and see how each job is doing: these methods of
// a Runner only need the database.
//
// "Now" is the database's time as of the last heartbeat plus what the
// monotonic clock has counted since: a leader's own clock may step as it likes.
//
// An app that has a gocron scheduler already can keep it and pass the lock to
// gocron.WithDistributedElector; it then has one leader, but no ledger, no
// catch-up and no drain.
package tasks
