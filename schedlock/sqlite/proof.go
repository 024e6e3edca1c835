package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"example.com/schedlock/schedlock"
)

// A heldByte is a byte of the lease file that this process holds for a token:
// from before its row is committed until after it is gone.
type heldByte struct {
	leaseByte
	doubtful bool // whether its row was committed is not known yet
}

// ProofOfDeath returns nil if the death of a holder can be proven here, so
// that a crash is noticed at once, and otherwise why not: the TTL decides then.
func (s *Store) ProofOfDeath() error { return s.leaseErr }

// probed is what AwaitHint needs of a look.
type probed struct {
	token schedlock.Token
	state leaseState
}

// probe says what the lease file shows of the holder that v tells of. It comes
// after the tables were read: what it finds free then was free, or was given
// back, at a time when the row that was read stood or had gone already.
func (s *Store) probe(v *schedlock.View, rowFile, termFile string) {
	if s.lease == nil {
		return
	}
	var (
		p      probed
		fileID string
	)
	if v.Row != nil {
		p.token, fileID = v.Row.Token, rowFile
	} else if v.Newest != nil {
		p.token, fileID = v.Newest.Token, termFile
	}
	var err error
	if p.state, err = s.lease.probe(p.token); err != nil {
		return // cannot tell
	}
	v.Sign, v.Probe = p.state.sign(v.Row != nil, fileID), p
}

// holdByte takes the byte of a claim, inside its transaction and before the
// INSERT, and looks at the signs once more. It returns the id of the lease
// file for the row: NULL if the death of this holder could not be proven.
func (s *Store) holdByte(c schedlock.Claim) (id sql.NullString, err error) {
	if s.lease == nil {
		return id, nil
	}
	held, err := s.lease.hold(c.Token)
	if err == nil {
		id = sql.NullString{String: held.id, Valid: true}
		s.mu.Lock()
		s.bytes[c.Token] = heldByte{leaseByte: held, doubtful: true}
		s.mu.Unlock()
	}
	if c.Watched {
		return id, nil
	}
	before, ok := c.Judged.Probe.(probed)
	if !ok {
		if c.Judged.Sign != schedlock.SignNone {
			return id, schedlock.ErrMoved
		}
		return id, nil // judged without signs
	}
	now, err := s.lease.probe(before.token, c.Token)
	if err != nil || now != before.state {
		return id, fmt.Errorf("%w: the lease file shows another sign", schedlock.ErrMoved)
	}
	return id, nil
}

// dropByte gives the byte of a token back, if there is one.
func (s *Store) dropByte(t schedlock.Token) {
	s.mu.Lock()
	held, ok := s.bytes[t]
	delete(s.bytes, t)
	s.mu.Unlock()
	if ok {
		_ = held.release() // the descriptor is closed in any case
	}
}

// trustByte ends the doubt about a byte: its row was committed.
func (s *Store) trustByte(t schedlock.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held, ok := s.bytes[t]; ok {
		held.doubtful = false
		s.bytes[t] = held
	}
}

// settleBytes drops the doubtful bytes whose row is not there. It runs in the
// same turn as the look that found row, so no claim is under way.
func (s *Store) settleBytes(row *schedlock.Row) {
	s.mu.Lock()
	var drop []schedlock.Token
	for t, held := range s.bytes {
		if held.doubtful && (row == nil || t != row.Token) {
			drop = append(drop, t)
		}
	}
	s.mu.Unlock()
	for _, t := range drop {
		s.dropByte(t)
	}
}

// AwaitHint implements schedlock.HintedStore: the kernel tells when the byte
// of the holder is given back, by a release or by its death, and no statement
// is run to learn it.
func (s *Store) AwaitHint(ctx context.Context, view schedlock.View) {
	p, ok := view.Probe.(probed)
	if !ok {
		<-ctx.Done()
		return
	}
	s.lease.await(ctx, p.token, p.state)
}
