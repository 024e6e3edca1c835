package mysql

import (
	"context"
	"fmt"
	"strings"

	"example.com/schedlock/schedlock/driver"
)

// rights are what the lock and its jobs need, with a column of each table. Named locks, queues and
// the list of replicas have a GRANT of their own.
var rights = []struct{ table, column, needs string }{
	{"scheduler_lock", "id", "SELECT INSERT UPDATE DELETE"},
	{"scheduler_terms", "term", "SELECT INSERT UPDATE DELETE"},
	{"scheduler_fence", "term", "SELECT INSERT DELETE"},
	{"scheduler_fenced", "id", "SELECT INSERT DELETE"},
	{"scheduler_jobs", "job", "SELECT INSERT UPDATE"},
	{"scheduler_runs", "id", "SELECT INSERT UPDATE DELETE"},
	{"scheduler_attempts", "attempt", "SELECT INSERT DELETE"},
	{"scheduler_requests", "job", "SELECT INSERT DELETE"},
	{"scheduler_pauses", "job", "SELECT INSERT UPDATE"},
	{"scheduler_gate", "id", "SELECT"},
	{"scheduler_audit", "id", "SELECT INSERT DELETE"},
	{"scheduler_replicas", "instance", "SELECT"},
	{"scheduler_lock_schema", "version", "SELECT"},
}

// asks are statements for which the server asks for the same right as for those that write.
var asks = strings.NewReplacer("SELECT", "EXPLAIN SELECT %[2]s FROM %[1]s",
	"INSERT", "EXPLAIN INSERT INTO %[1]s () VALUES ()",
	"UPDATE", "EXPLAIN UPDATE %[1]s SET %[2]s = %[2]s WHERE false",
	"DELETE", "EXPLAIN DELETE FROM %[1]s WHERE false")

// Check returns an error that names what the user may not do, and the GRANT that is
// missing, nil if it has all it needs. It writes nothing. A read-only server is an error that
// a retry may mend.
func (s *Store) Check(ctx context.Context) error {
	var missing []string
	for _, t := range rights {
		var lacks []string
		for right := range strings.FieldsSeq(t.needs) {
			_, err := s.shared.exec(ctx, fmt.Sprintf(asks.Replace(right), t.table, t.column))
			switch n := number(err); {
			case n == errNoRight || n == errNoColumnUse:
				lacks = append(lacks, right)
			case err != nil:
				return s.explain(err)
			}
		}
		if lacks != nil {
			missing = append(missing, "GRANT "+strings.Join(lacks, ", ")+" ON "+
				quote(s.config.DBName)+"."+t.table)
		}
	}
	if missing == nil {
		return nil
	}
	var user string
	if err := s.shared.row(ctx, `SELECT current_user()`, nil, &user); err != nil {
		return s.explain(err)
	}
	name, host, _ := strings.Cut(user, "@")
	to := fmt.Sprintf(" TO '%s'@'%s'", name, host)
	return fmt.Errorf("%w: %s: a right is missing: %s", driver.ErrPermanent, s.name(),
		strings.Join(missing, to+"; ")+to)
}
