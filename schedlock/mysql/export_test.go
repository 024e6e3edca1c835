package mysql

import "database/sql"

// Shared is the pool that serves all but the lock and its runs.
func (s *Store) Shared() *sql.DB { return s.shared.db }
