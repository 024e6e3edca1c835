// Package named has locks by name, in the database that the app already has:
// any number of them, besides the scheduler's lock of package schedlock and
// built on the same ideas.
//
//	locks, err := named.New(store.Named()) // of a store on SQLite, PostgreSQL or MariaDB
//	err = locks.WithLock(ctx, "import", func(ctx context.Context, lock *named.Lock) error {
//		return importLists(ctx)
//	})
//
// There are four kinds, which never collide on a name:
//
//   - a lock ([Locks.TryLock], [Locks.Lock], [Locks.WithLock]) is held while
//     work is done, and kept alive, or extended by hand;
//   - a task lock ([Locks.TryTask], [Locks.WithTask]) is for periodic work on
//     replicas whose clocks differ: it is held at least, and at most, for a
//     time;
//   - a time-out lock ([Locks.OncePer]) is taken and never released: it can be
//     taken again after its time;
//   - an [Election] chooses a leader for whoever needs one besides the
//     scheduler's.
//
// # The row
//
// Each name of a kind has one row in the table named_locks. Ownership is the
// token, 128 random bits drawn anew for every acquisition; pid and hostname are
// only shown. The term is the fencing token of the name: it grows with every
// acquisition, over release, expiry, clean-up and restart. A row is free when
// it was released or has expired; taking a free one is one statement, which of
// many at the same time lets one succeed. What has expired stays expired: it is
// never extended, though nobody may have taken it.
//
// # Time
//
// The database judges when a row expires: PostgreSQL by the server's clock,
// SQLite by a clock of the machine that nobody can set and that goes on in
// suspend. So no client's clock matters, however wrong it is. The holder trusts
// its lock for ¾ TTL from when the last success was *sent*, on its own clock
// that nobody can set: its context ends before another can have the lock, with
// ¼ TTL for the work to stop. On loss the order is always: no longer held;
// context cancelled; and only then the database.
//
// If that clock is set back, a lock whose holder has died ends at the latest a
// TTL after the next attempt to take it: more than a TTL is left of no lock.
//
// # After a fail-over
//
// A PostgreSQL server that was promoted may lack the last acquisitions of the old
// one, whose holders still trust their locks. So the first attempt on it writes
// down since when it serves, and nobody takes any name, whatever its row says and
// if it has none, before the TTL has passed since then: the longer of the last
// holder's and one's own, a day at the most. TryLock, TryTask and OncePer return a
// *HeldError that says so; whoever waits waits for that, too, and counts it by
// its own clock besides. Use one TTL for one name. Whoever holds a lock that the
// promoted server knows goes on. All terms after a fail-over are above all before
// it, also those that were lost.
//
// # What this does not protect from
//
// Clock rates must agree within 10 %. On PostgreSQL the server's clock must not
// be set forward by much while locks are held, or less than a TTL after a
// fail-over; nor, where the system has no clock as above (other than Linux), the
// machine's with SQLite. An old primary that goes on serving beside the promoted
// one has locks of its own. Work that
// ignores its cancelled context, a process or a virtual machine that is paused
// for longer than the TTL, and what was sent to an outside system before, can
// overlap with the next holder. In the database [Lock.Fence] protects, and
// outside systems that can compare numbers are protected by [Lock.Term].
//
// Locks are not reentrant. Of several that wait any may be next. Whoever dies
// with a lock keeps the others out until its TTL has passed: unlike that of the
// scheduler's leader, its death is not looked for.
package named
