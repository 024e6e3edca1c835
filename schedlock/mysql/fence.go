package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"example.com/schedlock/schedlock/driver"
)

// A row that refers to that of the fence keeps it from being deleted until the
// transaction ends: so heartbeats pass, and a take-over does not. Its insertion looks
// at the newest committed row of the fence, whatever snapshot the transaction has. It
// goes at once, so that the table stays empty; the lock stays.
const (
	sqlFence = `
SET STATEMENT innodb_lock_wait_timeout = 1 FOR
INSERT INTO %s.scheduler_fenced (term, token) VALUES (?, ?)`

	sqlUnfence = `
DELETE FROM %s.scheduler_fenced WHERE id = ?`

	// A row that a hand has deleted or edited has left the fence as it was.
	sqlHeld = `
SELECT count(*) FROM scheduler_lock WHERE id = 1 AND token = ? AND term = ?`
)

// Fence implements driver.Store; t must be a *sql.Tx of the driver
// github.com/go-sql-driver/mysql, of any isolation level, on the server of the lock.
// After a deadlock the server has no transaction any more: then Fence ends t, so that
// nothing that follows is written outside of it.
func (s *Store) Fence(ctx context.Context, t any, ref driver.Ref) error {
	own, ok := t.(*sql.Tx)
	if !ok {
		return fmt.Errorf("%w: it is a %T, not a *sql.Tx", driver.ErrNoFence, t)
	}
	err := s.fence(ctx, tx{own}, ref)
	if err == nil {
		err = held(s.shared.row, ctx, ref) // the snapshot of t may be old
	}
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
	database := quote(s.config.DBName)
	result, err := t.ExecContext(ctx, fmt.Sprintf(sqlFence, database), ref.Term,
		ref.Token.String())
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
	if id == 0 {
		return errors.New("the driver does not tell the id of a new row")
	}
	_, err = t.exec(ctx, fmt.Sprintf(sqlUnfence, database), id)
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
