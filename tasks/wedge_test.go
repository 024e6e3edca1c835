package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/logtest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// A pipe is a log that nobody reads until it is opened.
type pipe struct {
	logtest.Log
	open chan struct{}
}

func (p *pipe) Write(b []byte) (int, error) {
	<-p.open
	return p.Log.Write(b)
}

func TestALogThatNobodyReadsHoldsUpNothing(t *testing.T) {
	missing.Long(t, "logs a lot")
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		full := &pipe{open: make(chan struct{})}
		defer close(full.open)
		// Once, as package startup does: a mutex would block this bubble.
		log := bounded.Log(slog.New(slog.NewTextHandler(full,
			&slog.HandlerOptions{Level: slog.LevelDebug})))
		jobs := []Job{d.job("j", Every(time.Second).Offset(0), 0),
			d.failing("failing", Every(time.Second).Offset(0), 99),
			d.job("paused", at(12*time.Hour), 0)}
		a := w.join(jobs, WithLogger(log))
		var err error
		a.lock, err = schedlock.New(a.link, schedlock.WithLogger(log),
			schedlock.WithOwner(driver.Owner{PID: 77, Hostname: "test"}))
		require.NoError(t, err)
		a.runner.lock = a.lock
		b := w.join(jobs)
		a.start()
		time.Sleep(time.Second)
		require.True(t, a.leads())
		b.stand()
		for range ledger.MaxPending { // nor do a thousand requests that wait
			_, err = w.db.Trigger(ctx, ledger.Action{Job: "paused", By: "alice"})
			require.NoError(t, err)
		}
		_, err = w.db.Pause(ctx, ledger.Action{Job: "paused", By: "alice"})
		require.NoError(t, err)
		sleepUntil(2*time.Minute + 500*time.Millisecond)
		assert.GreaterOrEqual(t, len(w.runs("j")), 119, "a run each second")
		assert.GreaterOrEqual(t, len(w.runs("failing")), 119)
		require.True(t, a.leads())
		assert.GreaterOrEqual(t, w.holder().Beat, int64(11), "heartbeats go on")
		request := b.trigger("j", "bob", "")
		assert.Less(t, b.await(request).StartedAt.Sub(request.At), time.Second)

		begin := time.Now()
		require.NoError(t, a.runner.Stop(ctx))
		assert.LessOrEqual(t, time.Since(begin), flushLimit+time.Second,
			"a stop waits for the log, but not for long")
		assert.True(t, b.leads())
	})
}

// misbehaviours are what a function of an app may do instead of returning.
var misbehaviours = map[string]func(hung chan struct{}){
	"it blocks":  func(hung chan struct{}) { <-hung },
	"it panics":  func(chan struct{}) { panic("boom") },
	"it goexits": func(chan struct{}) { runtime.Goexit() },
}

func TestWhatAnAppDoesInACallbackIsInNobodysWay(t *testing.T) {
	for name, misbehave := range misbehaviours {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			hung := make(chan struct{})
			defer close(hung)
			jobs := []Job{d.failing("failing", Every(time.Second).Offset(0), 99),
				d.job("j", Every(time.Second).Offset(0), 0)}
			var told atomic.Int64
			a := w.leader(jobs, WithOnRun(func(RunEvent) { misbehave(hung) }),
				WithOnRun(func(RunEvent) { told.Add(1) }))
			b := w.standby(jobs)
			sleepUntil(5*time.Minute + 500*time.Millisecond)
			for _, j := range jobs {
				assert.Len(t, w.runs(j.Name), 300, "the runs of %q", j.Name)
			}
			require.True(t, a.leads())
			assert.EqualValues(t, 2*2*300, told.Load(), "no function waits for another one")

			begin := time.Now()
			stopped := make(chan struct{})
			go func() { defer close(stopped); _ = a.runner.Stop(ctx) }()
			sleepUntil(5*time.Minute + 500*time.Millisecond + 2*retry)
			assert.True(t, b.leads(),
				"the lock is released before the callbacks are waited for")
			<-stopped
			assert.LessOrEqual(t, time.Since(begin), callbackLimit)
			word := map[string]string{"it blocks": " does not return",
				"it panics": " has panicked", "it goexits": " has called runtime.Goexit"}[name]
			assert.Positive(t, a.log.Count("OnRun"+word))
			assert.Less(t, a.log.Count("does not keep up"), 10)
		})
	}
}

func TestCallbacksAreCalledInOrderAndOneThatHangsIsPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			d   diary
			log logtest.Log
		)
		c := &callbacks{name: "OnRun", log: slog.New(slog.NewTextHandler(&log, nil))}
		hung := make(chan struct{})
		c.call("a", func() { <-hung; d.write("a") })
		c.call("b", func() { d.write("b"); runtime.Goexit() })
		for i := range 5 {
			c.call("c", func() { d.write("%d", i) })
		}
		synctest.Wait()
		require.Empty(t, d.read(), "one after the other")
		time.Sleep(callbackLimit)
		synctest.Wait()
		require.Equal(t, []string{"b", "0", "1", "2", "3", "4"}, d.read())
		require.Equal(t, 1,
			log.Count(`level=ERROR msg="OnRun does not return: nothing waits for it any more" `+
				`job=a`))
		c.wait(0)
		close(hung)
		synctest.Wait()
		require.Equal(t, "a", d.read()[6])
		require.Zero(t, hanging(c))

		// It is bounded, however many hang.
		again := make(chan struct{})
		c.call("d", func() { <-again })
		synctest.Wait() // else the first leaves the queue at any moment
		for range 2999 {
			c.call("d", func() { <-again })
		}
		time.Sleep(time.Hour)
		require.Equal(t, maxHung, hanging(c))
		require.Equal(t, 1, log.Count("does not keep up"))
		close(again)
		synctest.Wait()
		c.call("e", func() { d.write("e") })
		synctest.Wait()
		require.Equal(t, "e", d.read()[7], "it is told again")
		require.Equal(t, 1, log.Count("OnRun is told again"))
	})
}

func TestStopWaitsForCallbacksButNotForLong(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{2 * time.Second: 3 * time.Second,
		time.Hour: callbackLimit} {
		runInDiary(t, takes.String(), func(t *testing.T, w *world, d *diary) {
			a := w.leader([]Job{d.job("j", at(5*time.Second), 0)},
				WithOnRun(func(RunEvent) { time.Sleep(takes) })) // of a start, and of an end
			sleepUntil(6 * time.Second)
			begin := time.Now()
			require.NoError(t, a.runner.Stop(ctx))
			assert.Equal(t, want, time.Since(begin))
			assert.Equal(t, 1, a.log.Count(`stopping waits for OnRun" job=j calls=2`))
			assert.Equal(t, want == callbackLimit,
				a.log.Count("stopped without waiting for OnRun any longer") == 1)
			time.Sleep(2 * takes) // both return
		})
	}
}

func hanging(c *callbacks) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hung
}

func TestOnStuckHoldsUpNothing(t *testing.T) {
	for name, misbehave := range misbehaviours {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			hung, mayReturn := make(chan struct{}), make(chan struct{})
			defer close(hung)
			jobs := []Job{d.deaf("deaf", at(time.Second), mayReturn)}
			a := w.leader(jobs, WithDrain(time.Second),
				WithOnStuck(func([]Run) { misbehave(hung) }))
			b := w.standby(nil)
			sleepUntil(2 * time.Second)
			go func() { _ = a.runner.Stop(ctx) }()
			sleepUntil(30 * time.Second)
			require.False(t, b.leads())
			close(mayReturn)
			sleepUntil(31 * time.Second)
			assert.True(t, b.leads(), "once the job has returned")
		})
	}
}

// The run is over, but nobody can write that down.
func TestTheWatchdogCountsFromWhenAJobHasReturned(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		takes := []time.Duration{time.Second, 3 * time.Minute, time.Second}
		jobs := []Job{{Name: "j", Spec: Every(10 * time.Second).Offset(5 * time.Second),
			Do: func(context.Context, Run) error {
				time.Sleep(takes[0])
				takes = takes[1:]
				return nil
			}}}
		a, b := w.leader(jobs), w.standby(jobs)
		begin := 3*time.Minute + 20*time.Second
		sleepUntil(begin)
		require.Len(t, w.terms(), 1, "a run that goes on is not stalled")
		a.link.set(on(hang, "finish"))
		sleepUntil(begin + 15*time.Second + ttl)
		require.True(t, a.leads(), "not for longer than a TTL")
		sleepUntil(begin + 15*time.Second + ttl + 2*every)
		assert.False(t, a.leads())
		sleepUntil(begin + 15*time.Second + ttl + 4*every)
		assert.True(t, b.leads(), "the row was given back")
		assert.Equal(t, 1, a.log.Count(`stepped down: the tick of job \"j\"`))
	})
}

// Its heartbeats go on, so nobody else would ever lead.
func TestADrainDoesNotWaitForeverForTheEndOfARun(t *testing.T) {
	for name, leave := range map[string]func(a *replica) error{
		"a stop": func(a *replica) error { return a.runner.Stop(ctx) },
		"a hand-over": func(a *replica) error {
			_, err := a.runner.HandOver(ctx, a.w.holder().Term, "alice", "")
			return err
		},
	} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			job := once(d.job("j", at(5*time.Second), time.Second))
			a, b := w.leader([]Job{job}, WithDrain(5*time.Second)), w.standby([]Job{job})
			a.link.set(on(refuse, "finish"))
			sleepUntil(7 * time.Second)
			go func() { assert.NoError(t, leave(a)) }()
			sleepUntil(7*time.Second + ttl)
			require.False(t, b.leads(), "it goes on trying for a TTL")
			sleepUntil(15*time.Second + ttl)
			assert.True(t, b.leads())
			assert.Equal(t, 1, a.log.Count("end of run not recorded"))
			assert.Equal(t, []string{"00:00:05 abandoned"}, w.rows("j"))
		})
	}
}

func TestADrainSaysWhatItWaitsFor(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		mayReturn := make(chan struct{})
		jobs := []Job{d.deaf("deaf", at(time.Second), mayReturn),
			d.job("unwritten", at(time.Second), time.Second), d.job("undecided", at(time.Hour), 0)}
		a := w.leader(jobs, WithDrain(5*time.Second))
		a.link.set(on(freeze, "finish", "answer"))
		sleepUntil(3 * time.Second)
		a.trigger("undecided", "alice", "")
		sleepUntil(4 * time.Second)
		patience, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := a.runner.Stop(patience)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, what := range []string{`job "deaf"`,
			`the database, to record the end of a run of job "unwritten"`,
			`the database, about job "undecided"`} {
			require.ErrorContains(t, err, what)
			quoted := strings.ReplaceAll(what, `"`, `\"`)
			line := func(message string) int {
				n := 0
				for l := range strings.Lines(a.log.String()) {
					if strings.Contains(l, message) && strings.Contains(l, quoted) {
						n++
					}
				}
				return n
			}
			assert.Equal(t, 1, line("the drain waits"), what)
			assert.Equal(t, 1, line("drain limit passed"), what)
			assert.Equal(t, 2, line("the term does not end yet"), "%s, in a minute", what)
		}
		a.link.set(nil)
		close(mayReturn)
		synctest.Wait()
		require.NoError(t, a.runner.Stop(ctx))
		assert.Nil(t, w.holder())
	})
}

// An error may be as long as memory allows; tables and logs keep 16 kB of it.
func TestAnErrorIsCut(t *testing.T) {
	missing.Long(t, "makes long errors")
	inWorld(t, func(t *testing.T, w *world) {
		var (
			d diary
			f failures
		)
		long := strings.Repeat("no space – ", 1<<20)
		jobs := []Job{
			{Name: "fails", Spec: at(time.Second), Do: func(context.Context, Run) error {
				return fmt.Errorf("%w: %s", errFull, long)
			}},
			{Name: "panics", Spec: at(time.Second), Do: func(context.Context, Run) error {
				panic(long)
			}},
			{Name: "is late", Spec: at(time.Second), Timeout: time.Second,
				Do: func(ctx context.Context, _ Run) error {
					<-ctx.Done()
					return errors.New(long)
				}},
			{Name: "breaks", Spec: at(time.Second), Do: func(context.Context, Run) error {
				return (*brokenError)(nil)
			}},
			d.job("j", at(2*time.Second), 0),
		}
		a := w.leader(jobs, WithOnRun(f.add))
		sleepUntil(time.Minute)
		for _, name := range []string{"fails", "panics", "is late"} {
			r := w.runs(name)[0]
			assert.Equal(t, ledger.Failed, r.Status)
			assert.LessOrEqual(t, len(r.Error), ledger.MaxText, name)
			assert.Greater(t, len(r.Error), ledger.MaxText-200, name)
			assert.Contains(t, r.Error, "(cut: it had ", name)
		}
		assert.Equal(t, ledger.Failed, w.runs("breaks")[0].Status)
		assert.Contains(t, w.runs("is late")[0].Error, errTimeout.Error())
		assert.Less(t, len(a.log.String()), 10*ledger.MaxText)
		require.Len(t, f.read(), 4)
		for _, x := range f.read() {
			assert.LessOrEqual(t, len(x.Err.Error()), ledger.MaxText)
			switch x.Job {
			case "fails":
				assert.ErrorIs(t, x.Err, errFull, "what it is stays")
			case "panics":
				assert.True(t, strings.HasPrefix(x.Err.Error(), "panic: "), x.Err)
			case "is late":
				assert.ErrorIs(t, x.Err, errTimeout)
			}
		}
		assert.Len(t, d.read(), 1)
	})
}

// A brokenError is an error whose method panics.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// Each tick of an outage of the ledger wakes its job. One waits for the others.
func TestOneAtATimeWaitsForTheTurnOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tm, j := &term{ctx: ctx}, &termJob{turn: bounded.NewTurn()}
		require.NoError(t, j.turn.Take(ctx))
		var left atomic.Int32
		wake := func() {
			for range 5 {
				go func() {
					tm.next(j)
					left.Add(1)
				}()
			}
			synctest.Wait()
		}
		wake()
		require.EqualValues(t, 4, left.Load())
		wake()
		require.EqualValues(t, 9, left.Load())
		cancel()
		synctest.Wait()
		require.EqualValues(t, 10, left.Load())
		require.False(t, j.waits.Load())
	})
}
