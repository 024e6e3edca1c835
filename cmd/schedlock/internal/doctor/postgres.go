package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/schedlock/postgres"
)

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

	opts := []postgres.Option{postgres.WithLogger(slog.New(slog.DiscardHandler))}
	s := postgreSQL{server{findings: f, kind: postgresKind, db: db,
		limits: limits, user: config.User, safe: pgdsn.Safe,
		at: fmt.Sprintf("database %q on %s", config.Database,
			net.JoinHostPort(config.Host, fmt.Sprint(config.Port)))}}
	if limits.schema != "" {
		opts = append(opts, postgres.WithSchema(limits.schema))
		// of a transaction, in whatever session of a pooler
		s.first = "SET LOCAL search_path = " + names.QuoteSchema(limits.schema)
	}
	s.open = func(ctx context.Context) (store, error) { return postgres.Open(ctx, dsn, opts...) }
	s.read = func(ctx context.Context) (store, error) {
		return postgres.OpenReader(ctx, dsn, opts...)
	}
	if !s.checkConnection(ctx) {
		return
	}
	s.checkVersion(ctx)
	s.checkPooler(ctx)
	s.checkReadOnly(ctx)
	found := s.checkSchemas(ctx)
	s.checkClock(ctx)
	s.checkSettings(ctx)
	s.checkDurability(ctx)
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
	}
}

// A postgreSQL is the server that is examined.
type postgreSQL struct{ server }

var postgresKind = kind{
	dialect: dialect{
		tx:     sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
		exists: `SELECT count(to_regclass('scheduler_lock_schema'))`,
		more:   unrepeatable,
		clock:  `SELECT clock_timestamp()`,
	},
	product: "PostgreSQL",
	grants:  grouped,
	who:     "role",
	admin:   "the owner of the tables",
	waits:   "locks",
	tls:     "sslmode and sslrootcert of the URL",
	listens: "listen_addresses",
	refusal: postgresRefusal,
}

func postgresRefusal(err error) (why, do string) {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "", ""
	}
	switch e.Code {
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

func (s postgreSQL) checkVersion(ctx context.Context) {
	var version string
	if s.row(ctx, "version", `SELECT current_setting('server_version')`, &version) {
		s.ok("version", "PostgreSQL "+version)
	}
}

// checkPooler compares the pid that the protocol announced with the server's.
func (s postgreSQL) checkPooler(ctx context.Context) {
	var pid, announced uint32
	var refused error
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
		if err := conn.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		_, refused = conn.ExecContext(ctx, `BEGIN`)
		if refused != nil {
			return ctx.Err()
		}
		_, err = conn.ExecContext(ctx, `ROLLBACK`)
		return err
	})
	switch {
	case err != nil:
		s.note("pooler", "not looked at: "+err.Error())
	case pid == announced:
		s.ok("pooler", "none: the connection is direct")
	case refused != nil:
		s.fail("pooler", "a pooler, such as PgBouncer, is between here and the server, and takes "+
			"no transaction: "+refused.Error(),
			"set pool_mode = transaction there, for this database: migrations, jobs and fences "+
				"need transactions")
	default:
		s.note("pooler", "a pooler, such as PgBouncer, is between here and the server: "+
			"LISTEN does not reach through it, so a standby notices a release by polling, "+
			"within a second or two; all else works")
	}
}

var grant = regexp.MustCompile(`^GRANT (.+) ON (.+) TO (.+)$`)

// grouped puts statements with GRANT together: each table once, and those that lack the
// same rights in one statement. What it can't read stays as it is.
func grouped(grants string) string {
	var tables, order []string
	var to string
	lacks := map[string][]string{} // by table
	of := map[string][]string{}    // the tables, by rights
	for g := range strings.SplitSeq(grants, "; ") {
		m := grant.FindStringSubmatch(g)
		if m == nil || to != "" && m[3] != to {
			return grants
		}
		if lacks[m[2]] == nil {
			tables = append(tables, m[2])
		}
		lacks[m[2]], to = append(lacks[m[2]], m[1]), m[3]
	}
	for _, table := range tables {
		rights := strings.Join(lacks[table], ", ")
		if of[rights] == nil {
			order = append(order, rights)
		}
		of[rights] = append(of[rights], table)
	}
	for i, rights := range order {
		order[i] = fmt.Sprintf("GRANT %s ON %s TO %s", rights, strings.Join(of[rights], ", "), to)
	}
	return strings.Join(order, "; ")
}
