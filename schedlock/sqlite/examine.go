package sqlite

import (
	"example.com/schedlock/schedlock"
)

// What follows is, with [Read], for a program that examines a database file
// from outside.

// DatabasePath returns the path that Open would use for dsn: unescaped, not
// resolved, without the driver's parameters. The errors are those of
// [CheckDSN].
func DatabasePath(dsn string) (string, error) {
	src, err := parseDSN(dsn)
	return src.path, err
}

// CheckMount returns the error with which Open refuses an existing database
// file because of where it lies: on a network file system, or as a single file
// mounted into a container. path is absolute, with symbolic links resolved. It
// opens nothing.
func CheckMount(path string) error { return checkMount(path) }

// A LeaseProbe is what the lease file shows of one holder.
type LeaseProbe struct {
	ID     string // of the lease file, as the holder that locked it has written it into its row
	Held   bool   // somebody holds the byte of the token
	Others bool   // somebody holds a byte of another token; asked only if that of the token is free
}

// ProbeLease asks the lease file of a database about a token. dbPath is
// absolute, with symbolic links resolved. It makes and locks nothing, and may
// take 5 ms. The error wraps fs.ErrNotExist if there is no lease file, and
// errors.ErrUnsupported where a lease file would prove nothing.
func ProbeLease(dbPath string, token schedlock.Token) (LeaseProbe, error) {
	f, err := findLeaseFile(dbPath)
	if err != nil {
		return LeaseProbe{}, err
	}
	s, err := f.probe(token)
	return LeaseProbe{ID: s.id, Held: s.held, Others: s.others}, err
}
