package mysql

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// form is what an address looks like.
const form = "mysql://user:password@host:3306/database?parameters, or " +
	"user:password@tcp(host:3306)/database?parameters; " +
	"in a URL write special characters of the password as %XX"

// parse reads an address. Its errors quote nothing: what could not be taken apart may
// be a part of a password.
func parse(text string) (*mysql.Config, error) {
	dsn := text
	var user *url.Userinfo
	if rest, isURL := strings.CutPrefix(text, "mysql://"); isURL {
		before, after, _ := strings.Cut(rest, "@")
		if strings.ContainsAny(before, "/?#") || strings.ContainsAny(after, "@#") {
			return nil, errors.New("there is a / ? or # before the @ that ends user and password, " +
				"or an @ or # behind it: write / ? # and @ of the password as %2F %3F %23 %40")
		}
		u, err := url.Parse(text)
		if err != nil {
			return nil, errors.New("it cannot be taken apart")
		}
		if u.Hostname() == "" {
			return nil, errors.New("it names no host")
		}
		user = u.User
		c := mysql.NewConfig()
		c.Net = "tcp"
		c.Addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
		c.DBName = strings.TrimPrefix(u.Path, "/")
		dsn, _, _ = strings.Cut(c.FormatDSN(), "?")
		dsn += "?" + u.RawQuery
	} else if strings.Contains(text, "://") {
		return nil, errors.New("its scheme is another")
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("it cannot be taken apart, or a parameter has a wrong value")
	}
	if user != nil {
		c.User = user.Username()
		c.Passwd, _ = user.Password()
	}
	switch {
	case c.DBName == "":
		return nil, errors.New("it names no database")
	case strings.ContainsAny(c.DBName, "@()"):
		return nil, errors.New("the name of the database has a @ or a bracket: " +
			"is it a part of the password?")
	}
	return c, nil
}

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
		"foreign_key_checks": "1",
		"sql_mode":           "'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO'",
		"time_zone":          "'+00:00'",
		"tx_isolation":       "'READ-COMMITTED'",
		"tx_read_only":       "0",
		// The end of a context ends the wait for an answer, not the statement.
		"innodb_lock_wait_timeout": "1",
		"max_statement_time":       "10",
		// Of a client that has died without a word.
		"idle_transaction_timeout": "10",

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
