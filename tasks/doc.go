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
