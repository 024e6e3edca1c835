package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/schedlock/schedlock/driver"
)

// Row-level security hides rows without a word: to a role that it concerns, a
// lock that is held looks free, and a pause is not there. Nobody can tell a
// policy that hides nothing, so none is accepted for the role of the lock. Where
// our settings are in force (see isolation.go) the server itself refuses what a
// policy concerns. That also matters for prepared statements: one that is prepared
// under a policy goes on hiding rows after the role was excepted.

// secured are the tables in which a row that is hidden would mislead.
var secured = []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs", "scheduler_runs",
	"scheduler_requests", "scheduler_pauses", "scheduler_lock_schema"}

var (
	// sqlHidden is whether a policy may hide rows from this role. It is asked
	// in each statement of the lock that judges by what it does not find: other
	// tables than its own matter too.
	sqlHidden = `(row_security_active('` + strings.Join(secured,
		`'::regclass) OR row_security_active('`) + `'::regclass))`

	sqlHiddenIn = `
SELECT current_user, string_agg(t.name, ',' ORDER BY t.name)
FROM unnest($1::text[]) AS t (name) WHERE row_security_active(to_regclass(t.name)::oid)`
)

// concealed is the error for a fence that finds no row, where a policy may hide it
// from the role of the caller's transaction; nil if none does. query runs a statement
// in that transaction.
func concealed(query func(query string, args ...any) scanner, table string) error {
	var active bool
	if err := query(`SELECT row_security_active('` + table +
		`'::regclass)`).Scan(&active); err != nil || !active {
		return err
	}
	return fmt.Errorf("%w: row-level security is active on %s for the role of the transaction, "+
		"and may hide the lock's row: "+
		"ALTER ROLE … BYPASSRLS, or ALTER TABLE %[2]s DISABLE ROW LEVEL SECURITY",
		driver.ErrPermanent, table)
}

// hidden is the error for a role from which a policy may hide rows, nil if none
// does.
func hidden(ctx context.Context, on committed) error {
	var (
		role string
		list pgtype.Text
	)
	err := on.QueryRow(ctx, sqlHiddenIn, pgx.QueryExecModeExec, secured).Scan(&role, &list)
	if err != nil || !list.Valid {
		return err
	}
	tables := strings.Split(list.String, ",")
	return fmt.Errorf("%w: row-level security is active for role %q on %s, and may hide rows: "+
		"who holds the lock cannot be told. As a superuser: ALTER ROLE %q BYPASSRLS; "+
		"or as the owner of the tables: ALTER TABLE %s DISABLE ROW LEVEL SECURITY",
		driver.ErrPermanent, role, strings.Join(tables, ", "), role,
		strings.Join(tables, " DISABLE ROW LEVEL SECURITY; ALTER TABLE "))
}
