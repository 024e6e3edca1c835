package locktest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

var namedRowCases = []namedCase{
	{Rule: Rule{1, "an unknown key is free",
		"Look returns nil, without an error, for a key that was never taken.",
		"a lock that nobody ever had cannot be taken, or looks held.", nil},
		run: func(e *namedEnv) {
			require.Nil(e, e.row(aLock))
		}},
	{Rule: Rule{2, "a claim is written",
		"Take of a free key grants a term, and Look then returns the row: key, token, owner, " +
			"term, the time in UTC, and what is left of its TTL.",
		"nobody can tell who holds what.", nil},
		run: func(e *namedEnv) {
			c := claimOf(aLock, driver.Owner{PID: 1 << 30,
				Hostname: "it's \"ü\" " + strings.Repeat("x", 240)})
			ref := e.take(c)
			row := e.row(aLock)
			require.NotNil(e, row, "the row is free")
			require.Equal(e, ref, namedlock.Ref{Key: row.Key, Token: row.Token, Term: row.Term},
				"the ref")
			require.Equal(e, c.Owner, row.Owner, "the owner")
			require.Equal(e, time.UTC, row.AcquiredAt.Location(), "the time")
			require.GreaterOrEqual(e, row.Age, time.Duration(0), "the age")
			require.Less(e, row.Age, e.patience, "the age")
			require.False(e, row.Resting)
			e.near(namedTTL, row.Left, "what is left")
			for _, ttl := range []time.Duration{40 * time.Millisecond, 366 * 24 * time.Hour} {
				c := claimOf(namedlock.Key{Kind: namedlock.KindTimeout, Name: ttl.String()}, bob)
				c.TTL = ttl
				e.take(c)
			}
			require.Greater(e, e.row(namedlock.Key{Kind: namedlock.KindTimeout,
				Name: (366 * 24 * time.Hour).String()}).Left, 365*24*time.Hour)
		}},
	{Rule: Rule{3, "what is held is not taken",
		"Take of a key that is held returns no term, and the holder's row; nothing is written.",
		"two work under one lock.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for _, s := range []namedlock.Store{e.s, e.db.Open(e)} {
				term, holder, err := s.Take(e.ctx, claimOf(aLock, bob))
				require.NoError(e, err)
				require.Zero(e, term, "a lock that is held was taken")
				require.NotNil(e, holder, "who holds it")
				require.Equal(e, alice, holder.Owner)
				require.Equal(e, ref.Token, holder.Token)
				e.still(ref, "after a Take by another")
				require.Equal(e, alice, e.row(aLock).Owner)
			}
		}},
	{Rule: Rule{4, "of many one wins",
		"Of many that take a key at the same time exactly one gets it, also if it was held " +
			"before and has expired.",
		"two work under one lock, once in a thousand.", nil},
		run: func(e *namedEnv) {
			handles := []namedlock.Store{e.s, e.db.Open(e), e.db.Open(e)}
			var last int64
			for round := range 6 {
				var (
					mu    sync.Mutex
					terms []int64
					errs  []error
				)
				together(slices.Repeat(handles, 4), func(s namedlock.Store) {
					for { // until it is taken or held
						term, holder, err := s.Take(e.ctx, claimOf(aLock, bob))
						if term == 0 && holder == nil && err == nil && e.ctx.Err() == nil {
							continue
						}
						mu.Lock()
						defer mu.Unlock()
						if term != 0 {
							terms = append(terms, term)
						}
						if err != nil {
							errs = append(errs, err)
						}
						return
					}
				})
				require.Empty(e, errs)
				require.Len(e, terms, 1, "how many got it, round %d", round)
				require.Greater(e, terms[0], last)
				last = terms[0]
				e.db.Age(e, 2*namedTTL)
			}
		}},
	{Rule: Rule{5, "names do not collide",
		"Names of up to 200 bytes are kept as they are: letter case, blanks, quotes and any " +
			"letters tell them apart, and so does the kind.",
		"one lock keeps out those who want another.", nil},
		run: func(e *namedEnv) {
			names := []string{"a", "A", " a", "a ", "a'b", `a"b`, `a\b`, "a%", "a_", "ä", "a\u0308",
				"世界", "\t\n", "''",
				strings.Repeat("n", 200), strings.Repeat("n", 199), strings.Repeat("世", 66)}
			refs := map[namedlock.Key]namedlock.Ref{}
			for _, name := range names {
				for _, kind := range []namedlock.Kind{namedlock.KindLock, namedlock.KindTask,
					namedlock.KindTimeout, namedlock.KindElection} {
					key := namedlock.Key{Kind: kind, Name: name}
					refs[key] = e.lock(key)
				}
			}
			for key, ref := range refs {
				e.still(ref, key.String())
			}
			e.release(refs[aLock], true, true, "one of many")
			require.Nil(e, e.row(aLock))
			delete(refs, aLock)
			for key, ref := range refs {
				e.still(ref, key.String()+", after another was released")
			}
		}},
	{Rule: Rule{6, "what has expired is free",
		"A row whose TTL has passed is free: Look returns nil, and Take grants it.",
		"a holder that died is waited for by hand.", nil},
		run: func(e *namedEnv) {
			e.lock(aLock)
			e.db.Age(e, namedTTL-e.patience)
			require.NotNil(e, e.row(aLock), "before the TTL has passed")
			e.db.Age(e, e.patience+time.Millisecond)
			require.Nil(e, e.row(aLock), "after the TTL has passed")
			ref := e.take(claimOf(aLock, bob))
			e.still(ref, "the successor's")
			require.Equal(e, bob, e.row(aLock).Owner)
			c := claimOf(lockKey("short"), alice)
			c.TTL = 40 * time.Millisecond
			e.take(c)
			e.await("that a lock of 40 ms expires", func() error {
				if e.row(c.Key) != nil {
					return errStill
				}
				return nil
			})
		}},
	{Rule: Rule{7, "terms grow",
		"The terms of a key grow over release and expiry, by one at least, also if they are " +
			"above the database's clock in Unix ms; they are never below.",
		"an outside system takes an old holder for the new one.", []Feature{Edits}},
		run: func(e *namedEnv) {
			var last int64
			for i := range 20 {
				ref := e.lock(aLock)
				require.Greater(e, ref.Term, last)
				require.GreaterOrEqual(e, ref.Term, e.row(aLock).AcquiredAt.UnixMilli(),
					"the clock")
				last = ref.Term
				switch {
				case i == 10:
					last += int64(time.Hour / time.Millisecond)
					e.db.Edit(e, aLock, last)
					e.db.Age(e, 2*namedTTL)
				case i%2 == 0:
					e.release(ref, true, true, "a holder's")
				default:
					e.db.Age(e, 2*namedTTL)
				}
			}
			e.release(e.lock(aLock), true, true, "a holder's")

			var (
				mu    sync.Mutex
				terms = map[int64]bool{}
			)
			handles := []namedlock.Store{e.s, e.db.Open(e), e.db.Open(e), e.db.Open(e)}
			together(handles, func(s namedlock.Store) {
				for taken := 0; taken < 25 && e.ctx.Err() == nil; {
					c := claimOf(aLock, bob)
					term, _, err := s.Take(e.ctx, c)
					if err == nil && term != 0 {
						taken++
						mu.Lock()
						if terms[term] || term <= last {
							e.Errorf("term %d was granted twice, or is not above %d",
								term, last)
						}
						terms[term] = true
						mu.Unlock()
						_, err = s.Release(e.ctx, namedlock.Ref{Key: aLock,
							Token: c.Token, Term: term}, true)
					}
					if err != nil {
						e.Errorf("Take and Release: %v", err)
						return
					}
				}
			})
			require.Len(e, terms, 100)
		}},
	{Rule: Rule{8, "terms grow after a clean-up",
		"The terms of a key grow after its row was cleaned up, also if they were above the clock.",
		"as rule 7, a day later.", []Feature{Edits}},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			high := ref.Term + int64(time.Hour/time.Millisecond)
			e.db.Edit(e, aLock, high)
			e.db.Age(e, 48*time.Hour)
			require.EqualValues(e, 1, e.clean(10))
			require.Greater(e, e.lock(aLock).Term, high)
			require.Greater(e, e.lock(lockKey("b")).Term,
				high, "no name remembers its own")
		}},
	{Rule: Rule{9, "terms grow after a deletion",
		"The terms of a key grow after its row was deleted by hand, if the clock has gone on.",
		"as rule 7, after somebody has tidied up.", []Feature{Edits}},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			e.db.Edit(e, aLock, 0)
			time.Sleep(2 * time.Millisecond)
			require.Nil(e, e.row(aLock))
			e.extend(ref, false, "without a row")
			require.Greater(e, e.lock(aLock).Term, ref.Term)
		}},
	{Rule: Rule{10, "extending lasts",
		"Extend lets the row last a TTL from then, and touches nothing else.",
		"a holder that is alive loses its lock.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for range 3 {
				e.db.Age(e, namedTTL-e.patience)
				before := *e.row(aLock)
				e.extend(ref, true, "the holder's")
				after := *e.row(aLock)
				e.near(namedTTL, after.Left, "what is left")
				before.Left, after.Left, before.Age, after.Age = 0, 0, 0, 0
				require.Equal(e, before, after)
			}
			e.extend(namedlock.Ref{Key: ref.Key, Token: ref.Token, Term: ref.Term}, true, "again")
			ours, err := e.s.Extend(e.ctx, ref, 2*namedTTL)
			require.NoError(e, err)
			require.True(e, ours)
			e.near(2*namedTTL, e.row(aLock).Left, "what is left of another TTL")
		}},
	{Rule: Rule{11, "nobody else extends",
		"Extend returns false, and changes nothing, for another token, another term, another " +
			"key, without a row, and after a release.",
		"a dead holder's lock lives on.", nil},
		run: func(e *namedEnv) {
			never := namedlock.Ref{Key: aLock, Token: driver.NewToken(), Term: 1}
			e.extend(never, false, "without a row")
			require.Nil(e, e.row(aLock))
			ref := e.lock(aLock)
			e.db.Age(e, namedTTL/2)
			for why, other := range others(ref) {
				e.extend(other, false, why)
				e.still(ref, why)
				require.LessOrEqual(e, e.row(aLock).Left, namedTTL/2, why)
			}
			e.release(ref, true, true, "the holder's")
			e.extend(ref, false, "after a release")
			require.Nil(e, e.row(aLock), "after a release and Extend")
		}},
	{Rule: Rule{12, "what has expired is not revived",
		"Extend of a row that has expired returns false and does not revive it, though nobody " +
			"has taken it.",
		"a holder that has stopped for too long works on, while another already judges it dead.",
		nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			e.db.Age(e, namedTTL+time.Millisecond)
			e.extend(ref, false, "after the TTL")
			require.Nil(e, e.row(aLock), "it was revived")
			e.lock(aLock)
		}},
	{Rule: Rule{13, "a release frees",
		"Release frees the row: Look returns nil, and Take grants it at once.",
		"every lock is held for its whole TTL.", nil},
		run: func(e *namedEnv) {
			for _, keepHold := range []bool{true, false} {
				ref := e.lock(aLock)
				e.release(ref, keepHold, true, "the holder's")
				require.Nil(e, e.row(aLock))
			}
			e.still(e.take(claimOf(aLock, bob)), "the next")
		}},
	{Rule: Rule{14, "nobody else releases",
		"Release returns false, and changes nothing, for another token, another term, another " +
			"key, and the second time.",
		"a lock is taken away from its holder.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for why, other := range others(ref) {
				e.release(other, false, false, why)
				e.still(ref, why)
			}
			e.release(ref, true, true, "the holder's")
			e.release(ref, true, false, "the second time")
			require.Nil(e, e.row(aLock))
		}},
	{Rule: Rule{15, "a late holder touches nothing",
		"Release and Extend of a lock that expired and was taken by another return false and " +
			"touch nothing.",
		"a holder that wakes up frees, or lengthens, the lock of its successor.", nil},
		run: func(e *namedEnv) {
			late := e.lock(aLock)
			e.db.Age(e, namedTTL+time.Millisecond)
			e.release(late, false, false, "after the TTL")
			next := e.take(claimOf(aLock, bob))
			e.db.Age(e, namedTTL/2)
			e.extend(late, false, "after a take-over")
			e.release(late, false, false, "after a take-over")
			e.release(late, true, false, "after a take-over")
			e.still(next, "after a late holder's words")
			require.LessOrEqual(e, e.row(aLock).Left, namedTTL/2)
		}},
	{Rule: Rule{16, "the token alone",
		"Release with term 0 goes by the token alone.",
		"a lock whose grant was never answered is held for its whole TTL.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			unknown := namedlock.Ref{Key: aLock, Token: ref.Token}
			wrong := namedlock.Ref{Key: aLock, Token: driver.NewToken()}
			e.release(wrong, false, false, "another token")
			e.still(ref, "another token")
			e.release(unknown, false, true, "the right token")
			require.Nil(e, e.row(aLock))
		}},
	{Rule: Rule{17, "a lock rests",
		"A row that rests is not free, though it was released: Look returns it without a token, " +
			"and Take its row, until its time to rest has passed.",
		"a replica whose clock is behind does the work again.", nil},
		run: func(e *namedEnv) {
			c := restingClaim(namedTTL / 2)
			ref := e.take(c)
			e.still(ref, "while it is held")
			require.False(e, e.row(c.Key).Resting)
			e.release(ref, true, true, "the holder's")
			for range 2 {
				row := e.row(c.Key)
				require.NotNil(e, row, "it does not rest")
				require.Equal(e, driver.Token{}, row.Token, "nobody holds it")
				require.True(e, row.Resting)
				require.LessOrEqual(e, row.Left, namedTTL/2)
				require.Positive(e, row.Left)
				holder := e.refused(claimOf(c.Key, bob), "of a lock that rests")
				require.True(e, holder.Resting)
				require.Equal(e, alice, holder.Owner, "who held it")
				e.extend(ref, false, "while it rests")
				e.release(ref, false, false, "while it rests")
				e.db.Age(e, namedTTL/2-e.patience)
			}
			e.db.Age(e, e.patience)
			require.Nil(e, e.row(c.Key), "after its time to rest")
			require.Greater(e, e.lock(c.Key).Term, ref.Term)
		}},
	{Rule: Rule{18, "a rest ends",
		"Release that does not keep the time to rest frees the row at once, and so does one " +
			"after that time.",
		"work is not done, since a lock rests that nobody worked under.", nil},
		run: func(e *namedEnv) {
			c := restingClaim(namedTTL)
			e.release(e.take(c), false, true, "the holder's")
			require.Nil(e, e.row(c.Key), "a release that does not keep the time to rest")
			c.Token, c.Hold = driver.NewToken(), namedTTL/2
			ref := e.take(c)
			e.db.Age(e, namedTTL/2+time.Millisecond)
			e.release(ref, true, true, "the holder's")
			require.Nil(e, e.row(c.Key), "a release after the time to rest")
			c.Token, c.Hold = driver.NewToken(), namedTTL // as a time-out lock
			e.take(c)
			e.db.Age(e, namedTTL+time.Millisecond)
			require.Nil(e, e.row(c.Key), "nobody has released it, and both times are over")
			c.Token, c.Hold = driver.NewToken(), 0
			e.release(e.take(c), true, true, "one without a time to rest, after one that had it")
			require.Nil(e, e.row(c.Key))
		}},
	{Rule: Rule{19, "extending is no rest",
		"Extend leaves the time to rest as it was.",
		"work is not done, since a lock rests for longer than was said.", nil},
		run: func(e *namedEnv) {
			c := restingClaim(namedTTL / 2)
			ref := e.take(c)
			e.db.Age(e, namedTTL/4)
			e.extend(ref, true, "the holder's")
			e.near(namedTTL, e.row(c.Key).Left, "what is left")
			e.release(ref, true, true, "the holder's")
			row := e.row(c.Key)
			require.NotNil(e, row, "it does not rest")
			require.LessOrEqual(e, row.Left, namedTTL/4)
		}},
	{Rule: Rule{20, "cleaning up",
		"Clean deletes rows that are free and ended a day ago, the oldest first, at most limit, " +
			"and tells how many; all others stay.",
		"the table grows for ever, or locks are lost.", nil},
		run: func(e *namedEnv) {
			require.Zero(e, e.clean(10), "an empty table")
			old := map[string]namedlock.Ref{}
			for _, name := range []string{"expired 1", "expired 2", "expired 3", "released"} {
				old[name] = e.lock(lockKey(name))
			}
			e.release(old["released"], true, true, "the holder's")
			long := claimOf(lockKey("long"), alice)
			long.TTL = 72 * time.Hour
			held := e.take(long)
			e.db.Age(e, 23*time.Hour)
			recent := e.lock(lockKey("recent"))
			require.Zero(e, e.clean(10), "what ended less than a day ago")
			e.db.Age(e, 2*time.Hour)
			require.Zero(e, e.clean(0), "a limit of 0")
			require.EqualValues(e, 3, e.clean(3), "a limit of 3")
			require.EqualValues(e, 1, e.clean(3), "what was left")
			require.Zero(e, e.clean(3), "the second time")
			e.still(held, "what is held for long")
			e.extend(recent, false, "what has expired, and is not cleaned up")
			next := e.lock(lockKey("recent"))
			require.Greater(e, next.Term, recent.Term)
			for name := range old {
				require.Greater(e, e.lock(lockKey(name)).Term, old[name].Term)
			}
		}},
	{Rule: Rule{21, "an ended context is heeded",
		"Take, Look, Extend, Release and Clean with a context that has ended return an error, " +
			"soon, and write nothing.",
		"a replica cannot be shut down while the database hangs.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			e.db.Age(e, namedTTL/2)
			b := lockKey("b")
			for what, call := range map[string]func() error{
				"Take":    func() error { return err2(e.s.Take(ended(), claimOf(b, bob))) },
				"Look":    func() error { return err1(e.s.Look(ended(), aLock)) },
				"Extend":  func() error { return err1(e.s.Extend(ended(), ref, namedTTL)) },
				"Release": func() error { return err1(e.s.Release(ended(), ref, false)) },
				"Clean":   func() error { return err1(e.s.Clean(ended(), 10)) },
			} {
				e.soon(what+" with a context that has ended", func() {
					if call() == nil {
						e.Errorf("%s with a context that has ended: no error", what)
					}
				})
				e.still(ref, what)
				require.LessOrEqual(e, e.row(aLock).Left, namedTTL/2, what)
				require.Nil(e, e.row(b), what)
			}
		}},
}
