// Package locktest has the contract of a Store as the numbered lists below, and a suite
// that tests a store for it. Call [Run] from a test of your own store:
//
//	func TestConformance(t *testing.T) {
//		locktest.Run(t, func(t testing.TB) locktest.Database {
//			name := newDatabase(t) // empty, with its tables
//			return locktest.Database{
//				Open:    func(t testing.TB) driver.Store { return open(t, name) },
//				Without: []locktest.Feature{locktest.Edits, locktest.Backups, locktest.Fences,
//					locktest.Hints, locktest.Ledger, locktest.Revocations},
//			}
//		})
//	}
//
// If each database is one of its own, that function may begin with
// t.(*testing.T).Parallel(): then the rules wait at the same time.
//
// A rule has a number, a text, and what breaks in a fleet if a store does not keep it.
// It stands beside its test, in the file of its subject: acquire.go, heartbeat.go,
// ledger.go and so on. [Rules] returns all of them. A test that fails shows its rule.
//
// [RunNamed] does the same for a store of named locks, whose rules are [NamedRules], and
// [RunQueue] for one of queues, whose rules are [QueueRules].
//
// What a store does after it was closed is not in the contract.
package locktest
