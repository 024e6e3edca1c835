package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/mydsn"
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
	db, err := connectMariaDB(config)
	if err != nil {
		f.fail("database", "a parameter of its address cannot be used", "write "+mydsn.Form)
		return
	}
	defer db.Close()
	open := func(ctx context.Context) (store, error) { return mysql.Open(ctx, dsn) }
	m := mariadb{database: config.DBName, server: server{findings: f, kind: mariadbKind, db: db,
		limits: limits, user: config.User, open: open, read: open,
		safe: func(err error) error { return mydsn.Safe(config, err) },
		at:   fmt.Sprintf("database %q on %s", config.DBName, config.Addr)}}
	if !m.checkConnection(ctx) || !m.checkVersion(ctx) {
		return
	}
	m.checkReadOnly(ctx)
	m.judge(ctx, "galera", judgeGalera, "wsrep_on", "wsrep_ready", "wsrep_connected",
		"wsrep_cluster_status", "wsrep_cluster_size", "wsrep_local_state_comment")
	m.checkClock(ctx)
	m.judge(ctx, "durability", judgeDurability, "innodb_flush_log_at_trx_commit", "sync_binlog",
		"log_bin", "innodb_doublewrite")
	m.judge(ctx, "replication", judgeReplication, "log_bin", "binlog_format",
		"rpl_semi_sync_master_enabled", "rpl_semi_sync_master_wait_point",
		"rpl_semi_sync_master_timeout", "rpl_semi_sync_master_status",
		"rpl_semi_sync_master_clients")
	m.judge(ctx, "settings", judgeMySQLSettings, "sql_mode", "tx_isolation", "autocommit",
		"wait_timeout", "idle_transaction_timeout")
	m.checkConnections(ctx)
	if !m.checkTables(ctx) {
		return
	}
	m.checkGrants(ctx)
	m.checkTransactions(ctx)
	m.checkRows(ctx)
}

// A mariadb is the server that is examined.
type mariadb struct {
	server
	database string
}

var mariadbKind = kind{
	dialect: dialect{
		tx: sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
		exists: `SELECT count(*) FROM information_schema.tables
			WHERE table_schema = database() AND table_name = 'scheduler_lock_schema'`,
		more: []made{{"scheduler_fence", 1}, {"scheduler_fenced", 1}, {"scheduler_gate", 2},
			{"scheduler_gated", 2}, {"named_locks_fence", 5}, {"named_locks_fenced", 5}},
		clock:  `SELECT sysdate(6)`,
		noFile: true,
	},
	product: "MariaDB",
	who:     "user",
	admin:   "an administrator",
	waits:   "transactions",
	tls:     "tls= of the address",
	listens: "bind_address",
	refusal: mariadbRefusal,
	grants:  func(each string) string { return each }, // one names one table
}

// connectMariaDB has the store's time zone. All else of the session is what the app's own get.
func connectMariaDB(config *mysqldriver.Config) (*sql.DB, error) {
	c := config.Clone()
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

// judge reads global variables and the status, by lower-case name, and judges them.
func (m mariadb) judge(ctx context.Context, check string,
	judge func(*findings, map[string]string), names ...string) {
	var name, value string
	x := map[string]string{}
	among := ` WHERE variable_name IN ('` + strings.Join(names, "', '") + `')`
	if m.each(ctx, check, `SELECT variable_name, coalesce(variable_value, '')
FROM information_schema.global_variables`+among+`
UNION ALL SELECT variable_name, coalesce(variable_value, '')
FROM information_schema.global_status`+among, nil, []any{&name, &value}, func() {
		x[strings.ToLower(name)] = value
	}) {
		judge(m.findings, x)
	}
}

// rightToLook is what an error adds that says that a right is missing.
func rightToLook(err error) string {
	if e, ok := errors.AsType[*mysqldriver.MySQLError](err); ok && e.Number == 1227 {
		return "; to see it, GRANT PROCESS ON *.* to this user"
	}
	return ""
}

func mariadbRefusal(err error) (why, do string) {
	e, ok := errors.AsType[*mysqldriver.MySQLError](err)
	if !ok {
		return "", ""
	}
	switch e.Number {
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
