package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Named returns the named locks of the database. It may be called several
// times. They are judged by the monotonic clock.
func (s *Store) Named() namedlock.Store { return namedStore{s} }

type namedStore struct{ s *Store }

// namedLocks is what a backup has of them. Rows are values.
type namedLocks struct {
	rows  map[namedlock.Key]namedRow // nil: none yet
	floor int64                      // no row with a higher term was cleaned up, or forgotten

	noticed int       // how many fail-overs, and …
	since   time.Time // … since when the last one; zero: there was none, which is long ago
}

// notice is what the first Take after a fail-over does. What was forgotten has
// no term that is as high as the next.
func (n *namedLocks) notice(failOvers int, shown, now time.Time) {
	if n.noticed != failOvers {
		for _, r := range n.rows {
			n.floor = max(n.floor, r.term)
		}
		n.floor = max(n.floor, shown.UnixMilli()) + int64(failOvers-n.noticed)<<36
	} else if !n.since.After(now) {
		return
	}
	n.noticed, n.since = failOvers, now
}

// wait is how long nobody takes what is free, because it may not be.
func (n *namedLocks) wait(ttl time.Duration, now time.Time) time.Duration {
	return n.since.Add(min(ttl, namedlock.MaxTTL)).Sub(now)
}

func (n namedLocks) clone() namedLocks {
	n.rows = maps.Clone(n.rows)
	return n
}

type namedRow struct {
	driver.Owner
	token    driver.Token // zero: nobody holds it
	mark     string       // of a revocation
	term     int64
	ttl      time.Duration
	acquired time.Time // as it is shown
	expires  time.Time // with a monotonic reading, as …
	hold     time.Time // … this one; zero: it does not rest
}

// free reports whether anybody may take it.
func (r namedRow) free(now time.Time) bool {
	return (r.token == driver.Token{} || !r.expires.After(now)) && !r.hold.After(now)
}

// bears reports whether ref may extend or release it.
func (r namedRow) bears(ref namedlock.Ref, now time.Time) bool {
	return r.token == ref.Token && (r.term == ref.Term || ref.Term == 0) && r.expires.After(now)
}

// Take implements namedlock.Store.
func (n namedStore) Take(ctx context.Context,
	c namedlock.Claim) (term int64, holder *namedlock.Row, err error) {
	err = n.s.do(ctx, func(t *tables, shown time.Time) error {
		now := time.Now()
		old, found := t.named.rows[c.Key]
		t.named.notice(n.s.failOvers, shown, now)
		if found && (!old.free(now) || n.s.fencedName(c.Key)) {
			old.mend(now)
			t.named.rows[c.Key] = old
			holder = old.row(c.Key, shown, now)
			return nil
		}
		if left := t.named.wait(max(c.TTL, old.ttl), now); left > 0 {
			holder = failedOver(c.Key, left)
			return nil
		}
		term = max(old.term+1, t.named.floor+1, shown.UnixMilli())
		row := namedRow{Owner: c.Owner, token: c.Token, term: term, ttl: c.TTL, acquired: shown,
			expires: now.Add(c.TTL)}
		if c.Hold > 0 {
			row.hold = now.Add(c.Hold)
		}
		if t.named.rows == nil {
			t.named.rows = map[namedlock.Key]namedRow{}
		}
		t.named.rows[c.Key] = row
		return nil
	})
	return term, holder, err
}

// failedOver is the row of a key that may be forgotten.
func failedOver(key namedlock.Key, left time.Duration) *namedlock.Row {
	return &namedlock.Row{Info: namedlock.Info{Key: key, Left: left, FailedOver: true},
		Unsure: true}
}

// mend lets what has more left than its TTL, since the clock was set back, end
// a TTL from now.
func (r *namedRow) mend(now time.Time) {
	end := now.Add(r.ttl)
	if r.expires.After(end) {
		r.expires = end
	}
	if r.hold.After(end) {
		r.hold = end
	}
}

func (r namedRow) row(key namedlock.Key, shown, now time.Time) *namedlock.Row {
	end := r.expires
	if r.hold.After(end) {
		end = r.hold
	}
	left := max(end.Sub(now), 0) // a fence may be all that keeps it
	row := &namedlock.Row{Token: r.token, TTL: r.ttl, Unsure: left > r.ttl,
		Info: namedlock.Info{Key: key, Owner: r.Owner, Term: r.term, AcquiredAt: r.acquired,
			Age: shown.Sub(r.acquired), Left: left, Resting: r.token == driver.Token{},
			Revoked: namedlock.RevocationOf(r.mark)}}
	if row.Revoked != nil {
		row.Token = driver.Token{}
	}
	return row
}

// Look implements namedlock.Store.
func (n namedStore) Look(ctx context.Context, key namedlock.Key) (row *namedlock.Row, err error) {
	err = n.s.do(ctx, func(t *tables, shown time.Time) error {
		r, now := t.named.rows[key], time.Now()
		ttl := cmp.Or(r.ttl, namedlock.DefaultTTL)
		switch {
		case !r.free(now):
			row = r.row(key, shown, now)
			row.Unsure = row.Unsure || t.named.noticed != n.s.failOvers
		case t.named.noticed != n.s.failOvers:
			row = failedOver(key, min(ttl, namedlock.MaxTTL))
		case t.named.wait(ttl, now) > 0:
			row = failedOver(key, t.named.wait(ttl, now))
		}
		return nil
	})
	return row, err
}

// Extend implements namedlock.Store.
func (n namedStore) Extend(ctx context.Context, ref namedlock.Ref,
	ttl time.Duration) (ours bool, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		r, now := t.named.rows[ref.Key], time.Now()
		if ours = r.bears(ref, now); ours {
			r.expires, r.ttl = now.Add(ttl), ttl
			t.named.rows[ref.Key] = r
		}
		return nil
	})
	return ours, err
}

// Release implements namedlock.Store.
func (n namedStore) Release(ctx context.Context, ref namedlock.Ref,
	keepHold bool) (ours bool, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		r, now := t.named.rows[ref.Key], time.Now()
		if ours = r.bears(ref, now); !ours {
			return nil
		}
		r.token, r.expires = driver.Token{}, now
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

// List implements namedlock.Store.
func (n namedStore) List(ctx context.Context, limit int) (rows []namedlock.Row, err error) {
	err = n.s.do(ctx, func(t *tables, shown time.Time) error {
		now := time.Now()
		keys := slices.SortedFunc(maps.Keys(t.named.rows), func(a, b namedlock.Key) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
		})
		for _, key := range keys {
			if r := t.named.rows[key]; len(rows) < limit && (r.mark != "" || !r.free(now)) {
				rows = append(rows, *r.row(key, shown, now))
			}
		}
		return nil
	})
	return rows, err
}

// Revoke implements namedlock.Store.
func (n namedStore) Revoke(ctx context.Context, key namedlock.Key, term int64,
	mark string) (revoked bool, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		r, now := t.named.rows[key], time.Now()
		if revoked = r.term == term && !r.free(now) && r.mark == ""; !revoked {
			return nil
		}
		if key.Kind == namedlock.KindTimeout || (r.token == driver.Token{}) {
			r.expires = now
		}
		r.token, r.mark, r.hold = driver.NewToken(), mark, time.Time{}
		t.named.rows[key] = r
		return nil
	})
	return revoked, err
}

// Clean implements namedlock.Store.
func (n namedStore) Clean(ctx context.Context, limit int) (deleted int64, err error) {
	err = n.s.do(ctx, func(t *tables, _ time.Time) error {
		now := time.Now()
		keys := slices.SortedFunc(maps.Keys(t.named.rows), func(a, b namedlock.Key) int {
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

// FailOverNamed makes the named locks those of a replica that was promoted, and
// may have forgotten something: what it has, see Backup.
func (s *Store) FailOverNamed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failOvers++
}

// AgeNamed makes all named locks older, as if d had passed since they were
// written; below 0, as if the database's clock had been set back by that.
func (s *Store) AgeNamed(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.tables.named
	n.since = n.since.Add(-d)
	for key, r := range n.rows {
		r.acquired, r.expires = r.acquired.Add(-d), r.expires.Add(-d)
		if !r.hold.IsZero() {
			r.hold = r.hold.Add(-d)
		}
		n.rows[key] = r
	}
}

// SetNamedTerm sets the term of a named lock as an operator's UPDATE would,
// without the holder's knowledge; 0 deletes its row.
func (s *Store) SetNamedTerm(key namedlock.Key, term int64) {
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
