//go:build !linux

package sqlite

// bootNow is the clock by which holds are judged: the wall clock here, since
// the system has none that all processes share, that counts suspend, and that
// nobody can set. A clock that is set forward ends holds early.
func bootNow() (ms int64, bootID string) { return wallNow() }
