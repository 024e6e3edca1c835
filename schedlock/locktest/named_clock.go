package locktest

import (
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/namedlock"
)

// refused fails unless Take does not grant c, and returns what is in its way.
func (e *namedEnv) refused(c namedlock.Claim, why string) *namedlock.Row {
	e.Helper()
	term, holder, err := e.s.Take(e.ctx, c)
	require.NoError(e, err, "Take")
	require.Zero(e, term, "Take %s: it was taken", why)
	require.NotNil(e, holder, "Take %s: nothing is in the way", why)
	return holder
}

var namedClockCases = []namedCase{
	{Rule: Rule{27, "a clock that is set back holds nothing",
		"If more is left of a row than its TTL, since the clock was set back, Look is unsure, and " +
			"Take lets it end a TTL from then, and its time to rest; its holder goes on. So it is " +
			"with a time-out lock of a week.",
		"a lock whose holder has died is held for an hour.", nil},
		run: func(e *namedEnv) {
			short := claimOf(aLock, bob)
			short.TTL = namedTTL / 4
			e.release(e.take(short), false, true, "the holder's")
			ref := e.lock(aLock)
			e.near(namedTTL, e.refused(claimOf(aLock, bob), "of what is held").Left,
				"what is left of a lock whose holder before had a shorter TTL")
			task := restingClaim(namedTTL / 2)
			e.release(e.take(task), true, true, "the holder's")
			week := claimOf(namedlock.Key{Kind: namedlock.KindTimeout, Name: "week"}, alice)
			week.TTL = 7 * 24 * time.Hour
			e.take(week)
			e.near(week.TTL, e.refused(claimOf(week.Key, bob), "of what is held").Left,
				"what is left of a week")
			for range 2 {
				e.db.Age(e, -time.Hour)
				e.near(week.TTL, e.refused(claimOf(week.Key, bob), "of what is held").Left,
					"what is left of a week")
				e.near(week.TTL, e.row(week.Key).Left, "what Look says is left of a week")
				for _, key := range []namedlock.Key{aLock, task.Key} {
					require.True(e, e.row(key).Unsure, "Look is sure of %s before a Take", key)
					holder := e.refused(claimOf(key, bob), "of what is held")
					require.LessOrEqual(e, holder.Left, namedTTL, "what is left to %s", key)
					require.LessOrEqual(e, e.row(key).Left, namedTTL,
						"what Look says is left to %s", key)
					require.False(e, e.row(key).Unsure, "Look is unsure of %s after a Take", key)
				}
				e.still(ref, "a Take")
				e.extend(ref, true, "the holder's")
			}
			e.db.Age(e, namedTTL+time.Millisecond)
			for _, key := range []namedlock.Key{aLock, task.Key} {
				require.Nil(e, e.row(key), "a TTL after that")
				e.take(claimOf(key, bob))
			}
		}},
	{Rule: Rule{28, "nothing is free after a fail-over",
		"After a fail-over Take grants nothing before the longer of the TTLs of the row and of " +
			"the claim has passed since the first Take: what was released, has expired, or was " +
			"never taken. Look says so, and writes nothing.",
		"two hold one lock, as the acquisition of one was lost.", []Feature{FailOvers}},
		run: func(e *namedEnv) {
			long := claimOf(lockKey("expired"), alice)
			long.TTL = 3 * namedTTL
			e.take(long)
			e.db.Age(e, 3*namedTTL+time.Millisecond)
			e.release(e.lock(lockKey("released")), true, true, "the holder's")
			e.db.FailOver(e)
			for _, name := range []string{"expired", "released", "never taken"} {
				row := e.row(lockKey(name))
				require.NotNil(e, row, "Look at what was %s: free", name)
				require.True(e, row.FailedOver, "Look at what was %s", name)
			}
			e.db.Age(e, time.Hour) // nobody has noticed it
			for _, name := range []string{"expired", "released", "never taken"} {
				row := e.refused(claimOf(lockKey(name), bob), "of what was "+name)
				require.True(e, row.FailedOver)
				require.Equal(e, lockKey(name), row.Key)
				require.Positive(e, row.Left)
				require.LessOrEqual(e, row.Left, 3*namedTTL)
			}
			e.db.Age(e, namedTTL-e.patience)
			e.refused(claimOf(lockKey("released"), bob), "before the TTL")
			e.db.Age(e, e.patience+time.Millisecond)
			e.refused(claimOf(lockKey("expired"), bob), "before the TTL of the row")
			longer := claimOf(lockKey("never taken"), bob)
			longer.TTL = 2 * namedTTL
			e.refused(longer, "before the TTL of the claim")
			e.still(e.take(claimOf(lockKey("released"), bob)), "after the TTL")
			e.still(e.take(claimOf(lockKey("never taken"), bob)), "after the TTL")
			e.still(e.lock(lockKey("of which nobody has heard")), "after the TTL")
			e.db.Age(e, 2*namedTTL)
			e.still(e.take(claimOf(lockKey("expired"), bob)), "after the TTL of the row")
			e.db.FailOver(e)
			e.refused(claimOf(lockKey("another"), bob), "after another fail-over")
		}},
	{Rule: Rule{29, "a holder goes on over a fail-over",
		"A holder goes on over a fail-over: Extend and Release return true, and let nobody take " +
			"the key sooner. Look is unsure of its row before the first Take.",
		"a fail-over ends every lock; or a holder that has given its lock back vouches for one " +
			"whose acquisition was lost.", []Feature{FailOvers}},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			e.db.FailOver(e)
			e.still(ref, "a fail-over")
			e.extend(ref, true, "the holder's")
			require.True(e, e.row(aLock).Unsure, "Look is sure before a Take")
			require.False(e, e.refused(claimOf(aLock, bob), "of what is held").FailedOver,
				"its holder is known")
			require.False(e, e.row(aLock).Unsure, "Look is unsure after a Take")
			e.extend(ref, true, "the holder's")
			e.release(ref, true, true, "the holder's")
			require.True(e, e.refused(claimOf(aLock, bob), "after a release").FailedOver)
			e.db.Age(e, namedTTL+time.Millisecond)
			e.take(claimOf(aLock, bob))
		}},
	{Rule: Rule{30, "terms grow over a fail-over",
		"Every term that is granted after a fail-over is at least 2^36 above every term before.",
		"as rule 7, with terms that the server has lost, and a clock that is behind.",
		[]Feature{FailOvers}},
		run: func(e *namedEnv) {
			var highest int64
			for _, name := range []string{"a", "b"} {
				highest = max(highest, e.lock(lockKey(name)).Term)
			}
			for range 2 {
				e.db.FailOver(e)
				e.db.Age(e, 2*namedTTL)
				e.refused(claimOf(aLock, bob), "after a fail-over")
				e.db.Age(e, 2*namedTTL)
				first := highest
				for _, name := range []string{"b", "a",
					"never taken " + time.Duration(highest).String()} {
					term := e.lock(lockKey(name)).Term
					require.GreaterOrEqual(e, term, first+1<<36, "the term of %s, 2^36", name)
					highest = max(highest, term)
				}
				e.db.Age(e, 2*namedTTL)
			}
		}},
}
