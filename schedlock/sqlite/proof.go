package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"

	"example.com/schedlock/internal/leasefile"
	"example.com/schedlock/schedlock/driver"
)

// A heldByte is a byte of the lease file that this process holds for a token:
// from before its row is committed until after it is gone.
type heldByte struct {
	leasefile.Byte
	over bool // its release has failed: nobody works under it any more
}

// ProofOfDeath implements driver.Store: it returns nil if the death of
// a holder can be proven here, so that a crash is noticed at once, and otherwise
// why not: the TTL decides then.
func (s *Store) ProofOfDeath() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.leaseErr, s.holdErr, s.probeErr)
}

// LeaseDescriptor returns a descriptor for a program that starts others under a
// lease, and hands it on to them: while it is open in any process, nobody takes the
// holder of the lease for dead before its TTL has passed, though the program has
// died. A release is not held up by it. The caller closes the file. (nil, nil): no
// death can be proven here, so the TTL decides anyway.
func (s *Store) LeaseDescriptor(token driver.Token) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.bytes[token]
	if !ok {
		return nil, nil
	}
	return held.Duplicate()
}

// probed is what a claim and AwaitHint need of a look.
type probed struct {
	token   driver.Token
	state   leasefile.State
	without []driver.Token // whose bytes do not count
}

// probe says what the lease file shows of the holder that v tells of. It comes
// after the tables were read: what it finds free then was free, or was given
// back, at a time when the row that was read stood or had gone already.
func (s *Store) probe(ctx context.Context, v *driver.Snapshot, rowFile, termFile string) {
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
	// Only a claim decides: here an answer that cannot be had is no.
	superseded := func(id string, held leasefile.Span) (t driver.Token, ok bool) {
		_ = s.use(ctx, func(ctx context.Context, _ *sql.Conn) (err error) {
			t, ok, err = s.superseded(ctx, v.Row, id, held)
			return err
		})
		return t, ok
	}
	var err error
	p.state, p.without, err = s.lease.ProbeWithout(p.token, superseded, s.overBytes())
	s.mu.Lock()
	s.probeErr = err
	s.mu.Unlock()
	if err == nil {
		leftover := v.Row != nil && v.Newest != nil && v.Row.Term == v.Newest.Term &&
			!v.Newest.Open()
		v.Sign, v.Probe = p.state.Sign(v.Row != nil && !leftover, fileID), p
	}
}

// sqlSuperseded finds the terms whose tokens may have a byte, by the first 60
// bits, and how many of them have ended for certain, beside one lease file.
const sqlSuperseded = `
SELECT count(*), max(token), sum(ended_at IS NOT NULL AND ended_file_id = ?2)
FROM scheduler_terms
WHERE lower(substr(token, 1, 15)) = ?1`

// superseded is the rule by which a held byte does not count: it is not that of
// the row's token, and exactly one term has its token, with an end that bears the
// id of this lease file. Such an end was written by somebody who knew that the
// leader of that term had stopped for good: itself, or who took over from it. An
// end without that may be one that a hand has written, or that comes from a copy
// of the database that lived on elsewhere, while its leader leads on here. See
// docs/architecture.md, "Superseded bytes". The turn is held; a claim asks inside
// its transaction.
func (s *Store) superseded(ctx context.Context, row *driver.Row, id string,
	held leasefile.Span) (t driver.Token, ok bool, err error) {
	if held.Length != 1 || row != nil && leasefile.Offset(row.Token) == held.Start {
		return t, false, nil
	}
	var (
		terms, ended sql.NullInt64
		token        sql.NullString
	)
	prefix := fmt.Sprintf("%015x", uint64(held.Start-leasefile.First)>>1)
	if err := (tx{s}).row(ctx, sqlSuperseded, []any{prefix, id}, &terms, &token,
		&ended); err != nil {
		return t, false, err
	}
	if t, err = driver.ParseToken(token.String); err != nil || terms.Int64 != 1 ||
		ended.Int64 != 1 {
		return t, false, nil
	}
	return t, leasefile.Offset(t) == held.Start, nil
}

// sayUnproven tells why the death of the holder in the row could not be proven.
func (s *Store) sayUnproven(row *driver.Row, fileID string) {
	switch err := s.ProofOfDeath(); {
	case row == nil:
	case err != nil:
		row.TTLOnly = err.Error()
	case fileID == "":
		row.TTLOnly = "the holder could not lock the lease file; its log says why"
	}
}

// holdByte takes the byte of a claim, inside its transaction and before the
// INSERT, and looks at the signs once more. It returns the id of the lease file
// for the row: NULL if the death of this holder could not be proven; and for the
// end of the term before: NULL unless its leader has stopped for certain, because
// it was watched for its TTL or is proven dead.
func (s *Store) holdByte(ctx context.Context,
	c driver.Claim) (id, ended sql.NullString, err error) {
	for _, t := range s.overBytes() {
		s.dropByte(t)
	}
	held := leasefile.Byte{}
	if s.lease != nil {
		held, err = s.lease.Hold(c.Token)
	}
	s.mu.Lock()
	s.tenures[c.Token] = tenure{set: s.files.set(), lease: fileID{dev: held.Dev, ino: held.Ino}}
	s.retick()
	if s.holdErr = err; held.Release != nil {
		id = sql.NullString{String: held.ID, Valid: true}
		s.bytes[c.Token] = heldByte{Byte: held}
		s.probeErr = nil
	}
	s.mu.Unlock()
	if s.lease == nil {
		return id, ended, nil
	}
	if c.Watched {
		return id, id, nil
	}
	before, ok := c.Expected.Probe.(probed)
	if !ok {
		if c.Expected.Sign != driver.SignNone {
			return id, ended, driver.ErrConflict
		}
		return id, ended, nil // judged without signs
	}
	var failed error
	superseded := func(id string, held leasefile.Span) (t driver.Token, ok bool) {
		t, ok, failed = s.superseded(ctx, c.Expected.Row, id, held)
		return t, ok
	}
	now, _, err := s.lease.ProbeWithout(before.token, superseded, []driver.Token{c.Token})
	if failed != nil {
		return id, ended, failed
	}
	if err != nil || now != before.state {
		return id, ended, fmt.Errorf("%w: the lease file shows another sign", driver.ErrConflict)
	}
	if c.Expected.Sign == driver.SignDead {
		ended = id
	}
	return id, ended, nil
}

// dropByte gives the byte of a token back, if there is one.
func (s *Store) dropByte(t driver.Token) {
	s.mu.Lock()
	held, ok := s.bytes[t]
	delete(s.bytes, t)
	delete(s.tenures, t)
	s.retick()
	s.mu.Unlock()
	if ok {
		held.Release()
	}
}

// endByte remembers that the lease of a token is over, and all that was done under
// it, although its row may still stand.
func (s *Store) endByte(t driver.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held, ok := s.bytes[t]; ok {
		held.over = true
		s.bytes[t] = held
	}
}

// overBytes returns the tokens of the bytes whose release has failed.
func (s *Store) overBytes() (over []driver.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, held := range s.bytes {
		if held.over {
			over = append(over, t)
		}
	}
	return over
}

// heldFile is the id of the lease file in which the byte of a token is held; NULL
// if none is.
func (s *Store) heldFile(t driver.Token) (id sql.NullString) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.bytes[t]
	return sql.NullString{String: held.ID, Valid: ok}
}

// doubt remembers that an acquisition has ended without an answer to its commit.
func (s *Store) doubt(t driver.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.tenures[t]
	held.doubtful = true
	s.tenures[t] = held
}

// settleBytes ends the doubts: it drops the tenures and bytes whose row is not
// there, or not any more though its release had failed. One
// whose row is there was committed, and this replica may lead on it from now
// on: what a hand does to the row later frees it no more. It runs in the same
// turn as the look that found row. An acquisition that has not returned yet is not in
// doubt: it may lead although this look has found another row.
func (s *Store) settleBytes(row *driver.Row) {
	s.mu.Lock()
	var drop []driver.Token
	for t, held := range s.tenures {
		switch {
		case !held.doubtful && !s.bytes[t].over:
		case row != nil && t == row.Token:
			held.doubtful = false
			s.tenures[t] = held
		default:
			drop = append(drop, t)
		}
	}
	s.mu.Unlock()
	for _, t := range drop {
		s.dropByte(t)
	}
}

// AwaitHint implements driver.Store: the kernel tells when the byte
// of the holder is given back, by a release or by its death, and no statement
// is run to learn it.
func (s *Store) AwaitHint(ctx context.Context, view driver.Snapshot) (untold driver.Release) {
	p, ok := view.Probe.(probed)
	if !ok {
		<-ctx.Done()
		return untold
	}
	s.prime(ctx)
	s.lease.Await(ctx, p.token, p.state, p.without...)
	return untold
}
