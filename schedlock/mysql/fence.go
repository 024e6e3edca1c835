package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"example.com/schedlock/schedlock/driver"
)

// A row that refers to that of the fence keeps it from being deleted until the
// transaction ends: so heartbeats pass, and a take-over does not. Its insertion looks
// at the newest committed row of the fence, whatever snapshot the transaction has. It
// goes at once, so that the table stays empty; the lock stays. The app's session may have
// foreign_key_checks = 0, by which the row would refer to nothing.
const (
	sqlFence = `
SET STATEMENT innodb_lock_wait_timeout = 1, foreign_key_checks = 1 FOR
INSERT INTO %s.scheduler_fenced (term, token) VALUES (?, ?)`

	sqlUnfence = `
DELETE FROM %s.scheduler_fenced WHERE id = ?`

	// A row that a hand has deleted or edited has left the fence as it was.
	sqlHeld = `
SELECT count(*) FROM scheduler_lock WHERE id = 1 AND token = ? AND term = ?`
)

// Fence implements driver.Store; t must be a *sql.Tx of the driver
// github.com/go-sql-driver/mysql, of any isolation level, on the server of the lock. On
// Galera that may be another node, if wsrep_sync_wait was 1 or more when t began: else it
// may not have the acquisition yet, and Fence may return ErrLost.
// After a deadlock the server has no transaction any more: then Fence ends t, so that
// nothing that follows is written outside of it.
func (s *Store) Fence(ctx context.Context, t any, ref driver.Ref) error {
	return s.inside(t, func(t tx) error {
		if err := s.fence(ctx, t, ref); err != nil {
			return err
		}
		return held(s.shared.row, ctx, ref) // the snapshot of t may be old
	})
}

// inside calls f with a transaction of the caller's.
func (s *Store) inside(t any, f func(tx) error) error {
	own, ok := t.(*sql.Tx)
	if !ok || own == nil {
		return fmt.Errorf("%w: it is a %T, not a *sql.Tx", driver.ErrNoFence, t)
	}
	err := f(tx{own})
	switch {
	case undone(err):
		_ = own.Rollback()
		if number(err) == errChanged {
			return fmt.Errorf("%w: %w", errNotOurs, err)
		}
	case number(err) == errNoTable || number(err) == errNoDatabase:
		return fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	}
	return s.explain(err)
}

// guard makes a transaction of the store's own fail unless ref holds the lock.
func (s *Store) guard(ctx context.Context, t tx, ref driver.Ref) error {
	if err := s.fence(ctx, t, ref); err != nil {
		return err
	}
	return held(t.row, ctx, ref)
}

func (s *Store) fence(ctx context.Context, t tx, ref driver.Ref) error {
	return s.refer(ctx, t, sqlFence, sqlUnfence, ref.Term, ref.Token.String())
}

// refer inserts a row that refers to another, and deletes it. It returns errNotOurs if
// that is not there.
func (s *Store) refer(ctx context.Context, t tx, insert, remove string, args ...any) error {
	database := quote(s.config.DBName)
	result, err := t.ExecContext(ctx, fmt.Sprintf(insert, database), args...)
	if number(err) == errNoParent {
		return errNotOurs
	}
	if err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, fmt.Sprintf(remove, database), id)
	return err
}

func held(row func(context.Context, string, []any, ...any) error, ctx context.Context,
	ref driver.Ref) error {
	var n int
	err := row(ctx, sqlHeld, []any{ref.Token.String(), ref.Term}, &n)
	if err == nil && n == 0 {
		return errNotOurs
	}
	return err
}
