package app

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"example.com/schedlock/cmd/demoapp/bans"
	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/schedlock/sqlite"
)

const (
	// startLimit bounds what a start waits for PostgreSQL, so that its error is
	// the one that says why, and not that of the stage, which has 30 s.
	startLimit = 25 * time.Second
	// connectTimeout bounds an attempt to connect, which otherwise takes as
	// long as TCP lets it, and its place in the pool as long.
	connectTimeout = 5 * time.Second
)

// kindOf tells the kinds of database URL apart.
func kindOf(dsn string) datasource.Kind {
	kind, _ := datasource.Of(dsn)
	return kind
}

// openLock opens the lock's database.
func openLock(dsn string, log *slog.Logger) func(context.Context) (driver.Store, error) {
	var open func(context.Context) (driver.Store, error)
	switch kindOf(dsn) {
	case datasource.PostgreSQL:
		open = postgres.Opener(dsn, postgres.WithLogger(log))
	case datasource.MySQL:
		open = mysql.Opener(dsn, mysql.WithLogger(log))
	default:
		return sqlite.Opener(dsn)
	}
	return func(ctx context.Context) (driver.Store, error) {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		store, err := open(ctx)
		if err != nil {
			return nil, advise(err, "lock-database-url", "database-url")
		}
		return store, nil
	}
}

// database is the app's own database, on connections that are not the lock's:
// one of the last three is set.
type database struct {
	bans  *bans.Store
	file  *sqlite.Store
	pool  *pgxpool.Pool
	maria *sql.DB
}

// openDatabase opens it. No answer of MariaDB is awaited for longer than patience.
func openDatabase(ctx context.Context, dsn string, patience time.Duration) (d *database,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	switch kindOf(dsn) {
	case datasource.PostgreSQL:
		d, err = openPostgres(ctx, dsn)
	case datasource.MySQL:
		d, err = openMariaDB(ctx, dsn, patience)
	default:
		return openFile(ctx, dsn)
	}
	if err != nil {
		return nil, advise(err, "database-url")
	}
	return d, nil
}

func openFile(ctx context.Context, dsn string) (*database, error) {
	file, err := sqlite.Open(ctx, withBusyTimeout(dsn))
	if err != nil {
		return nil, err
	}
	d := &database{bans: bans.NewStore(file.DB(), bans.SQLite), file: file}
	if err := d.bans.Migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", file.Path(), err), d.close())
	}
	return d, nil
}

func openPostgres(ctx context.Context, dsn string) (*database, error) {
	cfg, err := pgdsn.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(dsn, "default_query_exec_mode") {
		// Statements without a name pass through any pooler.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "demoapp"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &database{bans: bans.NewStore(stdlib.OpenDBFromPool(pool), bans.PostgreSQL), pool: pool}
	if err := d.bans.Migrate(ctx); err != nil {
		c := cfg.ConnConfig
		return nil, errors.Join(fmt.Errorf("database %q on %s:%d: %w", c.Database, c.Host, c.Port,
			pgdsn.Safe(err)), d.close())
	}
	return d, nil
}

func openMariaDB(ctx context.Context, dsn string, patience time.Duration) (*database, error) {
	cfg, err := mariaConfig(dsn, patience)
	if err != nil {
		return nil, err
	}
	d, err := newMariaDB(cfg)
	if err != nil {
		return nil, err
	}
	if errors.Is(d.maria.PingContext(ctx), errNoVariable) { // it was made without Galera
		delete(cfg.Params, "wsrep_sync_wait")
		_ = d.close()
		if d, err = newMariaDB(cfg); err != nil {
			return nil, err
		}
	}
	if err := d.bans.Migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("database %q on %s: %w", cfg.DBName, cfg.Addr,
			mydsn.Safe(cfg, err)), d.close())
	}
	return d, nil
}

func mariaConfig(dsn string, patience time.Duration) (*mysqldriver.Config, error) {
	cfg, err := mydsn.Parse(dsn)
	if err != nil {
		return nil, err
	}
	cfg.Logger = &mysqldriver.NopLogger{} // what it would say comes as an error, too
	cfg.Timeout = cmp.Or(cfg.Timeout, connectTimeout)
	// A COMMIT of the driver does not end with its context.
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, patience)
	cfg.InterpolateParams, cfg.ParseTime, cfg.Loc = true, true, time.UTC
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	// A client that dies without a word in a fenced transaction keeps others from the lock.
	for name, value := range map[string]string{"time_zone": "'+00:00'",
		"sql_mode": "'STRICT_TRANS_TABLES'", "idle_transaction_timeout": "60"} {
		if _, set := cfg.Params[name]; !set || name == "time_zone" {
			cfg.Params[name] = value
		}
	}
	// On Galera a transaction must find the lock that was acquired through another node.
	cfg.Params["wsrep_sync_wait"] = cmp.Or(cfg.Params["wsrep_sync_wait"], "1")
	return cfg, nil
}

// errNoVariable is what a server says of a setting that it does not know.
var errNoVariable = &mysqldriver.MySQLError{Number: 1193}

func newMariaDB(cfg *mysqldriver.Config) (*database, error) {
	connector, err := mysqldriver.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("the URL has a parameter that the driver does not take")
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(8)
	return &database{bans: bans.NewStore(pool, bans.MySQL), maria: pool}, nil
}

func (d *database) close() error {
	switch {
	case d.file != nil:
		return d.file.Close()
	case d.maria != nil:
		return d.maria.Close()
	}
	d.pool.Close()
	return nil
}

// check reports whether the database answers, and is the one that was opened.
func (d *database) check(ctx context.Context) error {
	if d.file != nil {
		if err := d.file.CheckFile(); err != nil {
			return err
		}
	}
	_, err := d.bans.Count(ctx)
	return err
}

// sqlIdentity names what the fence locks: the server's start, the database and
// the table.
const sqlIdentity = `
SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time())::text,
    (SELECT oid::text FROM pg_catalog.pg_database WHERE datname = current_database()),
    coalesce(to_regclass('scheduler_lock')::oid::text, 'none'))`

// sqlMariaIdentity is the same for MariaDB: the server, or on Galera the cluster, and the database.
const sqlMariaIdentity = `
SELECT concat(coalesce(
    (SELECT s.variable_value
     FROM information_schema.global_status s, information_schema.global_variables v
     WHERE v.variable_name = 'WSREP_ON' AND v.variable_value = 'ON'
       AND s.variable_name = 'WSREP_CLUSTER_STATE_UUID'),
    concat(@@server_uid, ' ', @@port)), ' ', database())`

// holds reports whether the lock row is in this database, so that the fence
// works in the app's own transactions. Two URLs may lead to one database.
func (d *database) holds(ctx context.Context, lock driver.Store) (bool, error) {
	switch lock := lock.(type) {
	case *sqlite.Store:
		return d.file != nil && lock.Path() == d.file.Path(), nil
	case *postgres.Store:
		if d.pool == nil {
			return false, nil
		}
		for ctx.Err() == nil { // again if the server was restarted meanwhile
			var before, mine, after string
			for _, q := range []struct {
				pool *pgxpool.Pool
				dest *string
			}{{lock.Pool(), &before}, {d.pool, &mine}, {lock.Pool(), &after}} {
				if err := q.pool.QueryRow(ctx, sqlIdentity).Scan(q.dest); err != nil {
					return false, fmt.Errorf("compare the app's database with the lock's: %w", err)
				}
			}
			if before == after {
				return before == mine, nil
			}
		}
		return false, ctx.Err()
	case *mysql.Store:
		if d.maria == nil {
			return false, nil
		}
		var own, locks string
		err := errors.Join(d.maria.QueryRowContext(ctx, sqlMariaIdentity).Scan(&own),
			lock.DB().QueryRowContext(ctx, sqlMariaIdentity).Scan(&locks))
		if err != nil {
			return false, fmt.Errorf("compare the app's database with the lock's: %w", err)
		}
		return own == locks, nil
	}
	return false, nil
}

// advise adds what to do to an error that the server itself did not explain,
// and to one of the app's own tables.
func advise(err error, flags ...string) error {
	names := make([]string, len(flags))
	for i, f := range flags {
		names[i] = variable(f)
	}
	where := strings.Join(names, " or ")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if errors.Is(err, driver.ErrPermanent) || strings.Contains(err.Error(), "GRANT") {
			return err // it says so itself
		}
		switch pg.Code {
		case "28P01", "28000":
			return fmt.Errorf("%w: check user and password in %s, and pg_hba.conf", err, where)
		case "3D000":
			return fmt.Errorf("%w: create the database, or correct %s", err, where)
		case "42501":
			return fmt.Errorf("%w: GRANT USAGE, CREATE ON SCHEMA to the role of %s", err, where)
		}
		return err
	}
	if e, ok := errors.AsType[*mysqldriver.MySQLError](err); ok {
		switch {
		case errors.Is(err, driver.ErrPermanent): // it says so itself
		case e.Number == 1045 || e.Number == 1698:
			return fmt.Errorf("%w: check user and password in %s", err, where)
		case e.Number == 1049:
			return fmt.Errorf("%w: create the database, or correct %s", err, where)
		case e.Number == 1044 || e.Number == 1142:
			return fmt.Errorf("%w: GRANT CREATE, SELECT, INSERT, UPDATE, DELETE on the database "+
				"to the user of %s", err, where)
		}
		return err
	}
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	_, dial := errors.AsType[*net.OpError](err)
	if refused || dial || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: see that the server runs and can be reached, or correct %s",
			err, where)
	}
	return err
}

// withBusyTimeout lets the app wait longer for another writer than the lock
// does.
func withBusyTimeout(dsn string) string {
	if strings.Contains(dsn, "busy_timeout") {
		return dsn
	}
	if !strings.HasPrefix(dsn, "file:") { // a path
		path := filepath.Clean(dsn)
		if !filepath.IsAbs(path) {
			path = "./" + path // a path, whatever it looks like
		}
		uri := url.URL{Path: filepath.ToSlash(path)}
		dsn = "file:" + uri.EscapedPath()
	}
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	return dsn + sep + "_pragma=busy_timeout(5000)"
}

// checkURL returns what is wrong with the URL of a database, and shows no part
// of it that may be a password.
func checkURL(dsn string) error {
	form := ""
	kind, err := datasource.Of(dsn)
	switch kind {
	case datasource.PostgreSQL:
		form = " is not " + pgdsn.Form
		_, err = pgdsn.Parse(dsn)
	case datasource.MySQL:
		form = " is not " + mydsn.Form
		_, err = mydsn.Parse(dsn)
	case datasource.File:
		err = sqlite.CheckDSN(dsn)
	}
	if err != nil {
		return fmt.Errorf("%q%s: %w", datasource.Shown(dsn), form, err)
	}
	return nil
}
