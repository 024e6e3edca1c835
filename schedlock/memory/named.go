package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/named"
)

// Named returns the named locks of the database. It may be called several
// times. They are judged by the monotonic clock.
func (s *Store) Named() named.Store { return namedStore{s} }

type namedStore struct{ s *Store }

// namedLocks is what a backup has of them. Rows are values.
type namedLocks struct {
	rows  map[named.Key]namedRow // nil: none yet
	floor int64                  // no row with a higher term was cleaned up
}

func (n namedLocks) clone() namedLocks {
	n.rows = maps.Clone(n.rows)
	return n
}

type namedRow struct {
	schedlock.Owner
	token    schedlock.Token // zero: nobody holds it
	term     int64
	acquired time.Time // as it is shown
	expires  time.Time // with a monotonic reading, as …
	hold     time.Time // … this one; zero: it does not rest
}

// free reports whether anybody may take it.
func (r namedRow) free(now time.Time) bool {
	return (r.token == schedlock.Token{} || !r.expires.After(now)) && !r.hold.After(now)
}

// bears reports whether ref may extend or release it.
func (r namedRow) bears(ref named.Ref, now time.Time) bool {
	return r.token == ref.Token && (r.term == ref.Term || ref.Term == 0) && r.expires.After(now)
}

// Take implements named.Store.
func (n namedStore) Take(ctx context.Context, c named.Claim) (term int64, holder *named.Row, err error) {
	err = n.s.do(ctx, func(t *tables, shown time.Time) error {
		now := time.Now()
		old, found := t.named.rows[c.Key]
		if found && !old.free(now) {
			holder = old.row(c.Key, shown, now)
			return nil
		}
		term = max(old.term+1, t.named.floor+1, shown.UnixMilli())
		row := namedRow{Owner: c.Owner, token: c.Token, term: term, acquired: shown, expires: now.Add(c.TTL)}
		if c.Hold > 0 {
			row.hold = now.Add(c.Hold)
		}
		if t.named.rows == nil {
			t.named.rows = map[named.Key]namedRow{}
		}
		t.named.rows[c.Key] = row
		return nil
	})
	return term, holder, err
}

func (r namedRow) row(key named.Key, shown, now time.Time) *named.Row {
	end := r.expires
	resting := r.token == schedlock.Token{} || !end.After(now)
	if resting || r.hold.After(end) {
		end = r.hold
	}
	return &named.Row{Token: r.token, Info: named.Info{Key: key, Owner: r.Owner, Term: r.term, AcquiredAt: r.acquired,
		Age: shown.Sub(r.acquired), Left: end.Sub(now), Resting: resting}}
}

// Look implements named.Store.
func (n namedStore) Look(ctx context.Context, key named.Key) (row *named.Row, err error) {
	err = n.s.do(ctx, func(t *tables, shown time.Time) error {
		if r, now := t.named.rows[key], time.Now(); !r.free(now) {
			row = r.row(key, shown, now)
		}
		return nil
	})
	return row, err
}

// Extend implements named.Store.
func (n namedStore) Extend(ctx context.Context, ref named.Ref, ttl time.Duration) (ours bool, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		r, now := t.named.rows[ref.Key], time.Now()
		if ours = r.bears(ref, now); ours {
			r.expires = now.Add(ttl)
			t.named.rows[ref.Key] = r
		}
		return nil
	})
	return ours, err
}

// Release implements named.Store.
func (n namedStore) Release(ctx context.Context, ref named.Ref, keepHold bool) (ours bool, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		r, now := t.named.rows[ref.Key], time.Now()
		if ours = r.bears(ref, now); !ours {
			return nil
		}
		r.token, r.expires = schedlock.Token{}, now
		if !keepHold || !r.hold.After(now) {
			r.hold = time.Time{}
		} else {
			r.expires = r.hold
		}
		t.named.rows[ref.Key] = r
		return nil
	})
	return ours, err
}

// Fence implements named.Store: there are no transactions to guard.
func (n namedStore) Fence(context.Context, any, named.Ref, time.Duration) (bool, error) {
	return false, schedlock.ErrNoFence
}

// Clean implements named.Store.
func (n namedStore) Clean(ctx context.Context, limit int) (deleted int64, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		now := time.Now()
		keys := slices.SortedFunc(maps.Keys(t.named.rows), func(a, b named.Key) int {
			return t.named.rows[a].expires.Compare(t.named.rows[b].expires)
		})
		for _, key := range keys {
			r := t.named.rows[key]
			if deleted >= int64(limit) || r.expires.After(now.Add(-24*time.Hour)) {
				break
			}
			if !r.free(now) {
				continue
			}
			t.named.floor = max(t.named.floor, r.term)
			delete(t.named.rows, key)
			deleted++
		}
		return nil
	})
	return deleted, err
}

// AgeNamed makes all named locks older, as if d had passed since they were
// written.
func (s *Store) AgeNamed(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.tables.named.rows {
		r.acquired, r.expires = r.acquired.Add(-d), r.expires.Add(-d)
		if !r.hold.IsZero() {
			r.hold = r.hold.Add(-d)
		}
		s.tables.named.rows[key] = r
	}
}

// SetNamedTerm sets the term of a named lock as an operator's UPDATE would,
// without the holder's knowledge; 0 deletes its row.
func (s *Store) SetNamedTerm(key named.Key, term int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, found := s.tables.named.rows[key]
	switch {
	case !found:
	case term == 0:
		delete(s.tables.named.rows, key)
	default:
		r.term = term
		s.tables.named.rows[key] = r
	}
}
