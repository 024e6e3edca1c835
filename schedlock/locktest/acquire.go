package locktest

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var acquireCases = []testCase{
	{Rule: Rule{7, "acquire writes the row and the term",
		"Acquire writes the lock row, with beat 0 and state leading, and an open term, both with " +
			"the claim's token and owner and the term granted.",
		"the winner's first heartbeat is lost, or nobody can tell who led.", nil},
		run: func(e *env) {
			for _, owner := range []driver.Owner{alice, bob} {
				c := claim(e.look(), owner)
				grant, err := e.s.Acquire(e.ctx, c)
				require.NoError(e, err)
				c.Term = grant.Term
				v := e.look()
				require.NotNil(e, v.Row, "the row")
				require.NotNil(e, v.Newest, "the term")
				require.Equal(e, c.Ref, v.Row.Ref, "the row's ref")
				require.Equal(e, c.Token.String(), v.Row.RawToken)
				require.Zero(e, v.Row.Beat, "the beat")
				require.Equal(e, driver.StateLeading, v.Row.State)
				require.Equal(e, timing, v.Row.Timing)
				require.Equal(e, c.Ref, v.Newest.Ref, "the term's ref")
				require.Equal(e, timing.TTL, v.Newest.TTL)
				require.True(e, v.Newest.Open())
				require.Empty(e, v.Newest.EndReason)
				require.Zero(e, v.Newest.NextTerm)
				for _, stamp := range []time.Time{v.Row.CreatedAt, v.Row.HeartbeatAt,
					v.Newest.AcquiredAt} {
					require.WithinDuration(e, grant.Now, stamp, time.Millisecond,
						"Grant.Now and the stamps")
				}
				require.Equal(e, *v.Newest, e.terms(1)[0], "Terms and Look")
			}
		}},
	{Rule: Rule{8, "values are kept",
		"The row keeps timings to the millisecond, any pid, and host names of up to 255 bytes " +
			"with quotes and any letters.",
		"everybody judges the holder by another TTL than its own, or its own release does not " +
			"match.", nil},
		run: func(e *env) {
			for _, c := range []driver.Claim{
				{Ref: driver.Ref{Owner: driver.Owner{PID: 1<<31 - 1,
					Hostname: `o'hara"; DROP TABLE scheduler_lock; --`}},
					Timing: driver.Timing{TTL: 61003 * time.Millisecond,
						RenewDeadline:     45007 * time.Millisecond,
						HeartbeatInterval: 10001 * time.Millisecond}},
				{Ref: driver.Ref{Owner: driver.Owner{PID: 1, Hostname: strings.Repeat("h", 255)}},
					Timing: driver.Timing{TTL: driver.MaxTTL, RenewDeadline: 20 * time.Hour,
						HeartbeatInterval: time.Hour}},
				{Ref: driver.Ref{Owner: driver.Owner{PID: 7, Hostname: "höst-主机-🦀 $1 ?1 :x \\ %"}},
					Timing: driver.Timing{TTL: 100 * time.Millisecond,
						RenewDeadline:     75 * time.Millisecond,
						HeartbeatInterval: 10 * time.Millisecond}},
			} {
				c.Token, c.Expected, c.Reason, c.Watched = driver.NewToken(), e.look(),
					driver.EndExpired, true
				ref := e.acquire(c)
				row := e.row()
				require.Equal(e, ref, row.Ref)
				require.Equal(e, c.Timing, row.Timing)
				require.Equal(e, c.Timing.TTL, e.terms(1)[0].TTL)
				require.Equal(e, ref, e.terms(1)[0].Ref)
				e.release(ref)
			}
		}},
	{Rule: Rule{9, "a held lock is compared and swapped",
		"Acquire that judged a row returns ErrConflict unless token, term and beat are still the " +
			"same.",
		"a second standby that judged the same dead row deletes the row of the first: two " +
			"leaders.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			judged := e.look()
			spoilt := func(f func(*driver.Row)) driver.Claim {
				v, row := judged, *judged.Row
				f(&row)
				v.Row = &row
				return claim(v, bob)
			}
			e.moved(spoilt(func(r *driver.Row) {
				r.Token = driver.NewToken()
				r.RawToken = r.Token.String()
			}), "the token is another")
			e.moved(spoilt(func(r *driver.Row) { r.Term-- }), "the term is another")
			e.moved(spoilt(func(r *driver.Row) { r.Beat++ }), "the beat is another")
			e.beat(ref, driver.StateLeading)
			e.moved(claim(judged, bob), "the holder's heart has beaten")
			judged = e.look()
			e.win(bob)
			e.moved(claim(judged, alice), "another was first")
			judged = e.look()
			e.release(judged.Row.Ref)
			e.moved(claim(judged, alice), "the row is gone")
			e.win(alice)
		}},
	{Rule: Rule{10, "a free lock is compared and swapped",
		"Acquire that judged no row returns ErrConflict, and deletes nothing, if there is a row " +
			"or the newest term is another.",
		"a standby that is late by one hand-over throws out the leader that came meanwhile.", nil},
		run: func(e *env) {
			empty := e.look()
			first := e.win(alice)
			e.moved(claim(empty, bob), "another was first")
			noRow := e.look()
			noRow.Row = nil
			e.moved(claim(noRow, bob), "there is a row, of the newest term that was judged")
			require.Equal(e, first, e.row().Ref, "the row")
			e.release(first)
			e.moved(claim(empty, bob), "another came and went")
			free := e.look()
			e.release(e.win(alice))
			e.moved(claim(free, bob), "another came and went")
			forgotten := e.look()
			forgotten.Newest = nil
			e.moved(claim(forgotten, bob), "there is a term")
			e.win(bob)
		}},
	{Rule: Rule{11, "a loser writes nothing",
		"An Acquire that returns ErrConflict has written nothing, neither to the row nor to the " +
			"history.",
		"the loser of a race ends the winner's term, and a third replica finds the lock free.",
		nil},
		run: func(e *env) {
			empty := e.look()
			e.win(alice)
			old := e.look()
			current := e.win(bob)
			e.unchanged(func() {
				for _, v := range []driver.Snapshot{empty, old} {
					c := claim(v, alice)
					c.MinTerm = current.Term + 1000
					e.moved(c, "another was first")
				}
			}, "the loser against a row")
			e.release(current)
			e.unchanged(func() {
				for _, v := range []driver.Snapshot{empty, old} {
					e.moved(claim(v, alice), "it was released")
				}
			}, "the loser against a free lock")
		}},
	{Rule: Rule{12, "one of many takes over",
		"Of many that judged the same row at the same time exactly one gets the lock, the others " +
			"ErrConflict.",
		"two leaders after a crash, or none.", nil},
		run: func(e *env) {
			e.win(alice)
			for range 4 {
				e.race(6)
			}
		}},
	{Rule: Rule{13, "one of many takes a free lock",
		"Of many that judged the lock free at the same time exactly one gets it, the others " +
			"ErrConflict.",
		"two leaders after a clean hand-over, or none.", nil},
		run: func(e *env) {
			for range 4 {
				e.release(e.race(6))
			}
		}},
	{Rule: Rule{14, "terms grow",
		"Every term is higher than the one before, after a take-over as after a release, and not " +
			"below the database's clock in Unix ms.",
		"an outside system that compares fencing tokens lets the writes of an old leader in.", nil},
		run: func(e *env) {
			last := int64(0)
			for i := range 6 {
				before := e.look().Now
				ref := e.win(alice)
				require.Greater(e, ref.Term, last, "the term")
				require.GreaterOrEqual(e, ref.Term, before.UnixMilli(), "the term and the clock")
				last = ref.Term
				if i%2 == 0 {
					e.release(ref)
				}
			}
		}},
	{Rule: Rule{15, "a term is not below the claim's",
		"The term granted is at least claim.MinTerm, and one more than the last where that is " +
			"higher.",
		"after a restored backup a term is given twice.", nil},
		run: func(e *env) {
			for _, release := range []bool{true, false} {
				c := claim(e.look(), alice)
				c.MinTerm = e.look().Now.Add(time.Hour).UnixMilli()
				if v := e.look(); v.Newest != nil {
					c.MinTerm = v.Newest.Term + 1000
				}
				ref := e.acquire(c)
				require.Equal(e, c.MinTerm, ref.Term)
				require.Equal(e, c.MinTerm, e.row().Term)
				c = claim(e.look(), bob)
				c.MinTerm = 1
				next := e.acquire(c)
				require.Equal(e, ref.Term+1, next.Term, "the last + 1")
				if release {
					e.release(next)
				}
			}
		}},
	{Rule: Rule{16, "terms grow whatever a hand does",
		"Terms grow after the row was deleted, its term was raised or lowered, or the history " +
			"was emptied (then by MinTerm).",
		"an operator who helps himself gives two leaders the same fencing token.",
		[]Feature{Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			e.edit(Edit{DeleteRow: true})
			v := e.look()
			require.Nil(e, v.Row)
			require.True(e, v.Newest.Open(), "a row deleted by hand ends no term")
			next := e.win(bob)
			require.Greater(e, next.Term, ref.Term, "after the row was deleted")
			require.False(e, e.terms(2)[1].Open(),
				"the term of the row that was deleted is still open")

			e.edit(Edit{Term: next.Term + 1_000_000})
			raised := e.win(alice)
			require.Greater(e, raised.Term, next.Term+1_000_000, "after the row's term was raised")

			e.edit(Edit{Term: raised.Term - 1})
			last := e.win(bob)
			require.Greater(e, last.Term, raised.Term, "after the row's term was lowered")

			e.edit(Edit{DeleteRow: true})
			judged := e.look()
			e.edit(Edit{EmptyTerms: true})
			e.moved(claim(judged, alice), "the history was emptied")
			v = e.look()
			require.Nil(e, v.Row)
			require.Nil(e, v.Newest)
			c := claim(v, bob)
			c.MinTerm = last.Term + 1
			require.Greater(e, e.acquire(c).Term, last.Term, "after the history was emptied")
		}},
	{Rule: Rule{17, "a restored backup is led by a new term",
		"After a backup was restored Acquire works from what is there, and grants at least " +
			"MinTerm.",
		"the fleet stands still after a restore, or gives a term twice.", []Feature{Backups}},
		run: func(e *env) {
			first := e.win(alice)
			restore := e.db.Backup(e)
			for range 2 {
				second := e.win(bob)
				judged := e.look()
				restore()
				require.Equal(e, first, e.row().Ref, "Backup did not restore")
				e.moved(claim(judged, alice), "a backup was restored")
				_, err := e.s.Heartbeat(e.ctx, second, driver.StateLeading)
				require.ErrorIs(e, err, driver.ErrLost,
					"the heartbeat of a holder that the backup does not know")
				c := claim(e.look(), alice)
				c.MinTerm = second.Term + 1
				require.Greater(e, e.acquire(c).Term, second.Term)
				restore()
			}
		}},
	{Rule: Rule{18, "a take-over ends the term before",
		"Acquire writes the end of the newest term if that is open, with the claim's reason, and " +
			"who took over.",
		"nobody can tell why the leader changed; a term that stays open makes everybody wait for " +
			"its TTL.", nil},
		run: func(e *env) {
			old := e.win(alice)
			for _, reason := range []driver.EndReason{driver.EndReleased, driver.EndExpired,
				driver.EndProvenDead,
				driver.EndSessionEnded, driver.EndRevoked, driver.EndLost} {
				c := claim(e.look(), bob)
				c.Reason = reason
				grant, err := e.s.Acquire(e.ctx, c)
				require.NoError(e, err, reason)
				terms := e.terms(3)
				n := len(terms)
				require.GreaterOrEqual(e, n, 2)
				require.Equal(e, terms[n-2].Term, terms[n-1].NextTerm, "who took over")
				require.True(e, terms[0].Open())
				require.Equal(e, old, terms[1].Ref)
				require.Equal(e, reason, terms[1].EndReason, "the reason")
				require.Equal(e, grant.Term, terms[0].Term)
				require.WithinDuration(e, grant.Now, terms[1].EndedAt, time.Millisecond, "the end")
				old = terms[0].Ref
			}
		}},
	{Rule: Rule{19, "an end that is written stays",
		"Acquire after a release leaves the end as its holder wrote it, and adds who took over.",
		"a clean shutdown looks like a crash in the history.", nil},
		run: func(e *env) {
			for _, reason := range []driver.EndReason{driver.EndReleased, driver.EndLost} {
				_, err := e.s.Release(e.ctx, e.win(alice), reason)
				require.NoError(e, err)
				want := e.terms(1)[0]
				next := e.win(bob)
				want.NextTerm = next.Term
				require.Equal(e, want, e.terms(2)[1])
			}
		}},
	{Rule: Rule{20, "all or nothing",
		"An Acquire or Release that fails, at whatever moment its context ends, has written all " +
			"or nothing.",
		"a row without a term, or a lock that nobody holds and nobody may take.", nil},
		run: func(e *env) {
			e.win(alice)
			for i := range 40 {
				c := claim(e.look(), bob)
				ctx, cancel := context.WithTimeout(e.ctx,
					time.Duration(rand.IntN(2000))*time.Microsecond)
				if i%4 == 0 {
					cancel()
				}
				var err error
				if v := c.Expected; i%3 == 1 && v.Row != nil {
					_, err = e.s.Release(ctx, v.Row.Ref, driver.EndReleased)
				} else {
					_, err = e.s.Acquire(ctx, c)
				}
				cancel()
				v := e.look() // it may be committed still, later
				require.NotNil(e, v.Newest)
				require.Equal(e, v.Row != nil, v.Newest.Open(),
					"after %v: the row (%v) and the newest term (%v) disagree", err, v.Row,
					v.Newest)
				if v.Row != nil {
					require.Equal(e, v.Row.Ref, v.Newest.Ref, "after %v", err)
				}
			}
			e.await("the lock can be taken", func() error {
				_, err := e.s.Acquire(e.ctx, claim(e.look(), alice))
				return err
			})
		}},
}

// race lets n handles claim what is there now, and returns who has it.
func (e *env) race(n int) (winner driver.Ref) {
	e.Helper()
	type try struct {
		s     driver.Store
		claim driver.Claim
		won   bool
		err   error
	}
	judged := e.look()
	var tries []*try
	for _, s := range e.handles(n) {
		tries = append(tries, &try{s: s,
			claim: claim(judged, driver.Owner{PID: 1, Hostname: "replica"})})
	}
	together(tries, func(t *try) { t.won, t.err = e.insist(t.s, t.claim) })
	row, count := e.row(), 0
	for _, t := range tries {
		require.NoError(e, t.err, "a loser gets ErrConflict")
		if t.won {
			count++
			require.Equal(e, t.claim.Token, row.Token,
				"one that was told it won does not hold the lock")
		}
	}
	require.Equal(e, 1, count, "how many of %d won", n)
	return row.Ref
}
