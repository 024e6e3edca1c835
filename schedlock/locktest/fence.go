package locktest

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func (e *env) fence(tx Tx, ref driver.Ref) error {
	return e.s.Fence(e.ctx, tx.Tx, ref)
}

// begin begins a caller's transaction that ends with the test at the latest.
func (e *env) begin() Tx {
	tx := e.db.Begin(e)
	e.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// ends are the ways to end a transaction.
var ends = []func(Tx) error{
	func(tx Tx) error { return tx.Commit() },
	func(tx Tx) error { return tx.Rollback() },
}

var fenceCases = []testCase{
	{Rule: Rule{35, "the holder passes its fence",
		"Fence of the holder returns nil, the transaction can be committed or rolled back, and " +
			"the row stays as it was.",
		"no fenced work is ever done.", []Feature{Fences}},
		run: func(e *env) {
			ref := e.win(alice)
			e.unchanged(func() {
				for _, end := range ends {
					tx := e.begin()
					require.NoError(e, e.fence(tx, ref))
					require.NoError(e, end(tx))
				}
			}, "Fence")
		}},
	{Rule: Rule{36, "nobody else passes",
		"Fence returns ErrLost for another token, another term, the lease before, and without a " +
			"row.",
		"a paused leader wakes up and writes over what its successor did.", []Feature{Fences}},
		run: func(e *env) {
			old := e.win(alice)
			ref := e.win(alice)
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Fence": func(r driver.Ref) (bool, error) {
					tx := e.begin()
					defer func() { _ = tx.Rollback() }()
					return false, e.fence(tx, r)
				},
			})
		}},
	{Rule: Rule{37, "a fence holds until its transaction ends",
		"While a fenced transaction is open nobody takes over; after it has ended a claim " +
			"succeeds, and the old lease's Fence returns ErrLost.",
		"the fence was passed, the lock changed hands, and the old leader commits.",
		[]Feature{Fences}},
		run: func(e *env) {
			ref := e.win(alice)
			other := e.db.Open(e)
			for _, end := range ends {
				tx := e.begin()
				require.NoError(e, e.fence(tx, ref))
				judged := e.look()
				ctx, cancel := context.WithTimeout(e.ctx, e.patience/4)
				_, err := other.Acquire(ctx, claim(judged, bob))
				cancel()
				require.Error(e, err, "a take-over in face of a fenced transaction")
				require.Equal(e, ref, e.row().Ref,
					"the lock was taken over in face of a fenced transaction")
				require.NoError(e, end(tx))
				old := ref
				e.await("a take-over after the transaction has ended", func() error {
					c := claim(e.look(), bob)
					grant, err := other.Acquire(e.ctx, c)
					c.Term = grant.Term
					ref = c.Ref
					return err
				})
				tx = e.begin()
				require.ErrorIs(e, e.fence(tx, old), driver.ErrLost, "the old lease")
				_ = tx.Rollback()
			}
		}},
	{Rule: Rule{38, "a claim waits for nobody",
		"Acquire in face of a fenced transaction returns an error, long before a context of many " +
			"seconds ends.",
		"standbys pile up behind one slow job, and hold connections that the leader needs.",
		[]Feature{Fences}},
		run: func(e *env) {
			ref := e.win(alice)
			other := e.db.Open(e)
			tx := e.begin()
			require.NoError(e, e.fence(tx, ref))
			judged := e.look()
			for range 2 {
				ctx, cancel := context.WithTimeout(e.ctx, 3*e.patience)
				e.soon("Acquire in face of a fenced transaction", func() {
					if _, err := other.Acquire(ctx, claim(judged, bob)); err == nil {
						e.Errorf("Acquire in face of a fenced transaction: no error")
					}
				})
				cancel()
			}
			require.NoError(e, tx.Commit())
		}},
	{Rule: Rule{39, "of fence and take-over one wins",
		"If Fence returned nil the lock does not change hands before the transaction ends, " +
			"however close a take-over comes.",
		"as rule 37, once in a thousand.", []Feature{Fences}},
		run: func(e *env) {
			e.win(alice)
			other := e.db.Open(e)
			for range 8 {
				ref, judged := e.row().Ref, e.look()
				tx := e.begin()
				var (
					wg    sync.WaitGroup
					won   bool
					err   error
					start = make(chan struct{})
				)
				wg.Go(func() {
					<-start
					won, err = e.insist(other, claim(judged, bob))
				})
				close(start)
				fenced := e.fence(tx, ref)
				if fenced == nil {
					for range 5 {
						time.Sleep(2 * time.Millisecond)
						require.Equal(e, ref, e.row().Ref,
							"the lock changed hands in face of a fenced transaction")
					}
					require.NoError(e, tx.Commit())
				} else {
					_ = tx.Rollback()
				}
				wg.Wait()
				require.NoError(e, err)
				if !won {
					// It met the fence, and was told so by ErrConflict.
					require.NoError(e, fenced, "neither the fence nor the take-over won")
					e.win(bob)
				}
			}
		}},
	{Rule: Rule{40, "a heartbeat outlives a fence",
		"A heartbeat succeeds once a fenced transaction has ended, and, where that was promised, " +
			"already before.",
		"a leader that works in fenced transactions loses its lease.", []Feature{Fences}},
		run: func(e *env) {
			ref := e.win(alice)
			for range 2 {
				tx := e.begin()
				require.NoError(e, e.fence(tx, ref))
				ctx, cancel := context.WithTimeout(e.ctx, e.patience)
				_, err := e.s.Heartbeat(ctx, ref, driver.StateLeading)
				cancel()
				require.NotErrorIs(e, err, driver.ErrLost)
				if e.db.HeartbeatsPassFence {
					require.NoError(e, err, "a heartbeat beside a fenced transaction")
				}
				require.NoError(e, tx.Commit(), "the transaction that a heartbeat met")
				e.await("a heartbeat after a fenced transaction", func() error {
					_, err := e.s.Heartbeat(e.ctx, ref, driver.StateLeading)
					return err
				})
			}
		}},
	{Rule: Rule{41, "what cannot be fenced is refused",
		"Fence of something that is no transaction of the store's kind returns ErrNoFence.",
		"work is done unguarded while its author thinks it is guarded.", []Feature{Fences}},
		run: func(e *env) {
			ref := e.win(alice)
			for _, tx := range []any{nil, "a string", struct{}{}, new(int)} {
				require.ErrorIs(e, e.fence(Tx{Tx: tx}, ref), driver.ErrNoFence, "%T", tx)
			}
		}},
}

var hintCases = []testCase{
	{Rule: Rule{42, "waiting for a hint ends with its context",
		"AwaitHint returns soon after its context has ended.",
		"a standby cannot be shut down, and misses its own looks.", []Feature{Hints}},
		run: func(e *env) {
			e.win(alice)
			v := e.look()
			e.soon("AwaitHint with an ended context", func() { e.s.AwaitHint(ended(), v) })
			ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
			defer cancel()
			e.soon("AwaitHint with a context of 50 ms", func() { e.s.AwaitHint(ctx, v) })
		}},
	{Rule: Rule{43, "a release gives a hint",
		"AwaitHint returns soon after another handle released the lock; the term that it names, " +
			"if any, is that one, with the time of its end, or an earlier one.",
		"every clean hand-over takes as long as the pause between two looks.", []Feature{Hints}},
		run: func(e *env) {
			other := e.db.Open(e)
			for range 2 {
				ref := e.win(alice)
				ctx, cancel := context.WithCancel(e.ctx)
				defer cancel()
				gone := make(chan error, 1)
				var told driver.Release
				go func() {
					for {
						v, err := other.Look(ctx)
						if err != nil || v.Row == nil {
							gone <- err
							return
						}
						// What came of an earlier term may have waited for this call.
						if r := other.AwaitHint(ctx, v); r.Term >= v.Row.Term {
							told = r
						}
					}
				}()
				time.Sleep(100 * time.Millisecond) // so that it waits; if not, it need not
				e.release(ref)
				var err error
				e.soon("AwaitHint after a release", func() {
					select {
					case err = <-gone:
					case <-ctx.Done():
					}
				})
				require.NoError(e, err)
				if told != (driver.Release{}) {
					require.Equal(e, ref.Term, told.Term, "the term that was released")
					require.WithinDuration(e, e.terms(1)[0].EndedAt, told.At, 0, "its end")
				}
			}
		}},
}

var hearsayCases = []testCase{
	{Rule: Rule{109, "a release that was told of is compared",
		"Acquire that judged no row and an end of the newest term, without a watch, returns " +
			"ErrConflict, and deletes nothing, if there is a row or that term has no end.",
		"whoever sends a false notification, or deletes the row by hand, elects a second leader.",
		[]Feature{Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			told := e.look()
			ended := *told.Newest
			ended.EndedAt, ended.EndReason = told.Now, driver.EndReleased
			told.Row, told.Newest, told.Sign, told.Probe = nil, &ended, driver.SignNone, nil
			unwatched := claim(told, bob)
			unwatched.Watched = false
			e.moved(unwatched, "it was not released")
			require.Equal(e, ref, e.row().Ref, "the row")
			e.edit(Edit{DeleteRow: true})
			e.moved(unwatched, "its row was deleted by hand")
			require.True(e, e.look().Newest.Open(), "the term")
			_, err := e.s.Release(e.ctx, ref, driver.EndReleased)
			require.NoError(e, err)
			next := e.acquire(unwatched)
			e.edit(Edit{Token: "mine now"})
			_, err = e.s.Release(e.ctx, next, driver.EndReleased)
			require.NoError(e, err)
			left := e.look()
			left.Row, left.Sign, left.Probe = nil, driver.SignNone, nil
			unwatched = claim(left, alice)
			unwatched.Watched = false
			e.moved(unwatched, "its row was edited, and is still there")
		}},
}
