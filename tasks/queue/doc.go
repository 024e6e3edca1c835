// Package queue hands out tasks to the workers of a fleet, each task to one
// worker at a time, by the rows of one table in the app's own database. It
// needs no leader: any replica adds, any replica works.
//
//	queues, err := queue.New(store.Queue())
//	added, err := queues.Add(ctx, "mail", 3, "order-17", "order-18")
//
//	err = queues.Work(ctx, "mail", func(ctx context.Context, task *queue.Task) error {
//		return send(ctx, task.ID)
//	}, queue.WorkOptions{Workers: 4})
//
// [Queues.Work] captures, extends and ends tasks around a handler. Who wants a loop
// of its own calls [Queues.Capture], [Queues.Extend], [Queues.Done] and
// [Queues.Fail].
//
// # A task
//
// A task is an id, unique in its queue, and no more: there is no payload. What
// a task is about stands in the app's own rows, under that id, where it has
// types, constraints and indexes. [Queues.AddTx] adds it in the transaction
// that writes those rows.
//
//	        Capture               Done
//	pending ───────▶ in_progress ──────▶ done
//	   ▲                  │
//	   │ Release, Fail,   │ Fail, or the worker
//	   │ or it was lost   │ was lost, and no
//	   └──────────────────┤ retry is left
//	                      └─────────────▶ failed
//
// # Who has a task
//
// Whoever captures a task has it for a time-out, one minute by default, and may
// extend that as often as it likes before it has passed. The proof is a token,
// new for every capture: [Queues.Done], [Queues.Fail], [Queues.Release] and
// [Queues.Extend] act only for the token that is in the row, and only before
// the time-out has passed, else they return an error that wraps
// schedlock.ErrLost and change nothing. A task whose time-out has passed
// without a word counts as lost with its worker: it is captured again, which
// costs a retry, or is failed if none is left.
//
// The database decides when a time-out has passed: PostgreSQL by the server's
// clock (if that is set back the time-out begins anew), SQLite by the clock of
// the machine that counts from its start, suspend included, and that nobody can
// set. The clock of a worker is never asked, so
// one that is wrong by an hour neither takes a task too early nor loses its own.
// A worker knows how long a task is surely its own by a clock that nobody can
// set: [Task.Left].
//
// # What this does not protect from
//
// A task is done at least once, not exactly once: a worker that dies between
// its work and Done leaves it to the next. So work must bear repetition, or end
// the task in the app's own transaction, by [Queues.DoneTx]. A worker that goes on when
// nothing is left of [Task.Left] can overlap with the next one. Tasks are handed
// out oldest first, but they end in any order, and a task that is retried may be
// overtaken. Nobody is notified of a new task: workers ask, and should wait a
// little after [ErrNone]. A fail-over of PostgreSQL to a server that lacks the
// last commits forgets captures and ends: those tasks are done once more.
package queue
