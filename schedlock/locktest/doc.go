// Package locktest has the contract of a Store as a numbered list, and a suite
// that tests a store for it. Call [Run] from a test of your own store:
//
//	func TestConformance(t *testing.T) {
//		locktest.Run(t, func(t testing.TB) locktest.Database {
//			name := newDatabase(t) // empty, with its tables
//			return locktest.Database{
//				Open:    func(t testing.TB) schedlock.Store { return open(t, name) },
//				Without: []locktest.Feature{locktest.Edits, locktest.Backups, locktest.Fences, locktest.Hints, locktest.Ledger},
//			}
//		})
//	}
//
// A rule that fails says what breaks in a fleet. What a store does after it was
// closed is not in the contract.
//
// Of the lock (schedlock.Store, FencedStore and HintedStore):
//
//  1. Look on an empty database returns no row, no term and the database's
//     clock, without an error.
//  2. Look returns the row and the newest term of one moment, whoever writes
//     meanwhile.
//  3. Look and Terms change nothing.
//  4. Look with a context that has ended returns an error, and soon.
//  5. A token column that holds no token gives the zero Token and the text in
//     RawToken, and can be compared and swapped.
//  6. View.Now is the database's clock: it goes on between two looks, it is
//     that of the stamps, and all times are in UTC.
//  7. Acquire writes the lock row, with beat 0 and state leading, and an open
//     term, both with the claim's token and owner and the term granted.
//  8. The row keeps timings to the millisecond, any pid, and host names of up
//     to 255 bytes with quotes and any letters.
//  9. Acquire that judged a row returns ErrMoved unless token, term and beat
//     are still the same.
//  10. Acquire that judged no row returns ErrMoved, and deletes nothing, if
//     there is a row or the newest term is another.
//  11. An Acquire that returns ErrMoved has written nothing, neither to the row
//     nor to the history.
//  12. Of many that judged the same row at the same time exactly one gets the
//     lock, the others ErrMoved.
//  13. Of many that judged the lock free at the same time exactly one gets it,
//     the others ErrMoved.
//  14. Every term is higher than the one before, after a take-over as after a
//     release, and not below the database's clock in Unix ms.
//  15. The term granted is at least claim.MinTerm, and one more than the last
//     where that is higher.
//  16. Terms grow after the row was deleted, its term was raised, or the
//     history was emptied (then by MinTerm).
//  17. After a backup was restored Acquire works from what is there, and grants
//     at least MinTerm.
//  18. Acquire writes the end of every open term, with the claim's reason, and
//     who took over.
//  19. Acquire after a release leaves the end as its holder wrote it, and adds
//     who took over.
//  20. An Acquire or Release that fails, at whatever moment its context ends,
//     has written all or nothing.
//  21. Heartbeat adds one to the beat, sets the stamp to the clock that it
//     returns, and touches nothing else.
//  22. Heartbeat writes the state it is given, and returns what stands in the
//     row.
//  23. Heartbeat leaves and returns StateRevoked, whatever state it is given.
//  24. Heartbeat with another token or another term returns ErrLost and changes
//     nothing.
//  25. Heartbeat without a row returns ErrLost and inserts nothing.
//  26. Heartbeats at the same time each add one.
//  27. Release deletes the row only if pid, hostname, token and term all match,
//     and otherwise returns false without an error.
//  28. Release deletes the row and writes the end of the term with its reason;
//     a new claim succeeds at once.
//  29. Release again returns false, without an error, and changes nothing.
//  30. Release of an old lease changes neither the row nor the term of its
//     successor, even if that looks alike.
//  31. Release of a lease whose row was deleted or edited returns false, leaves
//     the row, and writes the end of the lease's own term.
//  32. Terms returns at most limit terms, newest first; none for a limit of 0
//     or less.
//  33. The newest 1,000 terms stay, older ones go.
//  34. Acquire, Heartbeat, Release and Terms with a context that has ended
//     return an error, soon, and write nothing.
//  35. Fence of the holder returns nil, the transaction can be committed or
//     rolled back, and the row stays as it was.
//  36. Fence returns ErrLost for another token, another term, the lease before,
//     and without a row.
//  37. While a fenced transaction is open nobody takes over; after it has ended
//     a claim succeeds, and the old lease's Fence returns ErrLost.
//  38. Acquire in face of a fenced transaction returns an error, long before a
//     context of many seconds ends.
//  39. If Fence returned nil the lock does not change hands before the
//     transaction ends, however close a take-over comes.
//  40. A heartbeat succeeds once a fenced transaction has ended, and, where
//     that was promised, already before.
//  41. Fence of something that is no transaction of the store's kind returns
//     ErrNoFence.
//  42. AwaitHint returns soon after its context has ended.
//  43. AwaitHint returns soon after another handle released the lock.
//
// Of the run ledger (ledger.Store):
//
//  44. Decide with From zero inserts the job's row; it returns ErrMoved if
//     there is one, and a Decide with From returns ErrMoved if there is none.
//  45. Decide returns ErrLost, and writes nothing, for another token, another
//     term, the lease before, and without a row.
//  46. Decide returns ErrMoved, and writes nothing, unless the cursor stands at
//     From, to the microsecond; and the cursor never goes back.
//  47. A second Decide of a tick that is in the ledger returns started = false;
//     the cursor moves all the same. Other jobs are no concern.
//  48. Of many decisions about the same tick at the same time exactly one is
//     told that it started it.
//  49. Decide returns the run as Runs does: in progress, attempt 1, with the
//     id, the tick, the database's time, and the holder's term, pid and
//     hostname.
//  50. A range of skipped ticks is one row, with its last tick, count and
//     reason; a single one has neither last tick nor count; one that is in the
//     ledger stays as it was.
//  51. Jobs returns every job with the spec and the cursor of its last
//     decision.
//  52. Finish changes only a run that is in progress for that id, term and
//     attempt, and tells whether there was one; status and time of the end are
//     kept.
//  53. Finish needs no lock: a leader that has lost it still records how its
//     runs ended.
//  54. Finish keeps an error's text with line breaks, quotes and any letters,
//     of 10,000 bytes; text that the database cannot hold (NUL, no UTF-8) is
//     changed, and the end is recorded all the same.
//  55. Abandon marks the runs that other terms left in progress, with the time,
//     returns them, and touches no other.
//  56. Abandon returns ErrLost, and writes nothing, unless its ref holds the
//     lock.
//  57. Runs returns at most limit runs, newest scheduled time first, of one job
//     or of all; none for a limit of 0 or less.
//  58. A tick is an instant: given in any time zone it is read back in UTC,
//     with all its microseconds, also long ago and far ahead.
//  59. Jobs, Decide, Finish, Abandon and Runs with a context that has ended
//     return an error, soon, and write nothing.
package locktest
