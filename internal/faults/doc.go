// Package faults tries hard to break the scheduler lock, and checks whether it
// held.
//
// It starts several real processes of a small program built on this module
// (startup, tasks, a store), hurts them and their database (see [Fault] and
// the functions that make them), and checks the history that they wrote.
//
// # The history
//
// Every process writes two files of its own, which survive its kill. The log
// has one record a line, each written by one write(2): the boot time (it goes
// on while a machine is suspended, and is the same for all processes), what
// happened, term, job, tick, attempt. The beliefs file has one line for each
// time that the process believed to lead; a goroutine asks [schedlock.Lock.IsLeader]
// every two milliseconds, or five in the default run, and overwrites the line.
//
// A belief is what is certain: from the end of the first check that said yes to
// the beginning of the last one. A lease never comes back to life, so a process
// that leads in a term before and after a moment led at that moment too, even
// if it was stopped meanwhile. Times around a check would prove nothing: a
// process may be put aside by the kernel between the check and the clock.
//
// One process in each cluster of three is quiet: it looks whether it has a lease, but
// never calls IsLeader, which itself ends a lease that is past its deadline and
// would hide that nobody else did. Its word is trusted to 100 ms.
//
// # The jobs
//
// There is one job for each way to catch up: Latest, All, Skip. One queues its
// runs, one fails in half of its runs, once, twice or always, so that there are
// retries under every fault, and one must not be repeated. Users ask a random
// process for a run now and then, and sometimes they pause everything for a
// moment, whatever else happens; at the end nothing is asked any more, and no
// request may wait.
//
// # The rules
//
// See [Check]: each is a function over the history, and was seen to fail. Three
// of them look at the tables that are there in the end: the ledger has each tick
// up to the job's cursor once, run or skipped; it has each request once; and it
// agrees with what the processes wrote down. What a restored backup has forgotten
// is left out; a backup keeps the ticks without a gap all the same.
//
// No run may start between the time of a pause and the order to resume. The
// times are the database's, so no tolerance is needed where both are known.
// Pauses are left out that an earlier order to resume, whose answer was lost,
// may have ended.
//
// In a file of its own each process writes down its statements on the lock row, and
// the answers. One row must be able to give them, in some order, by the steps of the model: see
// package linear. Faults that write into the row themselves say so (Rewrites).
//
// # Named locks and a queue
//
// In some clusters each process also competes for two named locks, which it
// holds for a moment or, now and then, for longer than their TTL; and it adds
// tasks to a queue and works them off: some fail, some are given back, and over
// some the worker sleeps past its time-out. It writes that down in a third file.
// A hold is proven as a belief is, by [named.Lock.Check] or, in the quiet
// process, by the context of the function under the lock; a captured task is
// held while something is left of [queue.Task.Left]. So a process that was
// stopped need not be excused: what it did not look at proves nothing. What it
// writes under a lock begins with the fence; once the lock is lost, with the
// database's own, past what the lock knows.
//
// [LockFaults] hit whoever holds the first lock, leader or not. A promoted replica
// excuses no second holder, and no term that is had twice. Where a server's
// clock was set while something was held, only the fence is asked for: the
// packages promise no more.
//
// # Load
//
// One test injects no fault, but much at once, all of it on the scheduler's own
// database: a thousand requests of a paused job wait, and others are asked for;
// 60 lockers wait for one name, eight workers work off a queue; stderr is a full
// pipe that nobody reads, and OnRun never returns. Each tick of the other jobs
// must run, and a leader that is told to stop must hand over within a second. With
// -faults.load that is asked for; without it, beside other tests, only that most
// ticks run.
//
// # What the harness knows about SQLite
//
// A process that is stopped (SIGSTOP) inside a write transaction blocks every
// writer until it is resumed or killed. This is a limit of SQLite that the
// documentation states; no bound holds meanwhile. The harness therefore asks,
// after each SIGSTOP, whether the write lock is free; if not it resumes the
// process for a few milliseconds and stops it again.
//
// # Running it
//
// In the default run, which shares the processors with other tests, the processes
// look at locks, and users and workers do something, less often than in a soak; on a server
// leases and heartbeats are shorter; and some clusters there have two processes.
//
//	# every fault of SQLite twice, of PostgreSQL once or more; the same choices again
//	go test ./internal/faults/
//	go test ./internal/faults/ -faults.seed=7 -v
//	go test ./internal/faults/ -run Soak -timeout 0 -faults.soak=10m -faults.report=table.md
//
//	go test ./internal/faults/ -run Soak -timeout 0 -faults.soak=2m \
//		-faults.only='side files|hard link'
//	go test ./internal/faults/ -run Load -timeout 0 -faults.load=2m
//	go test ./internal/faults/ -run SideFiles -faults.orders=20
//
// A seed repeats what the harness chooses, not what the kernel does. It takes
// root to fill a disk and to make a file immutable; a fault that cannot be
// injected is named in the table, with the reason. To every bound of the
// design -faults.slack is added (half a second in a soak; ten seconds, and a leader
// that must stay may lose its lease, beside all
// the other tests of go test ./..., for a machine that does other
// things too), and twice the longest time for which the machine itself stood
// still; -faults.slack=0 judges by the design alone.
//
//	go test ./internal/faults/ -run Soak -timeout 0 -faults.soak=4m -faults.database=postgres
//
// PostgreSQL's servers are real ones (internal/pgtest). What it suffers beside
// the faults of processes and rows is in [PostgresFaults].
//
//	go test ./internal/faults/ -run Soak -timeout 0 -faults.soak=4m -faults.database=mysql
//	go test ./internal/faults/ -run Soak -timeout 0 -faults.soak=4m -faults.database=galera \
//		-faults.clusters=1
//
// MariaDB's too (internal/mytest): one server for each cluster, or a node of Galera for
// each process ([GaleraFaults]). In half of the clusters on one server the end of a session
// is a sign of death. Nodes draw the ids of rows apart, so there the order of the rows does
// not tell the order of the commits: each fenced write also says how many of earlier terms
// it has seen, and no more may come.
//
// Another database needs a [Database] with a dialect, its backend, and its own faults.
package faults
