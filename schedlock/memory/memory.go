// Package memory keeps the scheduler lock and the run ledger in memory, for
// unit tests of code that uses them. Several Locks on one Store are the
// replicas of one fleet. It judges nothing and knows no signs of death: what
// it grants and refuses is what a Store on a database would, with each call
// one transaction. It runs in a testing/synctest bubble.
package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// keepTerms is how many terms of history stay.
const keepTerms = 1000

var (
	_ ledger.Store = (*Store)(nil)
)

// A Store is the database. All methods are safe for concurrent use; a call
// whose context has ended does nothing and returns the context's cause.
type Store struct {
	driver.Base // what this database lacks

	now func() time.Time

	mu        sync.Mutex
	tables    tables
	failOvers int              // for the named locks
	open      map[*Tx]struct{} // the transactions that have not ended
}

// tables is what a backup has. Everything in it is a value, so that a copy
// shares nothing.
type tables struct {
	held     bool
	row      driver.Row
	terms    []driver.Term // oldest first
	jobs     map[string]ledger.Job
	runs     []ledger.Run // in the order of their ids
	lastID   int64
	attempts map[int64][]ledger.Attempt // of a run those that were replaced, oldest first
	ticks    map[tickKey]int64          // the id of the run
	requests map[tickKey]ledger.Request
	pauses   map[string]ledger.Pause // the latest of each job; of the whole scheduler under ""
	named    namedLocks
	tasks    map[taskKey]task
	lastTask int64 // seq

	audit     []ledger.AuditEntry // oldest first
	lastAudit int64               // id

	replicas []ledger.Replica // is not changed, but replaced
}

func (t tables) clone() tables {
	t.terms, t.runs = slices.Clone(t.terms), slices.Clone(t.runs)
	t.jobs, t.ticks = maps.Clone(t.jobs), maps.Clone(t.ticks)
	t.attempts = maps.Clone(t.attempts)
	t.requests, t.pauses = maps.Clone(t.requests), maps.Clone(t.pauses)
	t.tasks, t.audit = maps.Clone(t.tasks), slices.Clone(t.audit)
	t.named = t.named.clone()
	return t
}

// An Option sets something on New.
type Option func(*Store)

// WithClock replaces time.Now as the database's clock, which may step as it
// likes: nothing is judged by it.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// New makes an empty database.
func New(opts ...Option) *Store {
	s := &Store{now: time.Now, tables: tables{
		jobs: map[string]ledger.Job{}, ticks: map[tickKey]int64{},
		attempts: map[int64][]ledger.Attempt{},
		requests: map[tickKey]ledger.Request{}, pauses: map[string]ledger.Pause{},
		tasks: map[taskKey]task{},
	}}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// stamp is the database's time as a table keeps it: UTC, in microseconds,
// without a monotonic part.
func (s *Store) stamp() time.Time { return tick(s.now()) }

// do runs one transaction. f must have done all its checks before it changes
// anything: there is no roll-back.
func (s *Store) do(ctx context.Context, f func(t *tables, now time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return f(&s.tables, s.stamp())
}

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (v driver.Snapshot, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		v.Now = now
		if t.held {
			row := t.row
			v.Row = &row
		}
		if n := len(t.terms); n > 0 {
			newest := t.terms[n-1]
			v.Newest = &newest
		}
		return nil
	})
	return v, err
}

// Acquire implements driver.Store.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		var last int64
		if n := len(t.terms); n > 0 {
			last = t.terms[n-1].Term
		}
		if judged := c.Expected.Row; judged != nil {
			if !t.held || t.row.RawToken != judged.RawToken || t.row.Term != judged.Term ||
				t.row.Beat != judged.Beat {
				return driver.ErrConflict
			}
			if err := s.fenced(driver.ErrBlocked); err != nil {
				return err
			}
			last = max(last, judged.Term)
		} else {
			var newest int64
			reopened := false
			if judged := c.Expected.Newest; judged != nil {
				newest = judged.Term
				reopened = last == newest && !judged.Open() && t.terms[len(t.terms)-1].Open()
			}
			if t.held || last != newest || reopened {
				return driver.ErrConflict
			}
			if err := s.fenced(driver.ErrConflict); err != nil { // its row was deleted by hand
				return err
			}
		}
		grant = driver.Grant{Term: max(last+1, c.MinTerm, now.UnixMilli()), Now: now}
		for i := range t.terms {
			old := &t.terms[i]
			if old.Open() {
				old.EndedAt, old.EndReason = now, c.Reason
			}
			if old.Term == last {
				old.NextTerm = grant.Term
			}
		}
		ref := c.Ref
		ref.Term = grant.Term
		t.held = true
		t.row = driver.Row{Ref: ref, RawToken: ref.Token.String(), State: driver.StateLeading,
			CreatedAt: now, HeartbeatAt: now, Timing: c.Timing, App: c.App}
		t.terms = append(t.terms, driver.Term{Ref: ref,
			AcquiredAt: now, TTL: c.Timing.TTL, App: c.App})
		t.terms = t.terms[max(0, len(t.terms)-keepTerms):]
		return nil
	})
	return grant, err
}

// holds returns an error that wraps ErrLost unless the row bears ref's token
// and term.
func (t *tables) holds(ref driver.Ref) error {
	if !t.held || t.row.RawToken != ref.Token.String() || t.row.Term != ref.Term {
		return fmt.Errorf("%w: the lock row does not bear this lease's token any more",
			driver.ErrLost)
	}
	return nil
}

// Heartbeat implements driver.Store.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref,
	state driver.State) (beat driver.Renewal, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if err := t.holds(ref); err != nil {
			return err
		}
		t.row.Beat++
		t.row.HeartbeatAt = now
		if t.row.State != driver.StateRevoked {
			t.row.State = state
		}
		beat = driver.Renewal{State: t.row.State, Now: now}
		return nil
	})
	return beat, err
}

// Release implements driver.Store.
func (s *Store) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	err = s.do(ctx, func(t *tables, now time.Time) error {
		if t.holds(ref) == nil && t.row.Owner == ref.Owner {
			if err := s.fenced(driver.ErrConflict); err != nil {
				return err
			}
			t.held, t.row = false, driver.Row{}
			deleted = true
		}
		for i := range t.terms {
			if term := &t.terms[i]; term.Term == ref.Term && term.Token == ref.Token &&
				term.Open() {
				term.EndedAt, term.EndReason = now, reason
			}
		}
		return nil
	})
	return deleted, err
}

// Terms implements driver.Store.
func (s *Store) Terms(ctx context.Context, limit int) (terms []driver.Term, err error) {
	err = s.do(ctx, func(t *tables, _ time.Time) error {
		terms = slices.Clone(t.terms[max(0, len(t.terms)-max(limit, 0)):])
		slices.Reverse(terms)
		return nil
	})
	return terms, err
}

// Edit changes the lock row as an operator's UPDATE would, without the
// holder's knowledge. It reports false, and does not call f, if there is no
// row. To spoil the token set RawToken to whatever the text shall be.
func (s *Store) Edit(f func(*driver.Row)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tables.held {
		return false
	}
	row := &s.tables.row
	before := row.Token
	f(row)
	if row.Token != before {
		row.RawToken = row.Token.String()
	}
	row.Token, _ = driver.ParseToken(row.RawToken) // an edited one is nobody's
	return true
}

// DeleteRow deletes the lock row as an operator's DELETE would: the term it
// belongs to stays open. It reports whether there was a row.
func (s *Store) DeleteRow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.tables.held
	s.tables.held, s.tables.row = false, driver.Row{}
	return held
}

// Backup returns a function that puts the database back to what it is now, as
// restoring a backup would. It may be called several times.
func (s *Store) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	backup := s.tables.clone()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tables = backup.clone()
	}
}
