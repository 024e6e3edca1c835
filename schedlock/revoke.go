package schedlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Revocation is an operator's order to a leader to leave. The zero value is
// none.
type Revocation struct {
	At     time.Time // by the database's clock
	By     string    // who
	Reason string    // why, or ""
}

// A RevocableStore can tell a holder to leave.
type RevocableStore interface {
	Store

	// Revoke sets the state of the row to StateRevoked if it bears term, and
	// keeps who and why with that term, in one transaction. It returns what
	// the history says then: a term that was revoked before keeps its first
	// revocation. If the row does not bear term it returns ErrMoved and has
	// written nothing. It never deletes the row.
	Revoke(ctx context.Context, term int64, by, reason string) (Revocation, error)
}

// ErrNotRevocable says that the store cannot revoke.
var ErrNotRevocable = errors.New("this store cannot revoke the lock")

const (
	maxRevokedBy    = 200
	maxRevokeReason = 1000
)

// Revoke tells the holder of term to leave: at its next heartbeat it starts
// nothing new, waits for what runs up to its drain limit, and releases the
// lock, so that another replica leads. by says who tells it (required, at most
// 200 bytes), reason why (at most 1,000 bytes); the history keeps both. It may
// be called from any process, and again: the first revocation of a term is the
// one that is kept and returned.
//
// It ends no lease by itself. The row of a holder that is dead or hung goes by
// the rules of every other one, never earlier. The error wraps ErrMoved if term
// does not hold the lock any more.
func Revoke(ctx context.Context, store Store, term int64, by, reason string) (Revocation, error) {
	s, ok := store.(RevocableStore)
	if !ok {
		return Revocation{}, fmt.Errorf("%w: %T", ErrNotRevocable, store)
	}
	by, reason = strings.TrimSpace(by), strings.TrimSpace(reason)
	if err := checkRevocation(by, reason); err != nil {
		return Revocation{}, fmt.Errorf("revoke term %d: %w", term, err)
	}
	r, err := s.Revoke(ctx, term, by, reason)
	if errors.Is(err, ErrMoved) {
		return Revocation{}, fmt.Errorf("revoke term %d: it does not hold the lock any more: %w", term, err)
	}
	if err != nil {
		return Revocation{}, fmt.Errorf("revoke term %d: %w", term, err)
	}
	return r, nil
}

func checkRevocation(by, reason string) error {
	if by == "" {
		return errors.New("it does not say by whom")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{{"the name of who revokes", by, maxRevokedBy}, {"the reason", reason, maxRevokeReason}} {
		if len(f.value) > f.limit {
			return fmt.Errorf("%s has %d bytes, %d are allowed", f.name, len(f.value), f.limit)
		}
		if !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0) {
			return fmt.Errorf("%s %.40q is not UTF-8, or contains NUL", f.name, f.value)
		}
	}
	return nil
}
