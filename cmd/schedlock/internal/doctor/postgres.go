package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

const connectTimeout = 5 * time.Second

func examinePostgres(ctx context.Context, f *findings, dsn string, limits bounds) {
	f.name(datasource.Shown(dsn))
	pool, err := pgdsn.Parse(dsn)
	if err != nil {
		f.fail("database", "its URL, or key=value pairs, cannot be used: "+err.Error(),
			"write "+pgdsn.Form)
		return
	}
	config := pool.ConnConfig
	f.name(pgdsn.Shown(config))
	if config.ConnectTimeout == 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // works behind a pooler
	config.RuntimeParams["application_name"] = "schedlock doctor"
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxOpenConns(1)

	s := server{db: db, config: config, dsn: dsn, limits: limits, findings: f}
	if !s.checkConnection(ctx) {
		return
	}
	s.checkVersion(ctx)
	s.checkPooler(ctx)
	s.checkReadOnly(ctx)
	found := s.checkSchemas(ctx)
	s.checkClock(ctx)
	s.checkSettings(ctx)
	s.checkConnections(ctx)
	s.checkTransactions(ctx)
	if !found {
		return
	}
	shown := s.checkRowSecurity(ctx)
	if shown {
		s.checkGrants(ctx)
	}
	s.checkLocks(ctx)
	s.checkBloat(ctx)
	if shown { // else what is not there may only be hidden
		s.checkRows(ctx)
		s.checkSign(ctx)
	}
}

// A server is the PostgreSQL that is examined. Each check is a statement of
// its own: what one role may not ask, or one server does not know, costs only
// that check.
type server struct {
	*findings
	db     *sql.DB
	config *pgx.ConnConfig
	dsn    string
	limits bounds
}

func (s server) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.statement)
	defer cancel()
	return do(ctx)
}

// A queryer is a *sql.DB or a *sql.Tx.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// ask lets do send one statement, where unqualified names mean the schema.
func (s server) ask(ctx context.Context, do func(context.Context, queryer) error) error {
	return s.bounded(ctx, func(ctx context.Context) error {
		if s.limits.schema == "" {
			return do(ctx, s.db)
		}
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing was written
		if _, err := tx.ExecContext(ctx, s.path()); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// path begins a transaction, in whatever session of a pooler.
func (s server) path() string {
	return "SET LOCAL search_path = " + names.QuoteSchema(s.limits.schema)
}

func (s server) options() []postgres.Option {
	opts := []postgres.Option{postgres.WithLogger(slog.New(slog.DiscardHandler))}
	if s.limits.schema != "" {
		opts = append(opts, postgres.WithSchema(s.limits.schema))
	}
	return opts
}

// row reads the one row of a query. If it cannot, that is a note.
func (s server) row(ctx context.Context, check, query string, dest ...any) bool {
	err := s.ask(ctx, func(ctx context.Context, q queryer) error {
		return q.QueryRowContext(ctx, query).Scan(dest...)
	})
	if err != nil {
		s.note(check, "not looked at: "+err.Error())
	}
	return err == nil
}

// lines reads the only column of a query.
func (s server) lines(ctx context.Context, check, query string,
	args ...any) (lines []string, ok bool) {
	err := s.ask(ctx, func(ctx context.Context, q queryer) error {
		return eachRow(ctx, q, func(rows *sql.Rows) error {
			var line string
			err := rows.Scan(&line)
			lines = append(lines, line)
			return err
		}, query, args...)
	})
	if err != nil {
		s.note(check, "not looked at: "+err.Error())
	}
	return lines, err == nil
}

func (s server) checkConnection(ctx context.Context) bool {
	// more than one host, or with and without TLS
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	err := pgdsn.Safe(s.db.PingContext(ctx))
	if err == nil {
		s.ok("connection", fmt.Sprintf("connected to %s as %s", s.address(), s.config.User))
		return true
	}
	why, do := explainConnect(err)
	s.fail("connection", fmt.Sprintf("%s as %s: %s: %v", s.address(), s.config.User, why, err), do)
	return false
}

func (s server) address() string {
	return fmt.Sprintf("database %q on %s", s.config.Database,
		net.JoinHostPort(s.config.Host, fmt.Sprint(s.config.Port)))
}

// explainConnect says why there is no connection, and what to do.
func explainConnect(err error) (why, do string) {
	var (
		server  *pgconn.PgError
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &server):
		return explainRefusal(server)
	case errors.As(err, &dns):
		return "the host name is not known",
			"correct the host, or look at the DNS of this machine or container"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid), errors.As(err,
		&record),
		strings.Contains(err.Error(), "refused TLS"), strings.Contains(err.Error(), "tls: "):
		return "TLS does not work",
			"compare sslmode and sslrootcert of the URL with what the server has: " +
				"its certificate must bear the host's name and be signed by that root"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "nobody listens there",
			"start the server, or correct host and port (the server's listen_addresses and port)"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer",
			"look for a firewall or a wrong address between here and the server, " +
				"or a server that hangs"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err,
		syscall.ECONNRESET):
		return "the connection was closed at once",
			"is this port that of a PostgreSQL? Else look at its log"
	}
	return "no connection", "look at the server's log"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func explainRefusal(err *pgconn.PgError) (why, do string) {
	switch err.Code {
	case "28P01":
		return "the password is wrong, or there is no such role",
			"correct the password or the role in the app's settings, or set it: " +
				"ALTER ROLE … PASSWORD …"
	case "28000":
		return "the role may not log in",
			"create the role with LOGIN, and allow it, this address and TLS in pg_hba.conf"
	case "3D000":
		return "there is no such database", "create it, or correct its name"
	case "53300":
		return "too many connections",
			"end idle ones (pg_stat_activity), make the apps' pools smaller, " +
				"put a pooler in front, or raise max_connections"
	case "57P03":
		return "the server is starting up, shutting down or recovering",
			"wait a moment and run this again"
	}
	return "the server refuses", "look at the server's log"
}

func (s server) checkVersion(ctx context.Context) {
	var version string
	if s.row(ctx, "version", `SELECT current_setting('server_version')`, &version) {
		s.ok("version", "PostgreSQL "+version)
	}
}

// checkPooler compares the pid that the protocol announced with the server's.
func (s server) checkPooler(ctx context.Context) {
	var pid, announced uint32
	err := s.bounded(ctx, func(ctx context.Context) error {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.Raw(func(raw any) error {
			announced = raw.(*stdlib.Conn).Conn().PgConn().PID()
			return nil
		}); err != nil {
			return err
		}
		return conn.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	})
	switch {
	case err != nil:
		s.note("pooler", "not looked at: "+err.Error())
	case pid == announced:
		s.ok("pooler", "none: the connection is direct")
	default:
		s.note("pooler", s.bouncer(ctx)+
			" is between here and the server: LISTEN does not reach through it, "+
			"so a standby notices a release by polling, within a second or two; all else works")
	}
}

// bouncer asks the pooler for its name: PgBouncer has a database of its own,
// for the roles that may see it.
func (s server) bouncer(ctx context.Context) (name string) {
	config := s.config.Copy()
	config.Database = "pgbouncer"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	err := s.bounded(ctx, func(ctx context.Context) error {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return conn.QueryRow(ctx, `SHOW VERSION`).Scan(&name)
	})
	if err != nil || !strings.HasPrefix(name, "PgBouncer") {
		return "a pooler, such as PgBouncer,"
	}
	return name
}

// checkGrants asks the store what this role may not do.
func (s server) checkGrants(ctx context.Context) {
	err := s.bounded(ctx, func(ctx context.Context) error {
		store, err := postgres.Open(ctx, s.dsn, s.options()...)
		if err != nil {
			return err
		}
		defer store.Close()
		return store.Check(ctx)
	})
	if err == nil {
		s.ok("grants", fmt.Sprintf("role %s has the rights that the lock needs", s.config.User))
		return
	}
	if _, grants, found := strings.Cut(err.Error(), "a right is missing: "); found {
		s.fail("grants", fmt.Sprintf("role %s lacks rights on the tables", s.config.User),
			"as the owner of the tables: "+grants)
		return
	}
	s.note("grants", "not looked at to the end: "+err.Error())
}

func (s server) checkRows(ctx context.Context) {
	var x facts
	err := s.bounded(ctx, func(ctx context.Context) (err error) {
		d := postgresDialect
		if s.limits.schema != "" {
			d.first = s.path()
		}
		x, err = readFacts(ctx, s.db, d)
		return err
	})
	switch {
	case err == nil:
		judge(s.findings, x, s.look(ctx, x))
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		s.fail("tables", fmt.Sprintf("they cannot be read within %s", s.limits.statement),
			"somebody locks them (see locks above), or the server hangs")
	default:
		s.fail("tables", "they cannot be read: "+err.Error(),
			"a right is missing (see grants above), or a table: run `schedlock migrate`")
	}
}

// look sees the session of the holder, too.
func (s server) look(ctx context.Context, x facts) (seen driver.Snapshot) {
	err := s.bounded(ctx, func(ctx context.Context) error {
		store, err := postgres.OpenReader(ctx, s.dsn, s.options()...)
		if err != nil {
			return err
		}
		defer store.Close()
		seen = x.look(ctx, store)
		return nil
	})
	if err != nil {
		return x.view()
	}
	return seen
}
