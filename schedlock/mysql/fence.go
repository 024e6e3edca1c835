package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"example.com/schedlock/schedlock/driver"
)

// A row that refers to that of the fence keeps it from being deleted until the
// transaction ends: so heartbeats pass, and a take-over does not. Its insertion looks
// at the newest committed row of the fence, whatever snapshot the transaction has. It
// goes at once, so that the table stays empty; the lock stays. The app's session may have
// foreign_key_checks = 0, by which the row would refer to nothing. The term is NULL, which the
// server refuses, where the row would be committed at once.
const (
	sqlFence = `
SET STATEMENT innodb_lock_wait_timeout = 1, foreign_key_checks = 1 FOR
INSERT INTO %s.scheduler_fenced (term, token) VALUES (if(@@in_transaction, ?, NULL), ?)`

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
//
// DDL after the fence ends the transaction, and so does a deadlock: then nothing is
// fenced any more, and t must be given up. Fence returns ErrNoFence if that was before.
// When it fails it ends t if the server has, or may have, undone it: so nothing that
// follows is written outside of it. After any error roll t back at once: it may keep a
// lock that is free from everybody.
func (s *Store) Fence(ctx context.Context, t any, ref driver.Ref) error {
	return s.fenced(t, func(t tx) error {
		if err := s.fence(ctx, t, ref); err != nil {
			return err
		}
		return held(s.shared.row, ctx, ref) // the snapshot of t may be old
	})
}

func (s *Store) fenced(t any, f func(tx) error) error {
	err := inside(t, driver.ErrNoFence, f)
	switch number(err) {
	case errChanged:
		return fmt.Errorf("%w: %w", errNotOurs, err)
	case errNoTable, errNoDatabase:
		return fmt.Errorf("%w: %w", driver.ErrNoFence, err)
	}
	return s.explainTheirs(err)
}

// errEnded: what follows in the session would be committed at once, for itself.
var errEnded = errors.New("the server has ended the transaction already, " +
	"after DDL in it, or a deadlock")

const sqlTakes = `
SELECT @@in_transaction, @@character_set_client = 'utf8mb4'
    AND @@character_set_connection = 'utf8mb4'
    AND coalesce(@@character_set_results, 'utf8mb4') = 'utf8mb4'`

// takes returns an error unless the server has the transaction and gets texts as they are.
func (t tx) takes(ctx context.Context, texts ...string) error {
	var open, whole bool
	err := t.row(ctx, sqlTakes, nil, &open, &whole)
	switch i := slices.IndexFunc(texts, beyondASCII); {
	case err != nil:
		return err
	case !open:
		return errEnded
	case !whole && i >= 0:
		return fmt.Errorf("%q has other characters than ASCII: "+
			"the session of the transaction must have the character set utf8mb4", texts[i])
	}
	return nil
}

func beyondASCII(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII })
}

// inside calls f with a transaction of the caller's. The error wraps none if it is not one.
func inside(t any, none error, f func(tx) error) error {
	own, ok := t.(*sql.Tx)
	if !ok || own == nil {
		return fmt.Errorf("%w: it is a %T, not a *sql.Tx", none, t)
	}
	err := f(tx{own})
	ended := errors.Is(err, errEnded)
	// With innodb_rollback_on_timeout a wait for a lock that was too long has undone all of it.
	if ended || undone(err) || number(err) == errLockTimeout {
		_ = own.Rollback()
	}
	if ended {
		return fmt.Errorf("%w: %w", none, err)
	}
	return err
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
// that is not there, and errEnded if t has no transaction any more.
func (s *Store) refer(ctx context.Context, t tx, insert, remove string, args ...any) error {
	database := quote(s.config.DBName)
	result, err := t.ExecContext(ctx, fmt.Sprintf(insert, database), args...)
	if number(err) == errNoParent {
		return errNotOurs
	}
	if number(err) == errNull {
		return errEnded
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
