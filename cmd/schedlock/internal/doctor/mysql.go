package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

func examineMySQL(ctx context.Context, f *findings, dsn string, limits bounds) {
	f.name(datasource.Shown(dsn))
	config, err := mydsn.Parse(dsn)
	if err != nil {
		f.fail("database", "its address cannot be used: "+err.Error(), "write "+mydsn.Form)
		return
	}
	f.name(mydsn.Shown(config))
	m := mariadb{findings: f, config: config, dsn: dsn, limits: limits}
	if m.db, err = m.open(); err != nil {
		f.fail("database", "a parameter of its address cannot be used", "write "+mydsn.Form)
		return
	}
	defer m.db.Close()
	if !m.checkConnection(ctx) || !m.checkVersion(ctx) {
		return
	}
	m.checkReadOnly(ctx)
	m.checkGalera(ctx)
	m.checkClock(ctx)
	m.checkDurability(ctx)
	m.checkReplication(ctx)
	m.checkSettings(ctx)
	m.checkConnections(ctx)
	if !m.checkTables(ctx) {
		return
	}
	m.checkGrants(ctx)
	m.checkTransactions(ctx)
	m.checkSign(ctx)
	m.checkRows(ctx)
}

// A mariadb is the server that is examined. Each check is a statement of its own: what
// one user may not ask, or one server does not know, costs only that check.
type mariadb struct {
	*findings
	db     *sql.DB
	config *mysqldriver.Config
	dsn    string
	limits bounds
}

// open has the store's time zone. All else of the session is what the app's own get.
func (m mariadb) open() (*sql.DB, error) {
	c := m.config.Clone()
	c.Logger = &mysqldriver.NopLogger{}
	if c.Timeout == 0 || c.Timeout > connectTimeout {
		c.Timeout = connectTimeout
	}
	c.InterpolateParams, c.ParseTime, c.Loc = true, true, time.UTC
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	c.Params["time_zone"], c.Params["max_statement_time"] = "'+00:00'", "10"
	connector, err := mysqldriver.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

func (m mariadb) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.limits.statement)
	defer cancel()
	return do(ctx)
}

// row reads the one row of a query. If it cannot, that is a note.
func (m mariadb) row(ctx context.Context, check, query string, dest ...any) bool {
	err := m.bounded(ctx, func(ctx context.Context) error {
		return m.db.QueryRowContext(ctx, query).Scan(dest...)
	})
	if err != nil {
		m.note(check, "not looked at: "+err.Error())
	}
	return err == nil
}

// lines reads the only column of a query.
func (m mariadb) lines(ctx context.Context, query string, args ...any) (lines []string, err error) {
	err = m.bounded(ctx, func(ctx context.Context) error {
		return eachRow(ctx, m.db, func(rows *sql.Rows) error {
			var line string
			err := rows.Scan(&line)
			lines = append(lines, line)
			return err
		}, query, args...)
	})
	return lines, err
}

// values reads the global variables or the status, by lower-case name.
func (m mariadb) values(ctx context.Context, check, from string,
	names ...string) (map[string]string, bool) {
	found := map[string]string{}
	err := m.bounded(ctx, func(ctx context.Context) error {
		return eachRow(ctx, m.db, func(rows *sql.Rows) error {
			var name, value string
			err := rows.Scan(&name, &value)
			found[strings.ToLower(name)] = value
			return err
		}, `SELECT variable_name, coalesce(variable_value, '') FROM information_schema.`+from+`
WHERE variable_name IN ('`+strings.Join(names, "', '")+`')`)
	})
	if err != nil {
		m.note(check, "not looked at: "+err.Error())
	}
	return found, err == nil
}

func (m mariadb) checkConnection(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	at := fmt.Sprintf("database %q on %s", m.config.DBName, m.config.Addr)
	err := mydsn.Safe(m.config, m.db.PingContext(ctx))
	if err == nil {
		m.ok("connection", fmt.Sprintf("connected to %s as %s", at, m.config.User))
		return true
	}
	why, do := explainMySQL(err)
	m.fail("connection", fmt.Sprintf("%s as %s: %s: %v", at, m.config.User, why, err), do)
	return false
}

// explainMySQL says why there is no connection, and what to do.
func explainMySQL(err error) (why, do string) {
	var (
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	if e, ok := errors.AsType[*mysqldriver.MySQLError](err); ok {
		return explainMySQLNumber(e.Number)
	}
	switch {
	case errors.As(err, &dns):
		return "the host name is not known",
			"correct the host, or look at the DNS of this machine or container"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid),
		errors.As(err, &record), errors.Is(err, mysqldriver.ErrNoTLS):
		return "TLS does not work",
			"compare tls= of the address with what the server has: " +
				"its certificate must bear the host's name and be signed by a known root"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "nobody listens there",
			"start the server, or correct host and port (the server's bind_address and port)"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer",
			"look for a firewall or a wrong address between here and the server, " +
				"or a server that hangs"
	}
	return "no connection", "is this port that of a MariaDB? Else look at the server's log"
}

func explainMySQLNumber(number uint16) (why, do string) {
	switch number {
	case 1045, 1698:
		return "the password is wrong, or there is no such user for this host",
			"correct the user or the password in the app's settings, or set it: " +
				"ALTER USER … IDENTIFIED BY …"
	case 1044:
		return "the user may not use the database",
			"GRANT SELECT, INSERT, UPDATE, DELETE on it, or correct its name"
	case 1049:
		return "there is no such database", "create it, or correct its name"
	case 1040, 1203, 1226:
		return "too many connections",
			"end idle ones (SHOW PROCESSLIST), make the apps' pools smaller, " +
				"or raise max_connections or the user's limit"
	case 1053:
		return "the server is shutting down", "wait a moment and run this again"
	case 1129, 1130:
		return "the server refuses this host",
			"create the user for this host, or run FLUSH HOSTS if it was blocked"
	}
	return "the server refuses", "look at the server's log"
}

// checkGrants asks the store what this user may not do.
func (m mariadb) checkGrants(ctx context.Context) {
	err := m.withStore(ctx, func(ctx context.Context, store *mysql.Store) error {
		return store.Check(ctx)
	})
	if err == nil {
		m.ok("grants", fmt.Sprintf("user %s has the rights that the lock needs", m.config.User))
		return
	}
	if _, grants, found := strings.Cut(err.Error(), "a right is missing: "); found {
		m.fail("grants", fmt.Sprintf("user %s lacks rights on the tables", m.config.User),
			"as an administrator: "+grants)
		return
	}
	m.note("grants", "not looked at to the end: "+err.Error())
}

func (m mariadb) withStore(ctx context.Context,
	do func(context.Context, *mysql.Store) error) error {
	return m.bounded(ctx, func(ctx context.Context) error {
		store, err := mysql.Open(ctx, m.dsn)
		if err != nil {
			return err
		}
		defer store.Close()
		return do(ctx, store)
	})
}

// checkSign says what the end of the leader's session means.
func (m mariadb) checkSign(ctx context.Context) {
	var (
		grace sql.NullInt64
		why   string
	)
	err := m.bounded(ctx, func(ctx context.Context) error {
		return m.db.QueryRowContext(ctx, `
SELECT grace_ms, coalesce(ttl_only, '') FROM scheduler_lock WHERE id = 1`).Scan(&grace, &why)
	})
	judgeSign(m.findings, grace, why, err)
}

func (m mariadb) checkRows(ctx context.Context) {
	var x facts
	err := m.bounded(ctx, func(ctx context.Context) (err error) {
		x, err = readFacts(ctx, m.db, mysqlDialect)
		return err
	})
	switch {
	case err == nil:
		judge(m.findings, x, m.look(ctx, x))
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		m.fail("tables", fmt.Sprintf("they cannot be read within %s", m.limits.statement),
			"somebody locks them (see transactions above), or the server hangs")
	default:
		m.fail("tables", "they cannot be read: "+err.Error(),
			"a right is missing (see grants above), or a table: run `schedlock migrate`")
	}
}

// look is what a standby sees.
func (m mariadb) look(ctx context.Context, x facts) (seen driver.Snapshot) {
	if m.withStore(ctx, func(ctx context.Context, store *mysql.Store) error {
		seen = x.look(ctx, store)
		return nil
	}) != nil {
		return x.view()
	}
	return seen
}
