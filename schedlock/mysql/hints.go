package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"time"

	"example.com/schedlock/schedlock/driver"
)

// A standby is woken by the lock of the holder's session, which it waits for on a
// connection of its own: the server gives it away when the holder releases it, or its
// session ends. Each lock is waited for until it was got once. Nothing is decided by it.

const (
	sqlWait = `SELECT CASE WHEN ` + sqlProcess + ` = ? THEN get_lock(?, ?) END`

	sqlPassOn = `DO release_lock(?)`
)

const (
	// waitLimit bounds one wait, as the end of a context does not end the statement.
	waitLimit = 5 * time.Second

	// passOn is how long a standby that was woken keeps the lock from the next one. So they
	// do not come all at once, and most of them find another holder.
	passOn = 3 * time.Millisecond
)

// WithPolling lets standbys notice a release when they look, within a second. They need
// one connection less. Default: the release wakes them.
func WithPolling() Option {
	return func(s *Store) error {
		s.polling = true
		return nil
	}
}

// A probe is what AwaitHint needs of a look.
type probe struct{ process, lock string }

// AwaitHint implements driver.Store: it returns when the holder releases the lock, or its
// session ends. Through a proxy, or on another node of a cluster, it just waits.
func (s *Store) AwaitHint(ctx context.Context, view driver.Snapshot) (untold driver.Release) {
	if p, ok := view.Probe.(probe); !ok || !s.await(ctx, p) {
		<-ctx.Done()
	}
	return untold
}

// await reports whether there was a hint.
func (s *Store) await(ctx context.Context, p probe) bool {
	if last := s.heard.Load(); last != nil && *last == p {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	conn, err := s.waiting.db.Conn(ctx)
	if err != nil {
		return false
	}
	for {
		limit := waitLimit
		if deadline, ok := ctx.Deadline(); ok { // leaves time for the answer
			left := time.Until(deadline)
			limit = min(limit, left-left/20)
		}
		if limit < 5*time.Millisecond {
			_ = conn.Close()
			return false
		}
		var got sql.NullBool
		err := row(ctx, conn, sqlWait, []any{p.process, p.lock, limit.Seconds()}, &got)
		switch {
		case err != nil || !got.Valid:
			_ = conn.Close()
			return false
		case got.Bool:
			s.heard.Store(&p)
			if !s.inBackground(func() { s.passOn(conn, p.lock) }) {
				_ = conn.Close()
			}
			return true
		}
	}
}

// passOn wakes the next standby.
func (s *Store) passOn(conn *sql.Conn, lock string) {
	select {
	case <-time.After(passOn):
	case <-s.life.Done():
	}
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	if _, err := conn.ExecContext(ctx, sqlPassOn, lock); err != nil {
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // the server releases it
	}
	_ = conn.Close()
}
