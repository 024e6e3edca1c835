package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver"
)

const fenceHelp = `It prints the SQL statement with which a program that schedlock exec runs guards
a transaction of its own, in the database of the lock. Run it first in the
transaction. If it returns or changes one row, the program still holds the lock,
and nobody else gets it before the transaction has ended. If it is no row, roll
back.

The statement has the token and the term of SCHEDLOCK_TOKEN, SCHEDLOCK_TERM and
SCHEDLOCK_NAME. The database is not opened: --db tells its kind.

Examples:
  schedlock fence --db app.db
`

// The variables of a command's environment.
const (
	variableName  = "SCHEDLOCK_NAME"
	variableTerm  = "SCHEDLOCK_TERM"
	variableToken = "SCHEDLOCK_TOKEN"
	variableKind  = "SCHEDLOCK_KIND"
)

// kindScheduler is the kind of the scheduler's own lock; the others are those of
// named locks.
const kindScheduler = "scheduler"

func fence(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		statement, err := t.fence()
		if err != nil {
			return 0, wrong("%v", err)
		}
		if t.json {
			t.encode(struct {
				SQL string `json:"sql"`
			}{statement})
		} else {
			fmt.Fprintln(t.out, statement)
		}
		return exitDone, nil
	}
}

// fence returns the statement: that of the stores, without what depends on the
// time. A lock that has ended, but that nobody has taken, passes: until the
// transaction has ended nobody takes it. All that stands in it was checked: a token is of
// hexadecimal digits, a term is a number, and a name is quoted.
func (t *tool) fence() (string, error) {
	value := func(name string) string { v, _ := t.lookup(name); return v }
	token, err := driver.ParseToken(value(variableToken))
	if err != nil {
		return "", fmt.Errorf("%s has no token: run it in a command of schedlock exec",
			variableToken)
	}
	term, err := strconv.ParseInt(value(variableTerm), 10, 64)
	if err != nil || term <= 0 {
		return "", fmt.Errorf("%s=%.40q is not a term", variableTerm, value(variableTerm))
	}
	table, which, same := "scheduler_lock", "id = 1", "beat = beat"
	if kind := value(variableKind); kind != kindScheduler {
		name := value(variableName)
		if err := names.Check(variableName, name); err != nil || name == "" {
			return "", fmt.Errorf("%s=%.40q is not the name of a lock", variableName, name)
		}
		table, same = "named_locks", "token = token"
		which = fmt.Sprintf("kind = %s AND name = %s", quoted(kind), quoted(name))
	}
	if isMySQL(t.dsn) {
		return fenceMySQL(value(variableKind), value(variableName), token, term), nil
	}
	which += fmt.Sprintf(" AND token = '%s' AND term = %d", token, term)
	if isPostgres(t.dsn) {
		if t.inside != "" {
			table = names.QuoteSchema(t.inside) + "." + table
		}
		return fmt.Sprintf("SELECT term FROM %s WHERE %s FOR KEY SHARE", table, which), nil
	}
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s", table, same, which), nil
}

// fenceMySQL is one statement, which returns a row or none. As in the store, a row that
// refers to that of the fence keeps it until the transaction ends. It is deleted at once,
// so that the table stays empty. ROW_COUNT tells what the DELETE has found: a read could
// come from an old snapshot.
func fenceMySQL(kind, name string, token driver.Token, term int64) string {
	table, columns, which := "scheduler_fence", "term, token",
		fmt.Sprintf("term = %d AND token = '%s'", term, token)
	from := "DUAL WHERE"
	if kind != kindScheduler {
		// not as quoted: a backslash begins an escape, unless the session has another sql_mode
		which = fmt.Sprintf("kind = _utf8mb4 x'%x' AND name = _utf8mb4 x'%x' AND term = %d",
			kind, name, term)
		table, columns = "named_locks_fence", "kind, name, term"
		// a release leaves the fence; at SERIALIZABLE this read delays the next extension
		from = fmt.Sprintf("named_locks WHERE %s AND token = '%s' AND", which, token)
	}
	return fmt.Sprintf("BEGIN NOT ATOMIC"+
		" INSERT INTO %[1]sd (%[2]s) SELECT %[2]s FROM %[1]s WHERE %[3]s;"+
		" DELETE FROM %[1]sd WHERE id = LAST_INSERT_ID();"+
		" SELECT %[4]d AS term FROM %[5]s ROW_COUNT() = 1; END", table, columns, which, term, from)
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
