package locktest

import (
	"errors"
	"os"
	"slices"
	"time"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// Stores that break a rule of the lock.
var brokenLocks = []broken{
	{1, "it has a row from the start", "the row", after(func(c *lookCall) {
		if c.v.Row == nil {
			c.v.Row = &driver.Row{}
		}
	})},
	{1, "it fails when there is no row", "Look", after(func(c *lookCall) {
		if c.v.Row == nil {
			c.err = errors.New("no rows")
		}
	})},
	{2, "it reads with two statements", "two moments", after(func(c *lookCall) {
		time.Sleep(2 * time.Millisecond)
		if later, _ := c.s.Look(c.ctx); later.Newest != nil {
			c.v.Newest = later.Newest
		}
	})},
	{3, "a look is a heartbeat", "something was written", after(func(c *lookCall) {
		if c.v.Row != nil {
			_, _ = c.s.Heartbeat(c.ctx, c.v.Row.Ref, c.v.Row.State)
		}
	})},
	{4, "what cannot be read is free", "no error", after(func(c *lookCall) { c.err = nil })},
	{5, "it fails to parse", "Look", after(func(c *lookCall) {
		if c.v.Row != nil && c.v.Row.Token == (driver.Token{}) {
			c.v, c.err = driver.Snapshot{}, errors.New("no token")
		}
	})},
	{5, "it forgets the text", "RawToken", after(func(c *lookCall) {
		if c.v.Row != nil {
			c.v.Row.RawToken = c.v.Row.Token.String()
		}
	})},
	{6, "the clock stands", "20 ms later",
		after(func(c *lookCall) { c.v.Now = time.Unix(0, 0).UTC() })},
	{6, "the clock is local", "Now",
		after(func(c *lookCall) { c.v.Now = c.v.Now.In(time.FixedZone("", 3600)) })},
	{7, "the owner is another", "ref", before(func(c *acquireCall) { c.claim.PID = os.Getpid() })},
	{7, "it counts from one", "the beat",
		after(func(c *acquireCall) { c.s.Edit(func(r *driver.Row) { r.Beat = 1 }) })},
	{8, "it keeps whole seconds", "", before(func(c *acquireCall) {
		c.claim.Timing.TTL = c.claim.Timing.TTL.Truncate(time.Second)
	})},
	{8, "it keeps 64 bytes of a host name", "", before(func(c *acquireCall) {
		c.claim.Hostname = c.claim.Hostname[:min(64, len(c.claim.Hostname))]
	})},
	{9, "the token is not compared", "the token is another",
		swap(func(now, judged *driver.Row) { judged.RawToken = now.RawToken })},
	{9, "the term is not compared", "the term is another",
		swap(func(now, judged *driver.Row) { judged.Term = now.Term })},
	{9, "the beat is not compared", "the beat is another",
		swap(func(now, judged *driver.Row) { judged.Beat = now.Beat })},
	{9, "a row that is gone is free", "the row is gone", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); v.Row == nil {
			c.claim.Expected = v
		}
	})},
	{10, "a free lock is not compared", "another was first", before(func(c *acquireCall) {
		if c.claim.Expected.Row == nil {
			c.claim.Expected, _ = c.s.Look(c.ctx)
		}
	})},
	{10, "the newest term is not compared", "another came and went", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); c.claim.Expected.Row == nil && v.Row == nil {
			c.claim.Expected = v
		}
	})},
	{10, "the row is not looked for", "there is a row", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); c.claim.Expected.Row == nil && c.claim.Expected.Newest != nil &&
			v.Newest.Term == c.claim.Expected.Newest.Term {
			c.s.DeleteRow()
		}
	})},
	{109, "the row is not looked for", "it was not released", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); c.claim.Expected.Row == nil && v.Row != nil {
			c.claim.Expected = v
		}
	})},
	{109, "the end is not looked for", "deleted by hand", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); c.claim.Expected.Row == nil && v.Row == nil {
			c.claim.Expected = v
		}
	})},
	{11, "the loser ends the winner's term", "something was written", after(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); errors.Is(c.err, driver.ErrConflict) && v.Newest != nil {
			other := v.Newest.Ref
			other.PID++
			_, _ = c.s.Release(c.ctx, other, c.claim.Reason)
		}
	})},
	{12, "all win", "does not hold the lock",
		swap(func(now, judged *driver.Row) { *judged = *now })},
	{12, "nobody wins", "how many", refuse(driver.ErrConflict, func(c *acquireCall) bool {
		return c.claim.Hostname == "replica"
	})},
	{13, "all win", "", before(func(c *acquireCall) {
		if c.claim.Expected.Row == nil {
			c.claim.Expected, _ = c.s.Look(c.ctx)
		}
	})},
	{14, "terms do not grow", "the term", after(func(c *acquireCall) { c.grant.Term = 1 })},
	{15, "MinTerm is ignored", "", before(func(c *acquireCall) { c.claim.MinTerm = 0 })},
	{15, "the last term is ignored", "the last + 1", after(func(c *acquireCall) {
		if c.claim.MinTerm == 1 {
			c.grant.Term = c.grant.Now.UnixMilli()
		}
	})},
	{16, "the history alone counts", "after the row's term was raised", after(func(c *acquireCall) {
		if c.claim.MinTerm == 0 && c.grant.Term > c.grant.Now.UnixMilli()+500_000 {
			c.grant.Term = c.grant.Now.UnixMilli()
		}
	})},
	{16, "the row alone counts", "after the row's term was lowered", after(func(c *acquireCall) {
		if v := c.claim.Expected; v.Row != nil && v.Row.Term < v.Newest.Term {
			c.grant.Term = v.Row.Term + 1
		}
	})},
	{16, "an emptied history is not compared", "the history was emptied",
		before(func(c *acquireCall) {
			if v, _ := c.s.Look(c.ctx); v.Row == nil && v.Newest == nil {
				c.claim.Expected = v
			}
		})},
	{16, "an emptied history begins anew", "after the history was emptied",
		before(func(c *acquireCall) { c.claim.MinTerm = 0 })},
	{17, "it remembers what it has not", "a backup was restored",
		swap(func(now, judged *driver.Row) { *judged = *now })},
	{18, "every end is expired", "the reason",
		before(func(c *acquireCall) { c.claim.Reason = driver.EndExpired })},
	{18, "who took over is not told", "who took over",
		eachTerm(func(t *driver.Term) { t.NextTerm = 0 })},
	{19, "an end is written again", "", eachTerm(func(t *driver.Term) {
		if t.NextTerm != 0 {
			t.EndReason = driver.EndExpired
		}
	})},
	{20, "the row goes without the term", "disagree", after(func(c *acquireCall) {
		if c.ctx.Err() != nil {
			c.s.DeleteRow()
		}
	})},
	{21, "the beat stands", "",
		after(func(c *heartbeatCall) { c.s.Edit(func(r *driver.Row) { r.Beat = 0 }) })},
	{21, "the stamp stands", "", after(func(c *heartbeatCall) {
		c.s.Edit(func(r *driver.Row) { r.HeartbeatAt = r.CreatedAt })
	})},
	{22, "draining is not written", "",
		before(func(c *heartbeatCall) { c.state = driver.StateLeading })},
	{23, "revoked is overwritten", "",
		before(func(c *heartbeatCall) { c.s.Edit(func(r *driver.Row) { r.State = c.state }) })},
	{24, "whoever beats", "", before(func(c *heartbeatCall) { c.ref = theirs(c.s, c.ref) })},
	{24, "a heart beats before it is refused", "something was written",
		after(func(c *heartbeatCall) {
			if c.err != nil {
				c.s.Edit(func(r *driver.Row) { r.Beat++ })
			}
		})},
	{25, "it inserts", "after a release", after(func(c *heartbeatCall) {
		if v, _ := c.s.Look(c.ctx); c.err != nil && v.Row == nil && v.Newest != nil {
			_, c.err = c.s.Acquire(c.ctx, driver.Claim{Ref: c.ref, Expected: v})
		}
	})},
	{26, "it reads, then writes", "beats were lost", func(c *heartbeatCall) {
		v, _ := c.s.Look(c.ctx)
		time.Sleep(time.Millisecond)
		c.s.Edit(func(r *driver.Row) { r.Beat = v.Row.Beat + 1 })
		c.renewal = driver.Renewal{State: c.state, Now: v.Now}
	}},
	{27, "the pid is not compared", "another pid",
		before(func(c *releaseCall) { c.ref.PID = theirs(c.s, c.ref).PID })},
	{27, "the hostname is not compared", "another hostname",
		before(func(c *releaseCall) { c.ref.Hostname = theirs(c.s, c.ref).Hostname })},
	{27, "the token is not compared", "another token",
		before(func(c *releaseCall) { c.ref.Token = theirs(c.s, c.ref).Token })},
	{27, "the term is not compared", "another term",
		before(func(c *releaseCall) { c.ref.Term = theirs(c.s, c.ref).Term })},
	{28, "the term stays open", "still open", func(c *releaseCall) { c.deleted = c.s.DeleteRow() }},
	{29, "a second release fails", "", after(func(c *releaseCall) {
		if !c.deleted {
			c.err = driver.ErrLost
		}
	})},
	{30, "whoever looks alike is released", "", before(func(c *releaseCall) {
		if other := theirs(c.s, c.ref); other.Owner == c.ref.Owner {
			c.ref = other
		}
	})},
	{31, "without a row nothing is done", "still open",
		refuse(nil, func(c *releaseCall) bool { return holder(c.s) != c.ref })},
	{32, "the oldest come first", "", after(func(c *termsCall) { slices.Reverse(c.terms) })},
	{32, "a negative limit is none", "limit -1", before(func(c *termsCall) {
		if c.limit < 0 {
			c.limit = 1000
		}
	})},
	{33, "the history has no bound", "1000", after(func(c *termsCall) {
		if len(c.terms) == 1000 {
			c.terms = append(c.terms, c.terms[999])
		}
	})},
	{34, "Acquire has no context", "Acquire", deaf[*acquireCall]},
	{34, "Heartbeat has no context", "Heartbeat", deaf[*heartbeatCall]},
	{34, "Release has no context", "Release", deaf[*releaseCall]},
	{34, "Terms hangs", "Terms did not return", before(func(c *termsCall) {
		if c.ctx.Err() != nil {
			time.Sleep(2 * short)
		}
	})},
	{35, "the holder is refused", "", func(c *fenceCall) { c.err = driver.ErrLost }},
	{36, "everybody passes", "the lease before",
		before(func(c *fenceCall) { c.ref = theirs(c.s, c.ref) })},
	{37, "a fence only looks", "take-over", onlyLooks},
	{38, "a claim waits", "did not return", func(c *acquireCall) {
		for c.do(); c.err != nil && c.ctx.Err() == nil; c.do() {
			time.Sleep(time.Millisecond)
		}
	}},
	{39, "a fence only looks", "changed hands", onlyLooks},
	{40, "a heartbeat waits for the fence", "a heartbeat beside", func(c *heartbeatCall) {
		if c.err = waitForNone(c.ctx, &c.s.open); c.err == nil {
			c.do()
		}
	}},
	{41, "anything is a transaction", "", refuse(nil, func(c *fenceCall) bool {
		_, ok := c.tx.(*memory.Tx)
		return !ok
	})},
	{42, "waiting has no end", "did not return", func(c *hintCall) { time.Sleep(2 * short) }},
	{43, "no hint comes", "after a release", func(c *hintCall) { <-c.ctx.Done() }},
	{43, "the term is another", "the term that was released",
		after(func(c *hintCall) { c.told.Term++ })},
	{43, "the end is another", "its end",
		after(func(c *hintCall) { c.told.At = c.told.At.Add(1) })},
	{88, "the row is not marked", "", after(func(c *revokeCall) {
		c.s.Edit(func(r *driver.Row) { r.State = driver.StateLeading })
	})},
	{88, "it counts as a heartbeat", "",
		after(func(c *revokeCall) { c.s.Edit(func(r *driver.Row) { r.Beat++ }) })},
	{88, "it keeps no reason", "", before(func(c *revokeCall) { c.reason = "" })},
	{88, "the history does not know", "Terms",
		eachTerm(func(t *driver.Term) { t.Revoked = driver.Revocation{} })},
	{89, "the last one is returned", "", after(func(c *revokeCall) { c.revocation.By = c.by })},
	{90, "whoever leads", "",
		before(func(c *revokeCall) { c.term = holder(c.s).Term })},
	{91, "it does not heed its context", "", deaf[*revokeCall]},
	{98, "it keeps no app", "the row", before(func(c *acquireCall) { c.claim.App = driver.App{} })},
	{98, "it keeps the app before", "the row", before(func(c *acquireCall) {
		if v, _ := c.s.Look(c.ctx); c.claim.App == (driver.App{}) && v.Newest != nil {
			c.claim.App = v.Newest.App
		}
	})},
	{98, "it cuts names", "the row", before(func(c *acquireCall) {
		c.claim.App.Name = c.claim.App.Name[:min(len(c.claim.App.Name), 63)]
	})},
	{98, "the history forgets it", "the history",
		eachTerm(func(t *driver.Term) { t.App = driver.App{} })},
}

// onlyLooks does not keep the row for the transaction that it gets.
func onlyLooks(c *fenceCall) {
	tx := c.s.Begin()
	defer tx.Rollback()
	c.tx = tx
	c.do()
}
