package named

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"example.com/schedlock/internal/names"
)

// listLimit is how many locks List returns.
const listLimit = 1000

// List tells who holds which lock, of any kind, and which locks were revoked and
// not taken since; the latter have no time left once they can be taken. At most
// 1,000, by kind and name.
func (l *Locks) List(ctx context.Context) ([]Info, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	rows, err := l.store.List(ctx, listLimit)
	if err != nil {
		return nil, fmt.Errorf("list named locks: %w", err)
	}
	infos := make([]Info, len(rows))
	for i, row := range rows {
		infos[i] = row.Info
	}
	return infos, nil
}

// ErrNotHeld is what Revoke returns for a lock that nobody has under that term.
var ErrNotHeld = errors.New("nobody holds the lock under that term")

// Revoke is for an operator: it takes a lock from its holder, which finds out at
// its next extension, at most a third of its TTL later. Its context ends then; the cause
// says who and why as soon as the database has told, and so does the log. Nobody takes
// the lock before the time of the holder's last extension is over, so two never hold it.
// What nobody holds, but nobody may take yet (a task lock at rest, a time-out lock), is
// free at once.
//
// It acts only on the acquisition with that term, which Info and List tell, else it
// returns ErrNotHeld. If that was revoked before it returns the first order. by has at
// most 200 bytes and is not blank, reason at most 1,000, in several lines if need be.
// Neither has control characters; blanks around them are dropped.
func (l *Locks) Revoke(ctx context.Context, key Key, term int64, by,
	reason string) (Revocation, error) {
	by, reason = strings.TrimSpace(by), strings.TrimSpace(reason)
	if err := errors.Join(checkKey(key),
		names.CheckOrder("the name of who revokes", by, reason)); err != nil {
		return Revocation{}, fmt.Errorf("revoke: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	r := Revocation{By: by, Reason: reason}
	revoked, err := l.store.Revoke(ctx, key, term, r.Mark())
	if err != nil {
		return Revocation{}, broken("revoke", key, err)
	}
	if revoked {
		return r, nil
	}
	row, err := l.store.Look(ctx, key)
	switch {
	case err != nil:
		return Revocation{}, broken("look at", key, err)
	case row != nil && row.Term == term && row.Revoked != nil:
		return *row.Revoked, nil
	}
	return Revocation{}, broken("revoke", key, ErrNotHeld)
}

// explain completes the cause of the end of a lock that could not be extended: who has
// revoked it. The log says so too, as whoever has logged the end did not know it yet.
func (k *Lock) explain(ctx context.Context, cause *endError) {
	r := k.revocation(ctx)
	if r == nil {
		return
	}
	why := fmt.Sprintf("it was revoked by %s: %s", r.By, r.Reason)
	cause.why.Store(&why)
	k.locks.log.Info("a lock was revoked", "lock", k.ref.Key.String(), "term", k.ref.Term,
		"by", r.By, "reason", r.Reason)
}

// revocation is who has revoked the lock; nil if nobody has, or it can't be told any more.
func (k *Lock) revocation(ctx context.Context) *Revocation {
	row, err := k.locks.store.Look(ctx, k.ref.Key)
	if err != nil || row == nil || row.Term != k.ref.Term {
		return nil
	}
	return row.Revoked
}
