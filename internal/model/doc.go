// Package model explores the protocol of the lock: not some schedules, but every order
// in which things can happen. It is no part of the lock. Its tests are what it is for.
//
// A run is a set of rules and a number of faults. The search begins with replicas that
// have done nothing. In each state it tries everything that may happen next: a statement
// is sent, applied, answered or lost, a replica crashes or hangs, a clock steps, a row is
// edited, a backup is restored, a tick of time passes. If it ends without finding a
// broken promise, no order of these events breaks one. Otherwise it shows one of the
// shortest.
//
// Half of the runs must hold. In the others a rule is missing, and the search must find
// what breaks: so each rule is needed. [Run.Missing] names it. A few show a limit that
// the documentation states.
//
// # What is modelled
//
// Five models, each a file with its rules, one with what can happen next, and one with
// its runs:
//
//   - lease: heartbeats, looks, claims and releases that travel; stamps and watches; the
//     byte of the lease file; the fence. docs/architecture.md argues for these rules.
//   - terms: how the next term is computed.
//   - forgetful: a database that loses what was not flushed or not replicated. Timelines,
//     claims by notification, and what a heartbeat vouches for after a fail-over.
//   - superseded: which held bytes of a lease file do not count.
//   - session: the end of a database session as a sign of death.
//
// The promises are OneLeader, TermsRise, FenceHolds, SomebodyLeads and ClocksMoveNothing.
//
// # What is left out
//
// Time is whole ticks: a TTL is 3 to 8 of them (20 for sessions), a renew deadline one or
// two less. A run has two or three replicas and one or two faults of a kind. So what
// needs more is not found. A database does one statement at a time (READ COMMITTED
// is modelled where it matters). All replicas have the same TTL. There are no jobs, but
// for the time that they take to stop. Orders to leave, queues and named locks are left
// out, and so are SQLite's own files: what opens a database anew, and what a power cut
// does to it.
//
// The rules here are written a second time, by hand. What real databases answer to claims,
// heartbeats and releases is compared with them ([Row.Apply]): that the code follows the
// others is for other tests to show. Some are rules that the code does not use: claims that trust a
// notification, releases that are not flushed, rows that are judged by their stamp. They
// say what would be safe, and what would not.
//
// # How to run it
//
//	go test ./internal/model                              the small runs
//	go test ./internal/model -timeout 0 -model.all        all of them: minutes, 2 GB
//	go test ./internal/model -v -run Verdict -model.run='deadline is the TTL'
//
// The last one shows what breaks:
//
//	t=0  A looks: no row
//	t=0  A knows what it saw, sends a claim (no row)
//	t=0  A claim applied: ok
//	...
//	t=6  B LEADS
//	two leaders
//
// Each line is an event, after t ticks of time. A, B and C are the replicas. FAULTS are in
// capitals, and so is LEADS.
//
// # How it searches
//
// Breadth first, over states that are small structs of bytes. Times are ages, which stop
// growing where no rule asks for more. Tokens and row versions are renamed in the order in
// which a state has them. So states are few, although a run may go on for ever. States
// that differ in the order of the replicas count as one, and what can't matter any more is
// erased. A test does without these two, and must come to the same verdicts.
//
// The file testdata/states.txt has the number of states of each run. It chooses the small
// ones, and shows which runs a change of a model has changed.
package model
