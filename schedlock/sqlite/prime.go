package sqlite

import (
	"context"
	"database/sql"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// primers are the statements of a take-over and of what ends the lease, besides those of row.
var primers = [...]string{sqlDeleteJudged, sqlEndNewest, sqlInsertLock, sqlInsertTerm, `COMMIT`,
	sqlHeartbeatLeading, sqlRelease, sqlEndTerm}

// prime does once for a connection what a take-over would else begin with, while a standby
// has nothing else to do: SQLite compiles each statement, and the driver syncs a -wal file
// twice at the first commit. What cannot be compiled is met again by whoever needs it. But Linux
// tells a descriptor only once that a write was lost, so the next durable commit gets that error.
func (s *Store) prime(ctx context.Context) {
	if s.primed.Load() {
		return
	}
	_ = s.use(ctx, func(ctx context.Context, conn *sql.Conn) error {
		s.primed.Store(true)
		for _, query := range primers {
			if _, err := s.prepare(ctx, query); err != nil {
				return err
			}
		}
		beside := s.files.sets.Load().beside.Load()
		return conn.Raw(func(conn any) error {
			c, ok := conn.(rawConn)
			if !ok {
				return nil
			}
			if _, err := s.prepareRow(c.Raw(), sqlNewest); err != nil || beside == nil {
				return err
			}
			journal, err := c.Raw().FileControl("main", sqlite3.FCNTL_JOURNAL_POINTER)
			if wal, ok := journal.(vfs.File); ok && err == nil {
				s.unsynced = wal.Sync(vfs.SYNC_NORMAL)
			}
			return err
		})
	})
}
