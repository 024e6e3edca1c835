package tasks

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

const grace = 5 * time.Second // as package startup has it

// A session is a link's with the database. A link whose world has no grace has
// none.
type session struct{ ended chan struct{} }

func (x *session) Ended() <-chan struct{} { return x.ended }

func (x *session) Alive() bool {
	select {
	case <-x.ended:
		return false
	default:
		return true
	}
}

// connect gives the link a new session, and ends the one before.
func (l *link) connect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		close(l.session.ended)
	}
	l.session = &session{ended: make(chan struct{})}
}

func (l *link) connected() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// suspend ends the session of r, and no heartbeat succeeds on another.
func (r *replica) suspend() {
	r.w.t.Helper()
	r.link.set(on(refuse, "heartbeat"))
	r.endSession()
}

func (r *replica) endSession() {
	r.w.t.Helper()
	r.link.connect()
	synctest.Wait()
	require.ErrorIs(r.w.t, r.lock.IsLeader(ctx), schedlock.ErrSuspended)
}

// resume lets everything succeed again.
func (r *replica) resume() {
	r.w.t.Helper()
	r.link.set(nil)
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	require.NoError(r.w.t, r.lock.IsLeader(ctx))
}

func TestNothingStartsWhileSuspended(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.grace = grace
		a := w.leader([]Job{d.job("j", Every(time.Second).Offset(0), 0)})
		sleepUntil(2500 * time.Millisecond)
		a.suspend()
		a.link.log()
		started := d.read()
		sleepUntil(4100 * time.Millisecond)
		assert.Equal(t, started, d.read())
		assert.NotContains(t, a.link.log(), "decide", "nor does it ask for a start")
		a.resume()
		sleepUntil(5500 * time.Millisecond)
		// The ticks of 3 and 4 s were due together: the newest runs, by the
		// policy of the job.
		assert.Equal(t, append(started, "j 00:00:04", "j 00:00:05"), d.read())
		assert.Len(t, w.terms(), 1, "one term")
	})
}

// late lets the answer to the start of a run wait, and no heartbeat succeed.
func late(op string) fault {
	switch op {
	case "decide":
		return freeze
	case "heartbeat":
		return refuse
	}
	return none
}

// agreedWhileSuspended returns a leader that was suspended after the database had
// agreed to the start of its job j; the answer is on its way.
func agreedWhileSuspended(w *world, d *diary) *replica {
	w.t.Helper()
	w.grace = grace
	a := w.leader([]Job{d.job("j", at(5*time.Second), 0)})
	sleepUntil(4 * time.Second)
	a.link.set(late)
	sleepUntil(6 * time.Second)
	require.Equal(w.t, []string{"00:00:05 in_progress"}, w.rows("j"))
	a.endSession()
	return a
}

func TestWhatTheDatabaseHadAgreedToStartsWhenTheLeaderIsNotSuspendedAnyMore(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := agreedWhileSuspended(w, d)
		a.link.set(on(refuse, "heartbeat")) // and the answer arrives
		time.Sleep(grace / 4)
		synctest.Wait()
		require.Empty(t, d.read())
		a.resume()
		require.Equal(t, []string{"j 00:00:05"}, d.read())
		require.Equal(t, []string{"00:00:05 done"}, w.rows("j"))
		require.Equal(t, 1, w.runs("j")[0].Attempt)
	})
}

func TestWhatTheDatabaseHadAgreedToDoesNotStartIfTheLeaseIsLost(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := agreedWhileSuspended(w, d)
		a.link.set(on(refuse)) // and the answer arrives
		time.Sleep(grace)
		synctest.Wait()
		require.Error(t, a.lock.IsLeader(ctx))
		require.Nil(t, a.lock.Lease())
		require.Empty(t, d.read())

		// The next leader takes it up.
		b := w.join([]Job{d.job("j", at(5*time.Second), 0)})
		b.start()
		sleepUntil(2 * time.Minute)
		require.True(t, b.leads())
		require.Equal(t, []string{"j 00:00:05"}, d.read())
		r := w.runs("j")[0]
		require.Equal(t, ledger.Done, r.Status)
		require.Equal(t, 2, r.Attempt)
	})
}

func TestADrainWhileSuspendedStartsNothing(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.grace = grace
		a := w.leader([]Job{d.job("j", Every(time.Second).Offset(0), 0)})
		sleepUntil(2500 * time.Millisecond)
		a.suspend()
		sleepUntil(3500 * time.Millisecond) // a tick waits
		started := d.read()
		stopped := make(chan error, 1)
		go func() { stopped <- a.runner.Stop(ctx) }()
		synctest.Wait()
		a.link.set(nil)
		require.NoError(t, <-stopped)
		require.Equal(t, started, d.read())
		require.Nil(t, w.holder())
	})
}

func TestARunGoesOnWhileSuspended(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.grace = grace
		a := w.leader([]Job{d.job("j", at(5*time.Second), 3*time.Second)})
		sleepUntil(7 * time.Second)
		a.suspend()
		sleepUntil(8 * time.Second)
		require.Equal(t, []string{"00:00:05 done"}, w.rows("j"))
		a.resume()
		require.Empty(t, d.causes())
	})
}

// A standstill is a log in which whoever says that a run starts stands still, as
// a process may at any moment, until it may go on.
type standstill struct {
	slog.Handler
	mayGoOn <-chan struct{}
}

// standsStill is a leader with such a log. It is not behind a queue, which would let the run go on.
func (w *world) standsStill(jobs []Job, mayGoOn <-chan struct{}) *replica {
	w.t.Helper()
	r := w.join(jobs)
	r.runner.log = slog.New(standstill{discard.Handler(), mayGoOn})
	r.lead()
	return r
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
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			mayGoOn := make(chan struct{})
			jobs := []Job{
				d.job("j", at(5*time.Second), 0),
				once(d.job("once", at(5*time.Second), 0)),
			}
			a := w.standsStill(jobs, mayGoOn)
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
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		w.grace = grace
		mayGoOn := make(chan struct{})
		a := w.standsStill([]Job{d.job("j", at(5*time.Second), 0)}, mayGoOn)
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
