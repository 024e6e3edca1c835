package locktest

import (
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver/namedlock"
)

// aMark is what Locks.Revoke writes.
const aMark = `revoked:{"by":"ann","reason":"it's \"stuck\""}`

var namedRevokeCases = []namedCase{
	{Rule: Rule{31, "a holder can be told to leave",
		"Revoke of a row that is held puts the mark in the place of its token, and returns true: " +
			"Extend and Release of the holder return false, Look says that it was revoked, and " +
			"nobody takes it before its time is over. With another term, of a free key, and the " +
			"second time it returns false and changes nothing.",
		"an operator cannot end a lock that a process keeps for ever, or ends it under work that " +
			"goes on.", nil},
		run: func(e *namedEnv) {
			revoke := func(key namedlock.Key, term int64, want bool, why string) {
				e.Helper()
				revoked, err := e.s.Revoke(e.ctx, key, term, aMark)
				require.NoError(e, err, "Revoke")
				require.Equal(e, want, revoked, "Revoke, %s", why)
			}
			revoke(aLock, 1, false, "a free key")
			ref := e.lock(aLock)
			revoke(aLock, ref.Term+1, false, "another term")
			revoke(namedlock.Key{Kind: namedlock.KindTask, Name: "a"}, ref.Term, false,
				"another kind")
			e.still(ref, "Revoke of another")
			revoke(aLock, ref.Term, true, "the holder's")
			revoke(aLock, ref.Term, false, "the second time")
			e.extend(ref, false, "it was revoked")
			e.release(ref, true, false, "it was revoked")
			row := e.row(aLock)
			require.NotNil(e, row, "it is free, but its holder may not know")
			require.Equal(e, &namedlock.Revocation{By: "ann", Reason: `it's "stuck"`}, row.Revoked)
			require.Equal(e, ref.Term, row.Term)
			e.refused(claimOf(aLock, bob), "before the time of the holder is over")
			e.db.Age(e, namedTTL)
			next := e.lock(aLock)
			require.Greater(e, next.Term, ref.Term)
			e.still(next, "the next holder")
			require.Nil(e, e.row(aLock).Revoked, "the next holder")
			revoke(aLock, ref.Term, false, "the term before")
			e.db.Age(e, namedTTL)
			revoke(aLock, next.Term, false, "free again")
		}},
	{Rule: Rule{32, "what nobody holds can be freed, and all is listed",
		"Revoke of a row that rests, or of a time-out lock, frees it at once. List returns the " +
			"rows that are not free, as Look does, and those that were revoked and not taken " +
			"since, by kind and name, at most limit.",
		"nobody knows who holds what, or an import that was noted by mistake cannot run for a " +
			"day.", nil},
		run: func(e *namedEnv) {
			list := func(limit int) (keys []namedlock.Key) {
				e.Helper()
				rows, err := e.s.List(e.ctx, limit)
				require.NoError(e, err, "List")
				for _, row := range rows {
					keys = append(keys, row.Key)
					if look := e.row(row.Key); look != nil {
						require.Equal(e, look.Token, row.Token)
						require.Equal(e, look.Term, row.Term)
						require.Equal(e, look.Owner, row.Owner)
						require.Equal(e, look.Resting, row.Resting)
					} else {
						require.NotNil(e, row.Revoked, "List of what is free")
						require.Zero(e, row.Left)
					}
				}
				return keys
			}
			require.Empty(e, list(10))
			b := lockKey("b")
			task := namedlock.Key{Kind: namedlock.KindTask, Name: "a"}
			once := namedlock.Key{Kind: namedlock.KindTimeout, Name: "a"}
			e.lock(b)
			e.lock(aLock)
			resting := claimOf(task, alice)
			resting.Hold = namedTTL
			restRef := e.take(resting)
			e.release(restRef, true, true, "the holder's")
			timeout := claimOf(once, alice)
			timeout.Hold = namedTTL
			timeoutRef := e.take(timeout)
			e.release(e.lock(lockKey("c")), false, true, "it is free")
			all := []namedlock.Key{aLock, b, task, once}
			require.Equal(e, all, list(10))
			require.Equal(e, all[:3], list(3))
			for _, ref := range []namedlock.Ref{restRef, timeoutRef} {
				revoked, err := e.s.Revoke(e.ctx, ref.Key, ref.Term, aMark)
				require.NoError(e, err)
				require.True(e, revoked)
				require.Nil(e, e.row(ref.Key), "it is not free")
			}
			require.Equal(e, all, list(10), "who and why stay")
			e.lock(task)
			e.lock(once)
			require.Equal(e, all, list(10))
		}},
}
