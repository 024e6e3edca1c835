package locktest

import (
	"errors"
	"os"
	"strings"
	"time"

	"example.com/schedlock/schedlock/driver/namedlock"
)

// Stores of named locks that break a rule: each rule at least once.
var brokenNamedStores = []broken{
	{1, "an unknown key is an error", "Look", after(func(c *lookNamedCall) {
		if c.row == nil {
			c.err = errors.New("no rows")
		}
	})},
	{1, "an unknown key is held", "Expected nil", after(func(c *lookNamedCall) {
		if c.row == nil {
			c.row = &namedlock.Row{}
		}
	})},
	{2, "the owner is another", "the owner",
		before(func(c *takeCall) { c.claim.PID = os.Getpid() })},
	{2, "the host name is cut", "the owner", before(func(c *takeCall) {
		c.claim.Hostname = c.claim.Hostname[:min(64, len(c.claim.Hostname))]
	})},
	{2, "the TTL is a second", "what is left",
		before(func(c *takeCall) { c.claim.TTL = time.Second })},
	{2, "a year is too long", "",
		before(func(c *takeCall) { c.claim.TTL = min(c.claim.TTL, 24*time.Hour) })},
	{2, "the time is local", "the time", after(func(c *lookNamedCall) {
		if c.row != nil {
			c.row.AcquiredAt = c.row.AcquiredAt.In(time.FixedZone("", 3600))
		}
	})},
	{3, "whoever asks gets it", "was taken",
		before(func(c *takeCall) { c.s.db.SetNamedTerm(c.claim.Key, 0) })},
	{3, "who holds it is not told", "who holds it", after(func(c *takeCall) { c.holder = nil })},
	{3, "the loser is written", "after a Take by another", after(func(c *takeCall) {
		if c.holder != nil {
			c.s.db.SetNamedTerm(c.claim.Key, c.holder.Term+1)
		}
	})},
	{4, "it reads, then writes", "how many got it", func(c *takeCall) {
		if row, _ := c.s.Look(c.ctx, c.claim.Key); row != nil {
			c.holder = row
			return
		}
		time.Sleep(5 * time.Millisecond)
		c.s.db.SetNamedTerm(c.claim.Key, 0)
		c.term, c.holder, c.err = c.s.Store.Take(c.ctx, c.claim)
	}},
	{4, "nobody wins", "how many got it",
		func(c *takeCall) { c.holder = &namedlock.Row{} }},
	{5, "letter case does not count", "Take of a free key",
		before(func(c *takeCall) { c.claim.Name = strings.ToLower(c.claim.Name) })},
	{5, "blanks do not count", "Take of a free key",
		before(func(c *takeCall) { c.claim.Name = strings.TrimSpace(c.claim.Name) })},
	{5, "names are cut", "Take of a free key",
		before(func(c *takeCall) { c.claim.Name = c.claim.Name[:min(len(c.claim.Name), 100)] })},
	{5, "the kind does not count", "Take of a free key",
		before(func(c *takeCall) { c.claim.Kind = namedlock.KindLock })},
	{6, "an expired row is shown", "after the TTL has passed", after(func(c *lookNamedCall) {
		if c.row == nil {
			c.row = &namedlock.Row{Info: namedlock.Info{Key: c.key}}
		}
	})},
	{6, "nothing expires", "", before(func(c *takeCall) { c.claim.TTL = 1000 * time.Hour })},
	{7, "terms are those of a counter", "the clock", after(func(c *takeCall) {
		if c.term != 0 {
			c.term = 1
			c.s.db.SetNamedTerm(c.claim.Key, c.term)
		}
	})},
	{7, "terms are the clock's", "", after(func(c *takeCall) {
		if c.term != 0 {
			c.term = c.term / 1000 * 1000
			c.s.db.SetNamedTerm(c.claim.Key, c.term)
		}
	})},
	{8, "there is no floor", "is not greater", func(c *cleanCall) {
		c.s.db.SetNamedTerm(aLock, 0)
		c.n = 1
	}},
	{9, "a deleted row comes back", "", after(func(c *extendNamedCall) {
		if row, _ := c.s.Look(c.ctx, c.ref.Key); row == nil {
			_, _, c.err = c.s.Take(c.ctx,
				namedlock.Claim{Key: c.ref.Key, Token: c.ref.Token, TTL: c.ttl})
		}
	})},
	{9, "terms begin anew", "is not greater", after(func(c *takeCall) { c.term = min(c.term, 1) })},
	{10, "it does nothing", "what is left", func(c *extendNamedCall) { c.ours = true }},
	{10, "it is another acquisition", "", after(func(c *extendNamedCall) {
		if row, held := present(c.s, c.ref.Key); held {
			c.s.db.SetNamedTerm(c.ref.Key, row.Term+1)
		}
	})},
	{10, "every TTL is the first one", "what is left of another TTL",
		before(func(c *extendNamedCall) { c.ttl = namedTTL })},
	{11, "whoever extends", "Extend, ",
		before(func(c *extendNamedCall) { c.ref = usurp(c.s, c.ref) })},
	{11, "the term does not count", "another term",
		before(func(c *extendNamedCall) { c.ref.Term = 0 })},
	{11, "it refuses, and extends", "is not less than",
		after(func(c *extendNamedCall) { _, _ = c.s.Extend(c.ctx, usurp(c.s, c.ref), c.ttl) })},
	{12, "it is revived", "Extend, after the TTL",
		before(func(c *extendNamedCall) { c.s.db.AgeNamed(-2 * namedTTL) })},
	{13, "it stays", "", func(c *releaseNamedCall) {
		_, c.ours = present(c.s, c.ref.Key)
	}},
	{14, "whoever releases", "Release, ",
		before(func(c *releaseNamedCall) { c.ref = usurp(c.s, c.ref) })},
	{14, "the term does not count", "another term",
		before(func(c *releaseNamedCall) { c.ref.Term = 0 })},
	{14, "it is released again", "the second time", after(func(c *releaseNamedCall) {
		if _, held := present(c.s, c.ref.Key); !held && c.ref.Key == aLock {
			c.ours = true
		}
	})},
	{15, "the name alone counts", "after a take-over",
		before(func(c *extendNamedCall) { c.ref = usurp(c.s, c.ref) })},
	{15, "what has expired is released", "after the TTL", after(func(c *releaseNamedCall) {
		if _, held := present(c.s, c.ref.Key); c.err == nil && c.ref.Term != 0 && !held {
			c.ours = true
		}
	})},
	{16, "no term is a term", "the right token",
		refuse(nil, func(c *releaseNamedCall) bool { return c.ref.Term == 0 })},
	{16, "without a term it is anybody's", "another token", before(func(c *releaseNamedCall) {
		if c.ref.Term == 0 {
			c.ref = usurp(c.s, c.ref)
		}
	})},
	{17, "it does not rest", "it does not rest",
		before(func(c *releaseNamedCall) { c.keepHold = false })},
	{17, "it rests for as long as it was held at most", "",
		before(func(c *takeCall) { c.claim.Hold = c.claim.TTL })},
	{17, "who rests can be extended", "while it rests", after(func(c *extendNamedCall) {
		row, _ := c.s.Look(c.ctx, c.ref.Key)
		c.ours = c.ours || row != nil && row.Resting
	})},
	{18, "it always rests", "does not keep the time to rest",
		before(func(c *releaseNamedCall) { c.keepHold = true })},
	{18, "it rests for ever", "a release after the time to rest", before(func(c *takeCall) {
		if c.claim.Hold > 0 {
			c.claim.Hold += time.Hour
		}
	})},
	{19, "the rest grows", "is not less than",
		after(func(c *extendNamedCall) { c.s.db.AgeNamed(-namedTTL / 4) })},
	{19, "there is no rest after it", "it does not rest",
		before(func(c *releaseNamedCall) { c.keepHold = false })},
	{20, "what has expired goes at once", "less than a day ago", func(c *cleanCall) {
		c.s.db.AgeNamed(24 * time.Hour)
		defer c.s.db.AgeNamed(-24 * time.Hour)
		c.do()
	}},
	{20, "there is no limit", "a limit of", before(func(c *cleanCall) { c.limit = 1000 })},
	{20, "it deletes nothing", "a limit of 3", func(*cleanCall) {}},
	{20, "what is held goes too", "what is held for long", after(func(c *cleanCall) {
		if c.n == 1 {
			c.s.db.SetNamedTerm(namedlock.Key{Kind: namedlock.KindLock, Name: "long"}, 0)
		}
	})},
	{21, "Take has no context", "Take with", deaf[*takeCall]},
	{21, "Look has no context", "Look with", deaf[*lookNamedCall]},
	{21, "Extend has no context", "Extend with", deaf[*extendNamedCall]},
	{21, "Release has no context", "Release", deaf[*releaseNamedCall]},
	{21, "Clean has no context", "Clean with", deaf[*cleanCall]},
	{22, "nobody passes", "Fence, the holder's", func(*fenceNamedCall) {}},
	{22, "a fence is another acquisition", "Fence",
		after(func(c *fenceNamedCall) { c.s.db.SetNamedTerm(c.ref.Key, c.ref.Term+1) })},
	{23, "everybody passes", "Fence, ", after(func(c *fenceNamedCall) { c.ours = true })},
	{23, "the token does not count", "another token", before(func(c *fenceNamedCall) {
		if row, held := present(c.s, c.ref.Key); held {
			c.ref.Token = row.Token
		}
	})},
	{23, "the term does not count", "another term", before(func(c *fenceNamedCall) {
		if row, held := present(c.s, c.ref.Key); held {
			c.ref.Term = row.Term
		}
	})},
	{24, "a fence only looks", "in face of a fenced transaction", func(c *fenceNamedCall) {
		tx := c.s.db.Begin()
		defer tx.Rollback()
		c.tx = tx
		c.do()
	}},
	{25, "extending waits", "beside a fenced transaction", func(c *extendNamedCall) {
		if c.err = waitForNone(c.ctx, &c.s.open); c.err == nil {
			c.do()
		}
	}},
	{26, "it fences whatever it gets", "", func(c *fenceNamedCall) { c.ours = true }},
	{27, "it believes its clock", "what is left", func(c *takeCall) {
		if row, _ := c.s.Look(c.ctx, c.claim.Key); row != nil && row.Unsure && !row.FailedOver {
			c.holder = row
			return
		}
		c.do()
	}},
	{27, "it is taken at once", "it was taken", before(func(c *takeCall) {
		if row, _ := c.s.Look(c.ctx, c.claim.Key); row != nil && row.Unsure && !row.FailedOver {
			c.s.db.SetNamedTerm(c.claim.Key, 0)
		}
	})},
	{27, "no TTL is longer than a day", "what is left of a week", after(func(c *takeCall) {
		if c.holder != nil {
			c.holder.Left = min(c.holder.Left, namedlock.MaxTTL)
		}
	})},
	{27, "those who wait only look", "Look is sure", sure},
	{28, "what is free is free", "it was taken", forgetful(func(*takeCall) bool { return true })},
	{28, "what has no row is free", "of what was never taken: it was taken",
		forgetful(func(c *takeCall) bool { return c.holder.Name == "never taken" })},
	{28, "a short wait will do", "before the TTL: it was taken",
		forgetful(func(c *takeCall) bool { return c.holder.Left < namedTTL/2 })},
	{28, "the row's TTL does not count", "before the TTL of the row: it was taken",
		forgetful(func(c *takeCall) bool {
			return c.holder.Name == "expired" && c.holder.Left < 5*namedTTL/2
		})},
	{28, "the claim's TTL does not count", "before the TTL of the claim: it was taken",
		forgetful(func(c *takeCall) bool { return c.claim.TTL == 2*namedTTL })},
	{28, "one fail-over is enough", "after another fail-over: it was taken",
		forgetful(func(c *takeCall) bool { return c.holder.Name == "another" })},
	{28, "Look knows of none", "Look at what was expired: free", after(func(c *lookNamedCall) {
		if c.row != nil && c.row.FailedOver {
			c.row = nil
		}
	})},
	{29, "a fail-over ends it", "Extend, the holder's", func(c *extendNamedCall) {
		row, _ := c.s.Look(c.ctx, namedlock.Key{Kind: namedlock.KindLock, Name: "unknown"})
		if row == nil {
			c.do()
		}
	}},
	{29, "a release vouches", "after a release: it was taken",
		after(func(c *releaseNamedCall) { c.s.db.AgeNamed(namedTTL + time.Millisecond) })},
	{29, "those who wait only look", "Look is sure", sure},
	{30, "terms follow the clock", "2^36", after(func(c *takeCall) {
		if c.term > time.Now().UnixMilli()+1<<35 {
			c.term -= 1 << 36
			c.s.db.SetNamedTerm(c.claim.Key, c.term)
		}
	})},
	{30, "each name has its own", "the term of never taken", after(func(c *takeCall) {
		if c.term != 0 && c.claim.Name != "a" && c.claim.Name != "b" {
			c.term = time.Now().UnixMilli()
			c.s.db.SetNamedTerm(c.claim.Key, c.term)
		}
	})},
	{31, "a revocation frees the row at once", "", func(c *revokeNamedCall) {
		row, err := c.s.Look(c.ctx, c.key)
		if row == nil || row.Term != c.term || err != nil {
			c.err = err
			return
		}
		ref := namedlock.Ref{Key: c.key, Token: row.Token, Term: c.term}
		c.ours, c.err = c.s.Release(c.ctx, ref, false)
	}},
	{31, "it revokes any term", "another term", func(c *revokeNamedCall) {
		row, err := c.s.Look(c.ctx, c.key)
		if row == nil || err != nil {
			c.err = err
			return
		}
		c.ours, c.err = c.s.Store.Revoke(c.ctx, c.key, row.Term, c.mark)
	}},
	{32, "a list has no limit", "",
		func(c *listNamedCall) { c.rows, c.err = c.s.Store.List(c.ctx, 1000) }},
	{32, "what rests goes on resting", "", func(c *revokeNamedCall) { c.ours = true }},
}
