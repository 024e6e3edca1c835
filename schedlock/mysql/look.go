package mysql

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"example.com/schedlock/internal/columns"
	"example.com/schedlock/schedlock/driver"
)

const (
	// sqlServer names the server's history: after a promotion the last commits may be
	// missing. It is which server this is, whose server_uid follows its host and port; on
	// Galera which cluster.
	sqlServer = `CONVERT(coalesce(@schedlock_cluster,
           concat(@@server_uid, ' ', @@global.server_id)) USING utf8mb4)`

	// sqlProcess names the server's process. See sqlSetProcess.
	sqlProcess = `CONVERT(@schedlock_process USING utf8mb4)`

	// sqlIncarnation is Snapshot.Incarnation. A node of Galera that was out of the primary
	// component begins anew, as all do when it is made anew: what they have may be older.
	sqlIncarnation = `concat(` + sqlProcess + `, CASE WHEN @schedlock_cluster IS NULL THEN ''
           ELSE concat(' ', (SELECT g.variable_value FROM information_schema.global_status g
                             WHERE g.variable_name = 'WSREP_CLUSTER_CONF_ID')) END)`

	// sqlOrigin is the server on which the tables were made.
	sqlOrigin = `(SELECT o.server FROM scheduler_lock_schema o WHERE o.version = 1)`
)

// galera begins the name of a cluster.
const galera = "galera"

// on is a query for the server of x. Where there is no cluster it does not ask for its status:
// that is a table, which the server would open for nothing.
func (x *session) on(query string) string {
	if strings.HasPrefix(x.server, galera) {
		return query
	}
	return strings.Replace(query, sqlIncarnation, sqlProcess, 1)
}

// What a session never changes is asked once, when it begins.
const (
	// sqlSetCluster is NULL without Galera. A node that is not ready does not know its cluster.
	sqlSetCluster = `(SELECT concat('` + galera + ` ', g.variable_value)
        FROM information_schema.global_variables v, information_schema.global_status g
        WHERE v.variable_name = 'WSREP_ON' AND v.variable_value = 'ON'
          AND g.variable_name = 'WSREP_CLUSTER_STATE_UUID')`

	// sqlSetProcess is when the process has started, by its own clock then (the difference
	// stays the same, also when the clock is set), and the clock sequence of its UUIDs, which
	// is random: a machine without a clock of its own may start twice at the same time.
	sqlSetProcess = `concat(@@server_uid, ' ', @@global.server_id, ' ', substr(uuid(), 20, 4), ' ',
        unix_timestamp() - (SELECT CAST(g.variable_value AS INTEGER)
                            FROM information_schema.global_status g
                            WHERE g.variable_name = 'UPTIME'))`
)

// sqlLook reads the newest term and the lock row from one snapshot. sqlLookAtSession
// asks for the state of the holder's session, too.
const (
	sqlLook = sqlView + sqlFrom

	sqlLookAtSession = sqlView + `, ` + sqlSessionState + sqlFrom

	sqlView = `
SELECT ` + columns.LockColumns + `, l.grace_ms, l.ttl_only, l.session_lock, l.session_server,
       ` + columns.TermColumns + `,
       UTC_TIMESTAMP(6), ` + sqlIncarnation + `, ` + sqlProcess + `,
       coalesce(CASE WHEN t.term IS NULL THEN ` + sqlOrigin + `
                     WHEN l.term = t.term THEN l.server ELSE t.server END <> ` + sqlServer + `,
                false)`

	sqlFrom = `
FROM (SELECT 1) AS one
LEFT JOIN scheduler_terms t ON t.term = (SELECT max(o.term) FROM scheduler_terms o)
LEFT JOIN scheduler_lock l ON l.id = 1`
)

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (driver.Snapshot, error) {
	return s.look(ctx, sqlLook, false)
}

// LookAtSession implements driver.Store.
func (s *Store) LookAtSession(ctx context.Context) (driver.Snapshot, error) {
	return s.look(ctx, sqlLookAtSession, true)
}

func (s *Store) look(ctx context.Context, query string,
	closely bool) (view driver.Snapshot, err error) {
	err = s.use(ctx, func(ctx context.Context, conn *sql.Conn, x *session) error {
		var (
			lock                  columns.Lock
			newest                columns.Term
			now                   columns.Time
			incarnation, process  sql.NullString
			grace                 sql.NullInt64
			ttlOnly, name, server sql.NullString
			ended                 sql.NullBool
		)
		dest := slices.Concat(lock.Dest(), []any{&grace, &ttlOnly, &name, &server}, newest.Dest(),
			[]any{&now, &incarnation, &process, &view.FailedOver})
		if closely {
			dest = append(dest, &ended)
		}
		if err := row(ctx, conn, x.on(query), nil, dest...); err != nil {
			return err
		}
		view.Row, view.Newest, view.Now = lock.Row(), newest.Newest(), now.Time
		view.Incarnation = incarnation.String
		if view.Row == nil {
			return nil
		}
		view.Row.Grace, view.Row.TTLOnly = columns.Millis(grace.Int64), ttlOnly.String
		if closely {
			view.Row.Session = name.String
		}
		here := process.Valid && server == process && x.own
		if here && ended.Bool {
			view.Sign = driver.SignEnded
		}
		if here && name.Valid && !s.polling {
			view.Probe = probe{process.String, name.String}
		}
		return nil
	})
	if err != nil {
		return driver.Snapshot{}, err
	}
	return view, nil
}
