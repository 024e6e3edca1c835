package mysql

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// connectTimeout is how long one attempt to connect may take, unless the address has a
// timeout: what swallows packets must not hold a place of a pool for minutes.
const connectTimeout = 5 * time.Second

// settings are those of the store's own sessions.
func (s *Store) settings() (*mysql.Config, error) {
	c := s.config.Clone()
	c.Logger = &mysql.NopLogger{} // what it would say comes as an error, too
	c.Timeout = cmp.Or(c.Timeout, connectTimeout)
	c.InterpolateParams = true // one round trip for each statement
	c.ClientFoundRows = true   // an UPDATE tells what it has found, not what it has changed
	c.ParseTime, c.Loc = false, time.UTC
	c.MultiStatements = false
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	for name, value := range map[string]string{
		"autocommit":         "1",
		"completion_type":    "'NO_CHAIN'", // else a COMMIT begins the next transaction
		"foreign_key_checks": "1",
		"sql_safe_updates":   "0",
		"sql_mode":           "'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO'",
		"time_zone":          "'+00:00'",
		"tx_isolation":       "'READ-COMMITTED'",
		"tx_read_only":       "0",
		"sql_select_limit":   "18446744073709551615", // else lists end early, without a word
		// The end of a context ends the wait for an answer, not the statement.
		"innodb_lock_wait_timeout": "1",
		"max_statement_time":       "10",
		// Of a client that was cut off or stopped in the middle of a fenced transaction of the
		// store's: until it is over, nobody takes over. No such client has a reason to wait.
		"idle_transaction_timeout": "3",

		// On Galera each statement, reads included, finds what others were told before.
		"wsrep_sync_wait": "7",

		"@schedlock_cluster": sqlSetCluster,
		"@schedlock_process": sqlSetProcess,
	} {
		delete(c.Params, name)
		c.Params[name] = value
	}
	if s.plain {
		delete(c.Params, "wsrep_sync_wait")
	}
	if err := c.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, err
	}
	return c, nil
}

// quote is a name as SQL has it.
func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
