// Package simulate has no code but tests: they let whole fleets live in simulated time. A fleet
// is two to four apps of package startup, with their locks, runners and jobs, on one store in
// memory, in one testing/synctest bubble. A minute of its life takes some milliseconds.
//
// A seed makes a plan, which is data: the replicas, and what goes wrong when. The network to the
// database loses or delays requests and answers, of one kind of statement or of all. A full disk
// takes no writes. Replicas crash, stand still, sleep with their machine, leave and come back.
// Their clocks run at different rates, and are set, as is the database's. Their sessions end, and
// they are told late. Jobs do not hear that they must end. An operator triggers, pauses and
// revokes, spoils the lock row, and restores backups. Then all faults end.
//
// Each history is judged by the rules of package faults, which knows no processes but their
// records, and by some that only a simulation can ask exactly: at the moment of each election
// nobody else holds a lease; when all have stopped, no error, no row and no goroutine is left.
//
//	go test ./internal/simulate                                        a second of histories
//	SCHEDLOCK_TEST_LONG=1 go test ./internal/simulate                  ten seconds, as CI does
//	go test ./internal/simulate -run Histories -simulate.for=1h -timeout 0 -v
//	go test ./internal/simulate -run Histories -simulate.seed=42 -v    one of them, with its trace
//
// A history that breaks a rule is shrunk: faults are taken out of its plan as long as it still
// breaks one. The plan that is left is printed as it stands in the table of found_test.go, which
// is where it stays as a test.
//
// A seed always gives the same plan, and each fault begins and ends at its planned moment. What
// the goroutines of one moment do first is up to Go's scheduler, and tokens and some pauses are
// random. So two runs of a plan may differ, and a shrunk plan may need a few runs to be red.
package simulate
