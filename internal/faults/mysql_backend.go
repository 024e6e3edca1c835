//go:build linux

package faults

import (
	"context"
	"database/sql"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/mydsn"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/mysql"
	"example.com/schedlock/tasks"
)

const (
	kindMySQL  = "mysql"
	kindGalera = "galera" // the same backend, on a node for each process
)

// Each write says how many of earlier terms it has seen: on several nodes the ids do not
// grow with the commits.
const (
	sqlSawMySQL = `
SELECT count(*) FROM faults_writes WHERE term < ?`

	sqlWriteMySQL = `
INSERT INTO faults_writes (term, job, tick, saw) VALUES (?, ?, ?, ?)`

	sqlSawLockMySQL = `
SELECT count(*) FROM faults_locks WHERE name = ? AND term < ?`

	sqlWriteLockMySQL = `
INSERT INTO faults_locks (name, term, saw) VALUES (?, ?, ?)`
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
	config.Params = map[string]string{
		"tx_isolation": []string{"'READ-COMMITTED'", "'REPEATABLE-READ'"}[s.Slot%2],
		// as docs/databases.md asks for
		"idle_transaction_timeout": "2",
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
	b.exhaust = exhauster(func(ctx context.Context) (func(), error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		return func() { conn.Close() }, nil
	})
	write := func(ctx context.Context, fence func(context.Context, any) error,
		do func(*sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fence(ctx, tx); err != nil {
			return err
		}
		if err := do(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	b.write = func(ctx context.Context, run tasks.Run, fence func(context.Context,
		any) error) error {
		return write(ctx, fence, func(tx *sql.Tx) error {
			var saw int64
			if err := tx.QueryRowContext(ctx, sqlSawMySQL, run.Term).Scan(&saw); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, sqlWriteMySQL, run.Term, run.Job,
				run.ScheduledAt.UnixMicro(), saw)
			return err
		})
	}
	b.writeLock = func(ctx context.Context, ref namedlock.Ref,
		fence func(context.Context, any) error) error {
		return write(ctx, fence, func(tx *sql.Tx) error {
			var saw int64
			if err := tx.QueryRowContext(ctx, sqlSawLockMySQL, ref.Name,
				ref.Term).Scan(&saw); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, sqlWriteLockMySQL, ref.Name, ref.Term, saw)
			return err
		})
	}
	return b, nil
}
