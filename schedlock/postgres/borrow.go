package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A new leader has no connection for its runs yet, as a standby keeps none but the lock's. To
// open one, and to plan on it what the first run needs, takes longer than the hand-over itself.
// But the lock's own connection is there, and warm: see prime. So at the beginning of a term the
// statements of the runs go over it, one at a time. None of them waits for anybody for longer
// than its lock_timeout, and heartbeats come in between.
const (
	borrowFor  = 250 * time.Millisecond // from the acquisition on
	borrowWait = 10 * time.Millisecond  // for the turn; who has waited in vain takes the pool
)

// borrow gives a statement of the runs the lock's connection; nil: there is none for it. What is
// sent goes on although its caller does not wait any more: to cut it off would end the session,
// by which others judge.
func (s *Store) borrow(ctx context.Context) (limited context.Context, conn *pgx.Conn,
	giveBack func()) {
	if at := s.granted.Load(); at == nil || time.Since(*at) > s.borrowFor || ctx.Err() != nil {
		return ctx, nil, nil
	}
	wait, done := context.WithTimeout(ctx, s.borrowWait)
	defer done()
	if s.turn.Take(wait, s.closed) != nil {
		return ctx, nil, nil
	}
	if s.conn == nil || s.conn.IsClosed() || s.conn != s.primed || s.unprimed {
		s.turn.Give()
		return ctx, nil, nil
	}
	limit := s.bound
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	return limited, s.conn, func() {
		cancel()
		if s.conn.IsClosed() {
			s.drop()
		}
		s.turn.Give()
	}
}
