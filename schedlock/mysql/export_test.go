package mysql

import (
	"context"
	"database/sql"
)

// Setting reads a setting of the lock's session; -1 if it cannot.
func (s *Store) Setting(ctx context.Context, name string) int {
	value := -1
	_ = s.use(ctx, func(ctx context.Context, conn *sql.Conn, _ *session) error {
		return row(ctx, conn, `SELECT @@`+name, nil, &value)
	})
	return value
}

// What tests count on.
const (
	PoolSize  = poolSize
	WaitLimit = waitLimit
	PassOn    = passOn
)
