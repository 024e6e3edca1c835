package locktest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

// soundNamed is a store in memory that has all features: a fenced transaction
// is one that holds the turn.
type soundNamed struct {
	named.Store
	db   *memory.Store
	turn chan struct{}
}

type namedTx struct {
	s      *soundNamed
	fenced bool
}

func (tx *namedTx) end() error {
	if tx.fenced {
		tx.fenced = false
		<-tx.s.turn
	}
	return nil
}

func (s *soundNamed) Take(ctx context.Context, c named.Claim) (int64, *named.Row, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		return s.Store.Take(ctx, c)
	case <-time.After(20 * time.Millisecond):
		return 0, nil, errBusy
	}
}

func (s *soundNamed) Fence(ctx context.Context, tx any, ref named.Ref, _ time.Duration) (bool, error) {
	t, ok := tx.(*namedTx)
	if !ok {
		return false, schedlock.ErrNoFence
	}
	if !t.fenced {
		s.turn <- struct{}{}
		t.fenced = true
	}
	row, err := s.Look(ctx, ref.Key)
	return row != nil && row.Token == ref.Token && row.Term == ref.Term, err
}

// namedRig is a sound store of which some methods are replaced.
type namedRig struct {
	take    func(*soundNamed, context.Context, named.Claim) (int64, *named.Row, error)
	look    func(*soundNamed, context.Context, named.Key) (*named.Row, error)
	extend  func(*soundNamed, context.Context, named.Ref, time.Duration) (bool, error)
	release func(*soundNamed, context.Context, named.Ref, bool) (bool, error)
	fence   func(*soundNamed, context.Context, any, named.Ref) (bool, error)
	clean   func(*soundNamed, context.Context, int) (int64, error)
}

type riggedNamed struct {
	*soundNamed
	rig namedRig
}

func (r riggedNamed) Take(ctx context.Context, c named.Claim) (int64, *named.Row, error) {
	if r.rig.take != nil {
		return r.rig.take(r.soundNamed, ctx, c)
	}
	return r.soundNamed.Take(ctx, c)
}

func (r riggedNamed) Look(ctx context.Context, key named.Key) (*named.Row, error) {
	if r.rig.look != nil {
		return r.rig.look(r.soundNamed, ctx, key)
	}
	return r.soundNamed.Look(ctx, key)
}

func (r riggedNamed) Extend(ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
	if r.rig.extend != nil {
		return r.rig.extend(r.soundNamed, ctx, ref, ttl)
	}
	return r.soundNamed.Extend(ctx, ref, ttl)
}

func (r riggedNamed) Release(ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
	if r.rig.release != nil {
		return r.rig.release(r.soundNamed, ctx, ref, keepHold)
	}
	return r.soundNamed.Release(ctx, ref, keepHold)
}

func (r riggedNamed) Fence(ctx context.Context, tx any, ref named.Ref, ttl time.Duration) (bool, error) {
	if r.rig.fence != nil {
		return r.rig.fence(r.soundNamed, ctx, tx, ref)
	}
	return r.soundNamed.Fence(ctx, tx, ref, ttl)
}

func (r riggedNamed) Clean(ctx context.Context, limit int) (int64, error) {
	if r.rig.clean != nil {
		return r.rig.clean(r.soundNamed, ctx, limit)
	}
	return r.soundNamed.Clean(ctx, limit)
}

// database is a new database whose store is rigged.
func (r namedRig) database() NamedDatabase {
	db := memory.New()
	s := &soundNamed{Store: db.Named(), db: db, turn: make(chan struct{}, 1)}
	return NamedDatabase{
		Open: func(testing.TB) named.Store { return riggedNamed{s, r} },
		Age:  func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
		Edit: func(_ testing.TB, key named.Key, term int64) { db.SetNamedTerm(key, term) },
		Begin: func(testing.TB) Tx {
			tx := &namedTx{s: s}
			return Tx{tx, tx.end, tx.end}
		},
		ExtendPassesFence: true,
	}
}

func TestConformanceOfNamedLocks(t *testing.T) {
	RunNamed(t, func(testing.TB) NamedDatabase { return namedRig{}.database() })
}

// present is the row of a key, if somebody holds it.
func present(s *soundNamed, key named.Key) (named.Row, bool) {
	row, _ := s.Look(bg, key)
	if row == nil || row.Resting {
		return named.Row{}, false
	}
	return *row, true
}

// usurp makes ref that of whoever holds its key.
func usurp(s *soundNamed, ref named.Ref) named.Ref {
	if row, held := present(s, ref.Key); held {
		ref.Token, ref.Term = row.Token, row.Term
	}
	return ref
}

// Every rule of the suite, broken at least once: rule, what is wrong with the
// store, and a part of what the suite must say.
var brokenNamedStores = []struct {
	rule int
	name string
	says string
	rig  namedRig
}{
	{1, "an unknown key is an error", "Look", namedRig{look: func(s *soundNamed, ctx context.Context, key named.Key) (*named.Row, error) {
		row, err := s.Look(ctx, key)
		if row == nil {
			err = errBusy
		}
		return row, err
	}}},
	{1, "an unknown key is held", "Expected nil", namedRig{look: func(s *soundNamed, ctx context.Context, key named.Key) (*named.Row, error) {
		row, err := s.Look(ctx, key)
		if row == nil {
			row = &named.Row{}
		}
		return row, err
	}}},
	{2, "the owner is another", "the owner", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.PID = os.Getpid()
		return s.Take(ctx, c)
	}}},
	{2, "the host name is cut", "the owner", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Hostname = c.Hostname[:min(64, len(c.Hostname))]
		return s.Take(ctx, c)
	}}},
	{2, "the TTL is a second", "what is left", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.TTL = time.Second
		return s.Take(ctx, c)
	}}},
	{2, "a year is too long", "", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.TTL = min(c.TTL, 24*time.Hour)
		return s.Take(ctx, c)
	}}},
	{2, "the time is local", "the time", namedRig{look: func(s *soundNamed, ctx context.Context, key named.Key) (*named.Row, error) {
		row, err := s.Look(ctx, key)
		if row != nil {
			row.AcquiredAt = row.AcquiredAt.In(time.FixedZone("", 3600))
		}
		return row, err
	}}},
	{3, "whoever asks gets it", "was taken", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		s.db.SetNamedTerm(c.Key, 0)
		return s.Take(ctx, c)
	}}},
	{3, "who holds it is not told", "who holds it", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		term, _, err := s.Take(ctx, c)
		return term, nil, err
	}}},
	{3, "the loser is written", "after a Take by another", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		term, holder, err := s.Take(ctx, c)
		if holder != nil {
			s.db.SetNamedTerm(c.Key, holder.Term+1)
		}
		return term, holder, err
	}}},
	{4, "it reads, then writes", "how many got it", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		if row, _ := s.Look(ctx, c.Key); row != nil {
			return 0, row, nil
		}
		time.Sleep(5 * time.Millisecond)
		s.db.SetNamedTerm(c.Key, 0)
		return s.Store.Take(ctx, c)
	}}},
	{4, "nobody wins", "how many got it", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		return 0, &named.Row{}, nil
	}}},
	{5, "letter case does not count", "Take of a free key", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Name = strings.ToLower(c.Name)
		return s.Take(ctx, c)
	}}},
	{5, "blanks do not count", "Take of a free key", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Name = strings.TrimSpace(c.Name)
		return s.Take(ctx, c)
	}}},
	{5, "names are cut", "Take of a free key", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Name = c.Name[:min(len(c.Name), 100)]
		return s.Take(ctx, c)
	}}},
	{5, "the kind does not count", "Take of a free key", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Kind = named.KindLock
		return s.Take(ctx, c)
	}}},
	{6, "an expired row is shown", "after the TTL has passed", namedRig{look: func(s *soundNamed, ctx context.Context, key named.Key) (*named.Row, error) {
		row, err := s.Look(ctx, key)
		if row == nil {
			row = &named.Row{Info: named.Info{Key: key}}
		}
		return row, err
	}}},
	{6, "nothing expires", "", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.TTL = 1000 * time.Hour
		return s.Take(ctx, c)
	}}},
	{7, "terms are those of a counter", "the clock", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		term, holder, err := s.Take(ctx, c)
		if term != 0 {
			term = 1
			s.db.SetNamedTerm(c.Key, term)
		}
		return term, holder, err
	}}},
	{7, "terms are the clock's", "", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		term, holder, err := s.Take(ctx, c)
		if term != 0 {
			term = term / 1000 * 1000
			s.db.SetNamedTerm(c.Key, term)
		}
		return term, holder, err
	}}},
	{8, "there is no floor", "is not greater", namedRig{clean: func(s *soundNamed, ctx context.Context, limit int) (int64, error) {
		s.db.SetNamedTerm(aLock, 0)
		return 1, nil
	}}},
	{9, "a deleted row comes back", "", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ours, err := s.Extend(ctx, ref, ttl)
		if row, _ := s.Look(ctx, ref.Key); row == nil {
			_, _, err = s.Take(ctx, named.Claim{Key: ref.Key, Token: ref.Token, TTL: ttl})
		}
		return ours, err
	}}},
	{9, "terms begin anew", "is not greater", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		term, holder, err := s.Take(ctx, c)
		return min(term, 1), holder, err
	}}},
	{10, "it does nothing", "what is left", namedRig{extend: func(*soundNamed, context.Context, named.Ref, time.Duration) (bool, error) { return true, nil }}},
	{10, "it is another acquisition", "", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ours, err := s.Extend(ctx, ref, ttl)
		if row, held := present(s, ref.Key); held {
			s.db.SetNamedTerm(ref.Key, row.Term+1)
		}
		return ours, err
	}}},
	{10, "every TTL is the first one", "what is left of another TTL", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, _ time.Duration) (bool, error) {
		return s.Extend(ctx, ref, namedTTL)
	}}},
	{11, "whoever extends", "Extend, ", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		return s.Extend(ctx, usurp(s, ref), ttl)
	}}},
	{11, "the term does not count", "another term", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ref.Term = 0
		return s.Extend(ctx, ref, ttl)
	}}},
	{11, "it refuses, and extends", "is not less than", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ours, err := s.Extend(ctx, ref, ttl)
		_, _ = s.Extend(ctx, usurp(s, ref), ttl)
		return ours, err
	}}},
	{12, "it is revived", "Extend, after the TTL", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		s.db.AgeNamed(-2 * namedTTL)
		return s.Extend(ctx, ref, ttl)
	}}},
	{13, "it stays", "", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		_, held := present(s, ref.Key)
		return held, nil
	}}},
	{14, "whoever releases", "Release, ", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		return s.Release(ctx, usurp(s, ref), keepHold)
	}}},
	{14, "the term does not count", "another term", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		ref.Term = 0
		return s.Release(ctx, ref, keepHold)
	}}},
	{14, "it is released again", "the second time", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		ours, err := s.Release(ctx, ref, keepHold)
		if _, held := present(s, ref.Key); !held && ref.Key == aLock {
			ours = true
		}
		return ours, err
	}}},
	{15, "the name alone counts", "after a take-over", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		return s.Extend(ctx, usurp(s, ref), ttl)
	}}},
	{15, "what has expired is released", "after the TTL", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		ours, err := s.Release(ctx, ref, keepHold)
		return ours || err == nil && ref.Term != 0 && !ours && func() bool { _, held := present(s, ref.Key); return !held }(), err
	}}},
	{16, "no term is a term", "the right token", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		if ref.Term == 0 {
			return false, nil
		}
		return s.Release(ctx, ref, keepHold)
	}}},
	{16, "without a term it is anybody's", "another token", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		if ref.Term == 0 {
			ref = usurp(s, ref)
		}
		return s.Release(ctx, ref, keepHold)
	}}},
	{17, "it does not rest", "it does not rest", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, _ bool) (bool, error) {
		return s.Release(ctx, ref, false)
	}}},
	{17, "it rests for as long as it was held at most", "", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		c.Hold = c.TTL
		return s.Take(ctx, c)
	}}},
	{17, "who rests can be extended", "while it rests", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ours, err := s.Extend(ctx, ref, ttl)
		row, _ := s.Look(ctx, ref.Key)
		return ours || row != nil && row.Resting, err
	}}},
	{18, "it always rests", "does not keep the time to rest", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, _ bool) (bool, error) {
		return s.Release(ctx, ref, true)
	}}},
	{18, "it rests for ever", "a release after the time to rest", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		if c.Hold > 0 {
			c.Hold += time.Hour
		}
		return s.Take(ctx, c)
	}}},
	{19, "the rest grows", "is not less than", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		ours, err := s.Extend(ctx, ref, ttl)
		s.db.AgeNamed(-namedTTL / 4)
		return ours, err
	}}},
	{19, "there is no rest after it", "it does not rest", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, _ bool) (bool, error) {
		return s.Release(ctx, ref, false)
	}}},
	{20, "what has expired goes at once", "less than a day ago", namedRig{clean: func(s *soundNamed, ctx context.Context, limit int) (int64, error) {
		s.db.AgeNamed(24 * time.Hour)
		defer s.db.AgeNamed(-24 * time.Hour)
		return s.Clean(ctx, limit)
	}}},
	{20, "there is no limit", "a limit of", namedRig{clean: func(s *soundNamed, ctx context.Context, _ int) (int64, error) {
		return s.Clean(ctx, 1000)
	}}},
	{20, "it deletes nothing", "a limit of 3", namedRig{clean: func(s *soundNamed, ctx context.Context, _ int) (int64, error) {
		return 0, nil
	}}},
	{20, "what is held goes too", "what is held for long", namedRig{clean: func(s *soundNamed, ctx context.Context, limit int) (int64, error) {
		n, err := s.Clean(ctx, limit)
		if n == 1 {
			s.db.SetNamedTerm(named.Key{Kind: named.KindLock, Name: "long"}, 0)
		}
		return n, err
	}}},
	{21, "Take has no context", "Take with", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		return s.Take(context.WithoutCancel(ctx), c)
	}}},
	{21, "Look has no context", "Look with", namedRig{look: func(s *soundNamed, ctx context.Context, key named.Key) (*named.Row, error) {
		return s.Look(context.WithoutCancel(ctx), key)
	}}},
	{21, "Extend has no context", "Extend with", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		return s.Extend(context.WithoutCancel(ctx), ref, ttl)
	}}},
	{21, "Release has no context", "Release", namedRig{release: func(s *soundNamed, ctx context.Context, ref named.Ref, keepHold bool) (bool, error) {
		return s.Release(context.WithoutCancel(ctx), ref, keepHold)
	}}},
	{21, "Clean has no context", "Clean with", namedRig{clean: func(s *soundNamed, ctx context.Context, limit int) (int64, error) {
		return s.Clean(context.WithoutCancel(ctx), limit)
	}}},
	{22, "nobody passes", "Fence, the holder's", namedRig{fence: func(*soundNamed, context.Context, any, named.Ref) (bool, error) { return false, nil }}},
	{22, "a fence is another acquisition", "Fence", namedRig{fence: func(s *soundNamed, ctx context.Context, tx any, ref named.Ref) (bool, error) {
		ours, err := s.Fence(ctx, tx, ref, 0)
		s.db.SetNamedTerm(ref.Key, ref.Term+1)
		return ours, err
	}}},
	{23, "everybody passes", "Fence, ", namedRig{fence: func(s *soundNamed, ctx context.Context, tx any, ref named.Ref) (bool, error) {
		_, err := s.Fence(ctx, tx, ref, 0)
		return true, err
	}}},
	{23, "the token does not count", "another token", namedRig{fence: func(s *soundNamed, ctx context.Context, tx any, ref named.Ref) (bool, error) {
		if row, held := present(s, ref.Key); held {
			ref.Token = row.Token
		}
		return s.Fence(ctx, tx, ref, 0)
	}}},
	{23, "the term does not count", "another term", namedRig{fence: func(s *soundNamed, ctx context.Context, tx any, ref named.Ref) (bool, error) {
		if row, held := present(s, ref.Key); held {
			ref.Term = row.Term
		}
		return s.Fence(ctx, tx, ref, 0)
	}}},
	{24, "a take-over slips under it", "in face of a fenced transaction", namedRig{take: func(s *soundNamed, ctx context.Context, c named.Claim) (int64, *named.Row, error) {
		return s.Store.Take(ctx, c)
	}}},
	{25, "extending waits", "beside a fenced transaction", namedRig{extend: func(s *soundNamed, ctx context.Context, ref named.Ref, ttl time.Duration) (bool, error) {
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
			return s.Extend(ctx, ref, ttl)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}}},
	{26, "it fences whatever it gets", "", namedRig{fence: func(s *soundNamed, ctx context.Context, tx any, ref named.Ref) (bool, error) {
		return true, nil
	}}},
}

// recordNamed tries a rule on a database and returns what failed, "" if
// nothing.
func recordNamed(t testing.TB, c namedCase, db NamedDatabase) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.try(r, db, short)
	}()
	<-done
	if r.failed {
		return r.said.String() + " "
	}
	return ""
}

func TestEveryRuleOfNamedLocksCatchesABrokenStore(t *testing.T) {
	caught := map[int]bool{}
	for _, b := range brokenNamedStores {
		t.Run(fmt.Sprintf("%02d %s", b.rule, b.name), func(t *testing.T) {
			said := recordNamed(t, namedCases()[b.rule-1], b.rig.database())
			require.NotEmpty(t, said, "the suite did not notice")
			assert.Contains(t, said, b.says)
			caught[b.rule] = true
		})
	}
	for _, c := range namedCases() {
		assert.True(t, caught[c.Number], "no broken store for rule %d: %s", c.Number, c.Name)
	}
}

// The numbers are given once, and the comment of RunNamed lists them.
func TestTheRulesOfNamedLocksAreNumberedAndListed(t *testing.T) {
	source, err := os.ReadFile("named.go")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(source), "\n//", " ")), " ")
	for i, r := range NamedRules() {
		assert.Equal(t, i+1, r.Number)
		assert.Contains(t, text, fmt.Sprintf("%d. %s", r.Number, r.Text), "the comment of RunNamed")
		assert.NotEmpty(t, r.Name)
		assert.NotEmpty(t, r.Breaks)
	}
}

func TestAFeatureOfNamedLocksThatIsMissingIsNotPassedOver(t *testing.T) {
	for _, c := range namedCases() {
		if len(c.Needs) == 0 {
			continue
		}
		db := namedRig{}.database()
		db.Edit, db.Begin = nil, nil
		assert.Contains(t, recordNamed(t, c, db), "add it, or list it in NamedDatabase.Without", c.Name)
	}
}
