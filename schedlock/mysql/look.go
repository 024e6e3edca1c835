package mysql

import (
	"context"
	"database/sql"
	"slices"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

const (
	// sqlServer is which server this is. Its server_uid follows its host and port.
	sqlServer = `concat(@@server_uid, ' ', @@global.server_id)`

	// sqlIncarnation is that and when the server has started, by its own clock then: the
	// difference stays the same, also when the clock is set.
	sqlIncarnation = `concat(` + sqlServer + `, ' ', unix_timestamp() - (
           SELECT CAST(g.variable_value AS INTEGER) FROM information_schema.global_status g
           WHERE g.variable_name = 'UPTIME'))`

	// sqlOrigin is the server on which the tables were made.
	sqlOrigin = `(SELECT o.server FROM scheduler_lock_schema o WHERE o.version = 1)`
)

// sqlLook reads the newest term and the lock row from one snapshot.
const sqlLook = `
SELECT ` + columns.LockColumns + `,
       ` + columns.TermColumns + `,
       UTC_TIMESTAMP(6), ` + sqlIncarnation + `,
       coalesce(CASE WHEN t.term IS NULL THEN ` + sqlOrigin + ` ELSE t.server END <> ` + sqlServer + `,
                false)
FROM (SELECT 1) AS one
LEFT JOIN scheduler_terms t ON t.term = (SELECT max(o.term) FROM scheduler_terms o)
LEFT JOIN scheduler_lock l ON l.id = 1`

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (driver.Snapshot, error) {
	var (
		lock        columns.Lock
		newest      columns.Term
		now         columns.Time
		incarnation sql.NullString
		view        driver.Snapshot
	)
	err := s.lock.row(ctx, sqlLook, nil, slices.Concat(lock.Dest(), newest.Dest(),
		[]any{&now, &incarnation, &view.FailedOver})...)
	if err != nil {
		return driver.Snapshot{}, s.explain(err)
	}
	view.Row, view.Newest, view.Now = lock.Row(), newest.Newest(), now.Time
	view.Incarnation = incarnation.String
	return view, nil
}
