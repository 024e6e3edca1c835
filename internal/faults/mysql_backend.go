//go:build linux

package faults

import (
	"context"
	"database/sql"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/schedlock/mysql"
)

const (
	kindMySQL  = "mysql"
	kindGalera = "galera" // the same backend, on a node for each process
)

// Each write says how many of earlier terms it has seen: on several nodes the ids do not
// grow with the commits.
const (
	sqlSawMySQL = `
SELECT count(*) FROM faults_writes WHERE name = ? AND term < ?`

	sqlWriteMySQL = `
INSERT INTO faults_writes (name, term, job, tick, saw) VALUES (?, ?, ?, ?, ?)`
)

// openMySQL opens the database for the test program: with a pool of the app's own, whose
// transactions have one isolation level or another. There is no clock of the process to
// step: the server's counts.
func openMySQL(ctx context.Context, s Settings, _ func() time.Time) (b backend, err error) {
	config, err := mydsn.Parse(s.DSN)
	if err != nil {
		return b, err
	}
	config.Logger = &driver.NopLogger{}
	config.ReadTimeout = s.TTL * 3 / 4 // as docs/databases.md asks for
	config.Params = map[string]string{
		"tx_isolation":             []string{"'READ-COMMITTED'", "'REPEATABLE-READ'"}[s.Slot%2],
		"idle_transaction_timeout": "2", // likewise
	}
	connector, err := driver.NewConnector(config)
	if err != nil {
		return b, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(appPool)
	// The proxies of the harness pass on the end of a connection at once, and have no
	// time-out.
	opts := []mysql.Option{mysql.WithDirectConnection()}
	if s.Sign {
		opts = append(opts, mysql.WithSessionSign())
	}
	store, err := mysql.Opener(s.DSN, opts...).Open(ctx)
	if err != nil {
		return b, err
	}
	b.store, b.locks, b.queue = store, store.Named(), store.Queue()
	b.exhaust = exhauster(db)
	b.write = fencedWrite(db, func(ctx context.Context, tx *sql.Tx, w written) error {
		var saw int64
		if err := tx.QueryRowContext(ctx, sqlSawMySQL, w.name, w.term).Scan(&saw); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, sqlWriteMySQL, w.name, w.term, w.job, w.tick, saw)
		return err
	})
	return b, nil
}
