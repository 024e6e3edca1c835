package tasks

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// A standstill is a log in which whoever says that a run starts stands still, as
// a process may at any moment, until it may go on.
type standstill struct {
	slog.Handler
	mayGoOn <-chan struct{}
}

func standStill(mayGoOn <-chan struct{}) Option {
	return WithLogger(slog.New(standstill{discard.Handler(), mayGoOn}))
}

func (s standstill) WithAttrs(attrs []slog.Attr) slog.Handler {
	if slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == "attempt" }) {
		<-s.mayGoOn
	}
	return s
}

func TestARunDoesNotStartIfTheLeaseHasEndedJustBeforeTheCall(t *testing.T) {
	for name, end := range map[string]func(a *replica){
		"past its deadline":       func(a *replica) { a.link.set(on(refuse)); time.Sleep(ttl) },
		"lost, says the database": func(a *replica) { a.w.usurp(); time.Sleep(every) },
		"the drain passed its limit": func(a *replica) {
			go a.runner.Stop(ctx)
			time.Sleep(2 * defaultDrain)
		},
	} {
		runInWorld(t, name, func(t *testing.T, w *world) {
			var d diary
			mayGoOn := make(chan struct{})
			jobs := []Job{
				d.job("j", at(5*time.Second), 0),
				once(d.job("once", at(5*time.Second), 0)),
			}
			a := w.leader(jobs, standStill(mayGoOn))
			sleepUntil(6 * time.Second)
			require.Equal(t, []string{"00:00:05 in_progress"}, w.rows("j"))
			end(a)
			a.link.set(nil)
			close(mayGoOn)
			sleepUntil(3 * time.Minute)

			// It counts as cut short: the next leader takes it up.
			require.NoError(t, a.runner.Stop(ctx))
			b := w.join(jobs)
			b.start()
			sleepUntil(6 * time.Minute)
			require.Equal(t, []string{"j 00:00:05"}, d.read())
			r := w.runs("j")[0]
			assert.Equal(t, ledger.Done, r.Status)
			assert.Equal(t, 2, r.Attempt)
			r = w.runs("once")[0]
			assert.NotEqual(t, ledger.Done, r.Status)
			assert.Equal(t, 1, r.Attempt)
		})
	}
}

func TestARunWaitsIfTheSessionHasEndedJustBeforeTheCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.grace = grace
		var d diary
		mayGoOn := make(chan struct{})
		a := w.leader([]Job{d.job("j", at(5*time.Second), 0)}, standStill(mayGoOn))
		sleepUntil(6 * time.Second)
		a.suspend()
		close(mayGoOn)
		time.Sleep(grace / 4)
		require.Empty(t, d.read())
		a.resume()
		require.Equal(t, []string{"j 00:00:05"}, d.read())
		require.Equal(t, []string{"00:00:05 done"}, w.rows("j"))
	})
}
