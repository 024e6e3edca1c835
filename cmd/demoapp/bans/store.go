package bans

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// batchRows bounds the rows that one transaction writes, and so its length: on
// SQLite the leader's heartbeat waits for it.
const batchRows = 1000

// Ban is one banned network.
type Ban struct {
	Prefix    netip.Prefix
	List      string // the file that named it in the last import
	FirstSeen time.Time
	LastSeen  time.Time
	ExpiresAt time.Time
}

// Fence is the first statement of each write transaction. An error rolls the
// transaction back and ends the work. Lease.Fence is one.
type Fence func(ctx context.Context, tx *sql.Tx) error

// Store keeps bans in the table "bans" of db. It is safe for concurrent use; the
// caller opens and closes db.
type Store struct {
	db      *sql.DB
	dialect Dialect
}

// NewStore returns a Store on db. Call Migrate before anything else.
func NewStore(db *sql.DB, dialect Dialect) *Store {
	return &Store{db: db, dialect: dialect}
}

// Migrate creates the table if it is missing, and fails if the role may not use
// it. Any number of processes may call it at once; a table that exists costs one
// read or two, and no write.
func (s *Store) Migrate(ctx context.Context) error {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		err := s.migrate(ctx)
		if err == nil {
			return s.checkRights(ctx)
		}
		if attempt == attempts || !lostRace(err) {
			return fmt.Errorf("create the table bans (%s): %w", s.dialect, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create the table bans (%s): %w", s.dialect, ctx.Err())
		case <-time.After(time.Duration(attempt) * 20 * time.Millisecond):
		}
	}
}

func (s *Store) migrate(ctx context.Context) error {
	var exists bool
	if err := s.db.QueryRowContext(ctx, s.dialect.exists).Scan(&exists); err != nil ||
		exists {
		return err
	}
	return s.write(ctx, nil, func(tx *sql.Tx) error {
		for _, query := range s.dialect.create {
			if _, err := tx.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) checkRights(ctx context.Context) error {
	if s.dialect.rights == "" {
		return nil
	}
	var missing string
	if err := s.db.QueryRowContext(ctx, s.dialect.rights).Scan(&missing); err != nil {
		return fmt.Errorf("check the rights on the table bans (%s): %w", s.dialect, err)
	}
	if missing != "" {
		return fmt.Errorf("a right on the table bans is missing: %s", missing)
	}
	return nil
}

// lostRace reports whether another process was creating the table at the same
// moment: a busy database on SQLite; on PostgreSQL, where IF NOT EXISTS does not
// see an uncommitted table, a unique violation in the catalogue, a duplicate
// table or object, a failed serialization or a deadlock.
func lostRace(err error) bool {
	if busy, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err); ok && busy.Temporary() {
		return true
	}
	if state, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		switch state.SQLState() {
		case "23505", "42P07", "42710", "40001", "40P01":
			return true
		}
	}
	return false
}

// Latest returns at most limit bans, the newest first.
func (s *Store) Latest(ctx context.Context, limit int) ([]Ban, error) {
	bans, err := s.latest(ctx, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list the latest bans: %w", err)
	}
	return bans, nil
}

func (s *Store) latest(ctx context.Context, limit int) ([]Ban, error) {
	rows, err := s.db.QueryContext(ctx, s.dialect.latest, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var bans []Ban
	for rows.Next() {
		var ban Ban
		var prefix string
		if err := rows.Scan(&prefix, &ban.List,
			(*stamp)(&ban.FirstSeen), (*stamp)(&ban.LastSeen),
			(*stamp)(&ban.ExpiresAt)); err != nil {
			return nil, err
		}
		if ban.Prefix, err = netip.ParsePrefix(prefix); err != nil {
			return nil, err
		}
		bans = append(bans, ban)
	}
	return bans, rows.Err()
}

// Count returns the number of bans.
func (s *Store) Count(ctx context.Context) (int, error) {
	var n int
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM bans`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the bans: %w", err)
	}
	return n, nil
}

// Expire deletes the bans whose time is over at now, at most 1,000 a transaction,
// each behind fence (nil for none). It returns how many it deleted, also beside
// an error.
func (s *Store) Expire(ctx context.Context, now time.Time, fence Fence) (int, error) {
	total := 0
	for {
		var n int
		err := s.write(ctx, fence, func(tx *sql.Tx) (err error) {
			n, err = affected(tx.ExecContext(ctx, s.dialect.expire,
				s.dialect.timeArg(now), batchRows))
			return err
		})
		if err != nil {
			return total, fmt.Errorf("expire bans: %w", err)
		}
		total += n
		if n < batchRows {
			return total, nil
		}
	}
}

// write runs fence and then do in one transaction, which it commits if both
// return nil. No transaction begins under an ended context.
func (s *Store) write(ctx context.Context, fence Fence, do func(tx *sql.Tx) error) (err error) {
	defer func() {
		// database/sql rolls back behind our back when ctx ends, and what fails
		// then fails for a reason that is not the reason.
		if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}()
	tx, err := s.db.BeginTx(ctx, s.dialect.txOpts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no-op once committed
	if fence != nil {
		if err := fence(ctx, tx); err != nil {
			return fmt.Errorf("fence: %w", err)
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// affected is the number of rows that a statement wrote.
func affected(result sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}
