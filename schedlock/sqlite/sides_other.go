//go:build !linux

package sqlite

// followSides leaves the -wal and -shm files as the driver makes them.
func (s *Store) followSides() {}
