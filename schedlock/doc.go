// Package schedlock makes sure that exactly one replica of a web app runs its
// background scheduler, by one row in the database that the app already has.
//
// # The life of a replica
//
//	            Wait, Acquire             taken
//	starting ───────────────▶ standby ───────────▶ leading
//	                             ▲                    │ │
//	                             │  lost: context     │ │ Drain: starts nothing new,
//	                             │  cancelled, work   │ │ running work goes on
//	                             │  returns, Release  │ ▼
//	                             ├────────────────────┘ draining ──▶ stopped
//	                             └──────────────────────── Release     Stop
//
// # The ways in
//
// Package startup embeds everything, and package tasks runs jobs. [Lock.Run]
// campaigns, calls a function while this replica leads, and campaigns again.
// [Lock.Start] and [Lock.Stop] do so in the background, for a scheduler that asks
// [Lock.IsLeader] before each run. [Lock.Wait] and [Lock.Acquire] give one lease.
// An operator's order to leave reaches all of them.
//
// # The lock row
//
// Table scheduler_lock has at most one row (id = 1, by a CHECK). Who put it
// there is the holder: it has the lease. Ownership is the token, 128 random
// bits drawn anew for every acquisition. Pid and hostname are checked besides
// and shown, but in containers every process is pid 1. Every acquisition is a
// term, whose number only grows: it is the fencing token. The holder adds one
// to the row's beat with every heartbeat.
//
// # The holder
//
// A lease is trusted until the renew deadline (¾ TTL by default) has passed
// since the last heartbeat that succeeded, or the acquisition, was sent. It is
// counted from sending, not from the answer, and on a clock that goes on while
// the machine is suspended (on Linux; elsewhere suspend is noticed only by the
// next heartbeat). Past it the lease has ended for good: a late answer does
// not revive it. TTL − renew deadline is what jobs have to stop. [Lock.IsLeader]
// is that check; it costs one time.Now() and stands in front of every job.
//
// A lease renews itself, by a heartbeat every heartbeat interval. There is one
// renewer at a time: who takes the renewal over ([Lease.TakeRenewal]), as package
// tasks does for its gocron job, has it alone.
//
// A heartbeat that finds no row with its token and term has lost the lock. It
// never inserts it again. One that fails otherwise is repeated until the renew
// deadline.
//
// With [WithSessionGrace] the holder is suspended, which is no end, while it has
// lost sight of its session with the database: the check fails, what runs goes
// on. A heartbeat on a new session ends that, or half a grace the lease.
//
// When a lease ends, by loss or by [Lease.Release], the order is always the
// same: no longer leader; context cancelled; and only then the database. In
// the code only an ended lease has a method that gives up the row.
//
// # The standby
//
// A standby takes the lock in four cases. It is free: there is no row, and the
// newest term has an end. Its holder is gone: its own term has an end, or the
// store can prove that its process is dead. Or the watch is complete: two of
// the standby's own looks, the second sent at least the row's TTL after the
// first was answered, saw the same token, term and beat. Or, with
// [WithSessionGrace], the same for the grace, if all the while the server showed
// the holder's session ended. No clock value
// decides: stamps never shorten a watch, and a stamp in the future never
// lengthens it. The TTL is the holder's own, from its row, so that a fleet with
// mixed settings stays safe. A row that is missing although its term has no end
// (deleted by hand, a restored backup) is not free: the term's TTL must pass,
// or its holder must have noticed and written the end.
//
// Taking it is one write transaction, a compare and swap: it deletes the row
// that was judged, by token, term and beat, and inserts ours. Of two standbys
// that judged the same row one gets [driver.ErrConflict].
//
// A one-shot [Lock.Acquire] says "held" at once if the row's stamp is fresh by
// the database's clock. Otherwise it does what a standby does.
//
// # What this does not protect from
//
// Clock rates must agree within 10 %; clock values need not agree at all. A job
// that ignores its cancelled context, a paused virtual machine, or a child
// process that outlives its parent can overlap with the next leader outside
// the database. Inside it [Lease.Fence] protects, and outside systems that can
// compare numbers are protected by [Lease.Term]. A database that was restored
// under a running fleet at the very moment of a take-over is not protected
// against. Where the machine has no clock that counts suspend, a holder that
// was suspended past its deadline trusts its lease until its next heartbeat is
// due.
//
// docs/architecture.md has the argument why two leaders are excluded.
package schedlock
