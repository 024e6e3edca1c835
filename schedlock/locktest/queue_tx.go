package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

// Tasks end, and wait, in transactions.
var queueTxCases = []queueCase{
	{Rule: Rule{28, "an effect and its task are one",
		"DoneTx ends a task with its transaction: it is done after the commit, and still the " +
			"worker's after a roll-back.",
		"an effect in the database happens twice, or never.", []Feature{Transactions}},
		run: func(e *queueEnv) {
			e.add(2, "a", "b")
			token, _ := e.capture(long, 2, "a", "b")
			for id, committed := range map[string]bool{"a": true, "b": false} {
				e.inTx(committed, func(tx any) {
					done, err := e.q.DoneTx(e.ctx, tx, "q", token, long, []string{id})
					require.NoError(e, err)
					require.Equal(e, []string{id}, done)
				})
			}
			info := e.in("a", taskqueue.Done, 2)
			require.Zero(e, info.VisibleAt)
			e.unchanged(func() { e.done(token, "a") }, "Done after DoneTx", "a")
			e.in("b", taskqueue.InProgress, 2)
			e.done(token, "b")
			e.none(taskqueue.ErrEmpty, "both are done")
		}},
	{Rule: Rule{29, "a late transaction is too late",
		"DoneTx with another token, of another queue, or once the time-out has passed, returns " +
			"no id and changes nothing; of several tasks it returns those that it has ended.",
		"a worker that was paused commits beside the one that has the task now.",
		[]Feature{Transactions}},
		run: func(e *queueEnv) {
			doneTx := func(name string, token driver.Token, ids ...string) (done []string) {
				e.Helper()
				e.inTx(true, func(tx any) {
					var err error
					done, err = e.q.DoneTx(e.ctx, tx, name, token, long, ids)
					require.NoError(e, err)
				})
				return done
			}
			e.add(9, "b", "a")
			mineToo, _ := e.capture(long, 1, "b") // first: a may be free again at once
			first, _ := e.capture(brief, 1, "a")
			e.unchanged(func() {
				require.Empty(e, doneTx("q", mine(), "a", "b"), "another token")
				require.Empty(e, doneTx("other", mineToo, "b"), "another queue")
			}, "DoneTx by another", "a", "b")
			e.lost()
			e.unchanged(func() {
				require.Empty(e, doneTx("q", first, "a"), "the time-out has passed")
			}, "DoneTx too late", "a")
			second, _ := e.capture(long, 1, "a")
			e.unchanged(func() {
				require.Empty(e, doneTx("q", first, "a"), "another has it")
			}, "DoneTx of the worker before", "a")
			require.Equal(e, []string{"b"}, doneTx("q", mineToo, "a", "b", "c"), "one of three")
			e.in("b", taskqueue.Done, 9)
			e.done(second, "a")
		}},
	{Rule: Rule{30, "nobody overtakes an open transaction",
		"While a transaction is open in which DoneTx has ended a task nobody else gets it, " +
			"though its time-out passes; after the commit it is done, as Done with its token says.",
		"the worker commits what the next one has already begun.", []Feature{Transactions}},
		run: func(e *queueEnv) {
			e.add(9, "a")
			other := e.db.Open(e) // it may write
			var (
				tx    Tx
				token driver.Token
				done  []string
				hold  = brief
			)
			e.await("DoneTx in time", func() (err error) { // on a busy machine
				hold *= 2
				token, _ = e.capture(hold, 1, "a")
				tx = e.db.Begin(e)
				if done, err = e.q.DoneTx(e.ctx, tx.Tx, "q", token, long,
					[]string{"a"}); err == nil && len(done) == 0 {
					require.NoError(e, tx.Rollback())
					time.Sleep(hold + brief/5)
					return errors.New("it was lost")
				}
				return err
			})
			time.Sleep(hold + brief)
			ctx, cancel := context.WithTimeout(e.ctx, 3*time.Second)
			defer cancel()
			tasks, err := other.Capture(ctx, "q", mine(), long, 10)
			require.Empty(e, tasks, "Capture beside an open transaction")
			require.Error(e, err)
			require.NoError(e, tx.Commit())
			require.Equal(e, taskqueue.Done, e.get("a").State)
			e.none(taskqueue.ErrEmpty, "it is done")
			done, err = e.q.Done(e.ctx, "q", token, []string{"a"})
			require.NoError(e, err)
			require.Equal(e, []string{"a"}, done, "Done after the commit")
		}},
	{Rule: Rule{31, "what is no transaction ends nothing",
		"DoneTx and AddAfter with something that is no transaction of the store's kind return " +
			"ErrTx, and change nothing.",
		"a task ends although its transaction was rolled back.", nil},
		run: func(e *queueEnv) {
			e.add(2, "a")
			token, _ := e.capture(long, 1, "a")
			e.unchanged(func() {
				for _, tx := range []any{nil, "a string", 1} {
					_, err := e.q.DoneTx(e.ctx, tx, "q", token, long, []string{"a"})
					require.ErrorIs(e, err, taskqueue.ErrTx)
					if tx != nil {
						_, err = e.q.AddAfter(e.ctx, tx, "q", 0, time.Second, []string{"b"})
						require.ErrorIs(e, err, taskqueue.ErrTx)
					}
				}
			}, "no transaction", "a")
			e.absent("b", "AddAfter without a transaction")
		}},
	{Rule: Rule{32, "a task may wait",
		"A task that AddAfter has added is captured by nobody before its delay has passed, and " +
			"can be afterwards, at its place in the order, with all its retries; with a " +
			"transaction it is there after the commit only.",
		"what shall happen tomorrow happens now, or never.", nil},
		run: func(e *queueEnv) {
			sent := time.Now()
			e.addAfter(2, 3*brief, "soon")
			e.addAfter(2, long, "later")
			e.addAfter(2, 0, "now")
			require.False(e, e.in("soon", taskqueue.Pending, 2).VisibleAt.IsZero(), "VisibleAt")
			require.Zero(e, e.get("now").VisibleAt)
			e.add(2, "new")
			var ids []string
			e.await("the delay is over", func() error {
				tasks, err := e.q.Capture(e.ctx, "q", mine(), long, 1)
				if err != nil && !errors.Is(err, taskqueue.ErrAllHeld) {
					e.Fatalf("Capture: %v", err)
				}
				ids = append(ids, idsOf(tasks)...)
				if len(ids) < 3 {
					return fmt.Errorf("captured are %q", ids)
				}
				return nil
			})
			require.GreaterOrEqual(e, time.Since(sent), 2*brief, "the delay is not over")
			require.ElementsMatch(e, []string{"soon", "now", "new"}, ids)
			e.in("soon", taskqueue.InProgress, 2)
			e.none(taskqueue.ErrAllHeld, "one waits")
			if e.db.Begin == nil {
				return
			}
			e.inTx(false, func(tx any) {
				_, err := e.q.AddAfter(e.ctx, tx, "q", 2, long, []string{"rolled back"})
				require.NoError(e, err)
			})
			e.absent("rolled back", "AddAfter in a transaction that was rolled back")
		}},
}
