// Package startup starts the parts of an application one after the other and
// stops them in reverse.
//
// An application is a list of [Stage] values: a name, the names of the stages
// that must have started before, a Start and a Stop. [New] checks the list as a
// whole (a cycle is spelled out: a → b → a) and fixes the order before anything
// runs: dependencies first, otherwise as given. The same list always gives the
// same order.
//
//	g, err := startup.New([]startup.Stage{
//		{Name: "database", Start: openDatabase, Stop: closeDatabase},
//		{Name: "http", After: []string{"database"}, Start: listen, Stop: shutdown},
//	}, slog.Default())
//	…
//	if err := g.Start(ctx); err != nil {
//		return err // all that had started is stopped again
//	}
//	<-ctx.Done() // a signal
//	budget, cancel := context.WithTimeout(context.Background(), 30*time.Second)
//	defer cancel()
//	return g.Stop(budget)
//
// # What goes wrong, and what happens then
//
// A stage that returns an error, panics, calls runtime.Goexit or passes its
// StartTimeout ends the start: no further stage is started, those that had
// started are stopped in reverse, and [Graph.Start] returns the stage's
// [*StageError] together with every error of the roll-back. The same happens
// when the context of Start ends, or when Stop is called meanwhile.
//
// While stopping, an error or a panic stops nothing: the next stage is stopped
// all the same, and every error is reported.
//
// Go cannot end a function from outside. A stage is asked to return by
// cancelling its context, and then has 1 s to do so. One that does not is
// left behind, the error says that it still runs, and the rest goes on:
//
//   - A Start that is left behind and succeeds after all is stopped as soon as
//     it does, so that nothing stays started. The stages that it needs may be
//     stopped by then. [Graph.Stop] waits for it within its budget.
//   - A Stop that is left behind is logged when it returns.
//
// # How long a stop may take
//
// Each stage has its own StopTimeout, and the context given to [Graph.Stop] is
// the budget for all of them. A stage whose turn comes when the budget is used
// up is not skipped: it still gets 1 s (or its StopTimeout if that is
// shorter), because a database that is not closed or a lock that is not
// released is worse than one that is late. So Stop returns at the latest 2 s
// per stage after the end of its budget, and 1 s more if a stage was
// just starting; leave that much before whatever kills the process.
package startup
