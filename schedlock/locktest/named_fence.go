package locktest

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

func (e *namedEnv) begin() Tx {
	tx := e.db.Begin(e)
	e.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (e *namedEnv) fence(tx Tx, ref namedlock.Ref, want bool, why string) {
	e.Helper()
	ours, err := e.s.Fence(e.ctx, tx.Tx, ref, namedTTL)
	require.NoError(e, err, "Fence")
	require.Equal(e, want, ours, "Fence, %s", why)
}

var namedFenceCases = []namedCase{
	{Rule: Rule{22, "the holder passes its fence",
		"Fence of the holder returns true, the transaction can be committed or rolled back, and " +
			"the row stays as it was.",
		"no fenced work is ever done.", []Feature{Fences}},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for _, end := range ends {
				tx := e.begin()
				e.fence(tx, ref, true, "the holder's")
				require.NoError(e, end(tx))
				e.still(ref, "Fence")
			}
		}},
	{Rule: Rule{23, "nobody else passes",
		"Fence returns false for another token, another term, after expiry, after a release, and " +
			"after a take-over.",
		"a holder that was paused wakes up and writes over what its successor did.",
		[]Feature{Fences}},
		run: func(e *namedEnv) {
			refused := func(ref namedlock.Ref, why string) {
				e.Helper()
				tx := e.begin()
				e.fence(tx, ref, false, why)
				require.NoError(e, tx.Rollback())
			}
			refused(namedlock.Ref{Key: aLock, Token: driver.NewToken(), Term: 1}, "no row")
			ref := e.lock(aLock)
			for why, other := range others(ref) {
				refused(other, why)
			}
			e.db.Age(e, namedTTL+time.Millisecond)
			refused(ref, "after expiry")
			next := e.take(claimOf(aLock, bob))
			refused(ref, "after a take-over")
			e.release(next, true, true, "the holder's")
			refused(next, "after a release")
		}},
	{Rule: Rule{24, "a fence holds until its transaction ends",
		"While a fenced transaction is open nobody takes the key, though it expires; after it " +
			"has ended a Take succeeds, and the old Fence returns false.",
		"the fence was passed, the lock changed hands, and the old holder commits.",
		[]Feature{Fences}},
		run: func(e *namedEnv) {
			other := e.db.Open(e)
			for _, end := range ends {
				var (
					ref namedlock.Ref
					tx  Tx
					ttl = e.patience / 80
				)
				e.await("a fence in time", func() error { // on a busy machine
					ttl *= 2
					c := claimOf(aLock, alice)
					c.TTL = ttl
					ref = e.take(c)
					tx = e.begin()
					ours, err := e.s.Fence(e.ctx, tx.Tx, ref, namedTTL)
					require.NoError(e, err, "Fence")
					if ours {
						return nil
					}
					require.NoError(e, tx.Rollback())
					require.Nil(e, e.row(aLock), "Fence, the holder's")
					return errors.New("it had expired")
				})
				e.await("that the lock expires", func() error {
					if e.row(aLock) != nil {
						return errStill
					}
					return nil
				})
				ctx, cancel := context.WithTimeout(e.ctx, e.patience/20)
				early := claimOf(aLock, bob)
				term, _, _ := other.Take(ctx, early)
				cancel()
				require.Zero(e, term, "the lock was taken in face of a fenced transaction")
				require.Nil(e, e.row(aLock), "the lock was taken in face of a fenced transaction")
				require.NoError(e, end(tx))
				var next namedlock.Ref
				e.await("a Take after the transaction has ended", func() error {
					c := claimOf(aLock, bob)
					if row := e.row(aLock); row != nil && row.Token == early.Token {
						// The database was still at the statement that was given up.
						next = namedlock.Ref{Key: aLock, Token: early.Token, Term: row.Term}
						return nil
					}
					term, _, err := other.Take(e.ctx, c)
					next = namedlock.Ref{Key: aLock, Token: c.Token, Term: term}
					if err == nil && term == 0 {
						err = errStill
					}
					return err
				})
				tx = e.begin()
				e.fence(tx, ref, false, "the old holder's")
				require.NoError(e, tx.Rollback())
				e.release(next, false, true, "the next holder's")
			}
		}},
	{Rule: Rule{25, "a holder outlives its fence",
		"Extend succeeds once a fenced transaction has ended, and, where that was promised, " +
			"already before; so does Release.",
		"a holder that works in fenced transactions loses its lock.", []Feature{Fences}},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for what, f := range map[string]func(ctx context.Context) (bool, error){
				"Extend": func(ctx context.Context) (bool, error) {
					return e.s.Extend(ctx, ref, namedTTL)
				},
				"Release": func(ctx context.Context) (bool, error) {
					return e.s.Release(ctx, ref, false)
				},
			} {
				if what == "Release" && !e.db.ExtendPassesFence {
					continue // it would free what the other still needs
				}
				tx := e.begin()
				e.fence(tx, ref, true, "the holder's")
				wait := e.patience / 20
				if e.db.ExtendPassesFence {
					wait = e.patience / 4
				}
				ctx, cancel := context.WithTimeout(e.ctx, wait)
				ours, err := f(ctx)
				cancel()
				if e.db.ExtendPassesFence {
					require.NoError(e, err, "%s beside a fenced transaction", what)
					require.True(e, ours, "%s beside a fenced transaction", what)
				}
				require.NoError(e, tx.Commit(), "the transaction that %s met", what)
				if what == "Release" {
					ref = e.lock(aLock)
				}
				e.await("Extend after a fenced transaction", func() error {
					ours, err := e.s.Extend(e.ctx, ref, namedTTL)
					if err == nil && !ours {
						err = errStill
					}
					return err
				})
			}
		}},
	{Rule: Rule{26, "what cannot be fenced is refused",
		"Fence of something that is no transaction of the store's kind returns ErrNoFence.",
		"work is done unguarded while its author thinks it is guarded.", nil},
		run: func(e *namedEnv) {
			ref := e.lock(aLock)
			for _, tx := range []any{nil, "a string", struct{}{}, new(int)} {
				_, err := e.s.Fence(e.ctx, tx, ref, namedTTL)
				require.ErrorIs(e, err, driver.ErrNoFence, "%T", tx)
			}
		}},
}
