package tasks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // the operator's shell
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/sqlite"
)

// In a shell an operator writes what SQLite calls a time, or anything else.
func TestAJobGoesOnWhateverAHandWritesIntoACursor(t *testing.T) {
	missing.Long(t, "tries many values")
	t.Parallel()
	for _, text := range missing.Some(`'2999-01-01T00:00:00.000000Z'`, `datetime('now')`,
		`'yesterday'`, `''`, `'99999-01-01'`, `char(0)`, `cast(x'ff' AS TEXT)`,
		`'0001-01-01T00:00:00.000000Z'`) {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			goesOnAfter(t, text)
		})
	}
}

func goesOnAfter(t *testing.T, text string) {
	file := filepath.Join(t.TempDir(), "app.db")
	store, err := sqlite.Open(ctx, "file:"+file)
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, store.Migrate(ctx))
	shell, err := sql.Open("sqlite3", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer shell.Close()

	var good, edited atomic.Int64
	job := func(name string, n *atomic.Int64) Job {
		return Job{Name: name, Spec: Every(100 * time.Millisecond),
			Do: func(context.Context, Run) error {
				n.Add(1)
				return nil
			}}
	}
	lead := func() (stop func()) {
		lock, err := schedlock.New(store, schedlock.WithLogger(discard))
		require.NoError(t, err)
		runner, err := NewRunner(lock, store, []Job{job("edited", &edited), job("good", &good)},
			WithLogger(discard))
		require.NoError(t, err)
		runner.Start()
		runner.Campaign()
		return func() { require.NoError(t, runner.Stop(ctx)) }
	}
	more := func(when string) {
		t.Helper()
		e, g := edited.Load(), good.Load()
		for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
			if edited.Load() >= e+2 && good.Load() >= g+2 {
				return
			}
		}
		t.Fatalf("%s: runs in 20 s: %d of the job whose cursor was edited, %d of the other", when,
			edited.Load()-e, good.Load()-g)
	}
	edit := func() {
		_, err := shell.Exec(`UPDATE scheduler_jobs SET cursor_at = ` + text + ` WHERE job = 'edited'`)
		require.NoError(t, err)
	}
	stop := lead()
	more("at first")
	edit()
	more("while it leads")
	stop()
	edit()
	stop = lead()
	more("before it leads")
	stop()
	jobs, err := store.Jobs(ctx)
	require.NoError(t, err)
	for _, j := range jobs {
		assert.WithinDuration(t, time.Now(), j.Cursor, time.Minute, j.Name)
	}
}

func TestACursorThatStandsTooFarAheadIsPutBackWhenATermBegins(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		spec := Every(10 * time.Minute).Offset(0)
		jobs := []Job{d.job("j", spec, 0), d.job("k", spec, 0)}
		a := w.leader(jobs)
		sleepUntil(15 * time.Minute)
		// The clock is wrong for a moment, in which a heartbeat falls.
		w.setClock(99 * 365 * 24 * time.Hour)
		sleepUntil(15*time.Minute + 2*every)
		w.setClock(-99 * 365 * 24 * time.Hour)
		sleepUntil(45 * time.Minute)
		far := len(d.read())
		require.Equal(t, 4, far, "one run of each with the right clock, and one with the wrong one")
		require.NoError(t, a.runner.Stop(ctx))
		b := w.leader(jobs)
		sleepUntil(65 * time.Minute)
		assert.Equal(t, []string{"00:50:00", "00:50:00", "01:00:00", "01:00:00"},
			clocks(d.read()[far:]))
		assert.Equal(t, 2, b.log.Count("the cursor of a job stood too far ahead, and was put back"),
			"once for each job")
	})
}

// After a step back of the clock all jobs may wait, for as long as the step was.
func TestTheCursorsOfAllJobsThatWaitAreReadAtOnce(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		var jobs []Job
		for i := range 20 {
			jobs = append(jobs, d.job(fmt.Sprint(i), Every(10*time.Minute).Offset(0), 0))
		}
		a := w.leader(jobs)
		sleepUntil(15 * time.Minute)
		w.setClock(-time.Hour)
		sleepUntil(15*time.Minute + every)
		a.link.log()
		sleepUntil(15*time.Minute + 11*every)
		reads := 0
		for _, call := range a.link.log() {
			if call == "jobs" {
				reads++
			}
		}
		assert.InDelta(t, 10, reads, 1, "one every heartbeat interval")

		before := len(d.read())
		require.True(t, w.db.EditCursor("7", w.now().Add(-10*time.Minute), ""))
		sleepUntil(15*time.Minute + 13*every)
		assert.Len(t, d.read(), before+1, "a hand has set it right: it waits for no tick")
	})
}

// clocks are the times of the lines of a diary.
func clocks(lines []string) (times []string) {
	for _, line := range lines {
		times = append(times, line[len(line)-8:])
	}
	return times
}

// A leader's time may be some milliseconds ahead of the next one's.
func TestACursorAtTheNextTickIsLeftAlone(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", Every(time.Minute).Offset(0), 0),
			d.job("often", Every(100*time.Millisecond).Offset(0), 0)}
		a := w.leader(jobs)
		sleepUntil(time.Minute)
		w.setClock(-300 * time.Millisecond)
		require.NoError(t, a.runner.Stop(ctx))
		b := w.leader(jobs)
		sleepUntil(2 * time.Minute)
		assert.Zero(t, b.log.Count("put back"))
		for _, j := range jobs {
			rows := w.runs(j.Name)
			wantEachTickOnce(t, w, j.Name, j.Spec, midnight, rows[len(rows)-1].ScheduledAt)
		}
	})
}

// A run whose row was pruned could start again, and so could one whose row can't be read.
func TestACursorIsPutBackNoFurtherThanTheLedgerGoes(t *testing.T) {
	missing.Long(t, "makes many runs")
	for name, keep := range map[string]int{"as many rows are kept": 10, "more are kept now": 100,
		"all are kept now": 0, "one cannot be read": 10} {
		runInDiary(t, name, func(t *testing.T, w *world, d *diary) {
			jobs := []Job{d.job("j", Every(time.Minute).Offset(0), 0)}
			a := w.leader(jobs, WithKeepRuns(10))
			sleepUntil(60*time.Minute + 30*time.Second)
			w.setClock(-time.Hour)
			require.NoError(t, a.runner.Stop(ctx))
			b := w.join(jobs, WithKeepRuns(keep))
			if name == "one cannot be read" {
				b.runner.ledger = spoiled{b.link}
			}
			b.lead()
			sleepUntil(3 * time.Hour)
			runs := d.read()
			seen := map[string]bool{}
			for _, r := range runs {
				assert.False(t, seen[r], "%s ran twice", r)
				seen[r] = true
			}
			assert.Equal(t, 1, b.log.Count("put back"))
			assert.True(t, seen["j 01:30:00"], "it runs again")
		})
	}
}

// In a spoiled ledger the second of the newest runs of a job can't be read.
type spoiled struct{ ledger.Store }

func (s spoiled) Runs(ctx context.Context, job string, limit int) ([]ledger.Run, error) {
	runs, err := s.Store.Runs(ctx, job, limit)
	return slices.Delete(runs, 1, 2), errors.Join(err, errRefused)
}

func TestAnUnreadableCursorIsSaidAndCountsAsNow(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		jobs := []Job{d.job("j", Every(10*time.Minute).Offset(0), 0),
			d.job("k", Every(10*time.Minute).Offset(0), 0)}
		w.leadsUntil(15*time.Minute, jobs)
		require.True(t, w.db.EditCursor("j", time.Time{}, `"yesterday"`))
		sleepUntil(35 * time.Minute)
		b := w.leader(jobs)
		sleepUntil(45 * time.Minute)
		assert.Equal(t, []string{"00:10:00", "00:10:00", "00:30:00", "00:40:00", "00:40:00"},
			clocks(d.read()), "the ticks of k were missed, those of j nobody knows")
		assert.Equal(t, 1, b.log.Count(`the cursor of a job could not be read: it counts as now" `+
			`job=j cursor="\"yesterday\""`))
		rows, err := w.db.Jobs(ctx)
		require.NoError(t, err)
		for _, j := range rows {
			assert.Empty(t, j.RawCursor)
			assert.Equal(t, midnight.Add(40*time.Minute), j.Cursor)
		}
	})
}

// Whoever leads finds out.
func TestACursorThatIsResetLetsItsJobRunSoon(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("j", Every(10*time.Minute).Offset(0), 0)})
		sleepUntil(95 * time.Minute)
		w.setClock(-time.Hour)
		sleepUntil(96 * time.Minute)
		n := len(d.read())
		job, err := w.db.ResetCursor(ctx, ledger.Action{Job: "j", By: "ann"})
		require.NoError(t, err)
		require.Equal(t, w.now().UTC(), job.Cursor)
		sleepUntil(156 * time.Minute) // 01:36 by the database's clock
		assert.Equal(t, n, len(d.read()), "what has run does not run again")
		sleepUntil(165 * time.Minute)
		assert.Equal(t, []string{"01:40:00"}, clocks(d.read()[n:]))
		assert.True(t, a.leads())
	})
}

// The ledger may answer whatever it likes: no loop spins.
func TestNoLoopOverTheLedgerSpins(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	writes := []string{"abandon", "prune", "decide", "retry", "answer", "give up", "finish"}
	all := append([]string{"jobs", "retries", "pending", "run", "runs"}, writes...)
	for which, ops := range map[string][]string{"every call": all, "every write": writes,
		"decisions": {"decide"}} {
		t.Run(which, func(t *testing.T) { testNoLoopSpins(t, all, ops) })
	}
}

func testNoLoopSpins(t *testing.T, all, ops []string) {
	for name, answer := range map[string]error{"moved": driver.ErrConflict,
		"paused": ledger.ErrPaused, "refused": errRefused} {
		for when, led := range map[string]bool{"from the start": false, "while it leads": true} {
			runInWorld(t, name+" "+when, func(t *testing.T, w *world) {
				var (
					d     diary
					calls atomic.Int64
				)
				failing := d.failing("failing", Every(10*time.Second).Offset(0), 99)
				failing.Retry = Retry{Attempts: 1000, Backoff: time.Second,
					MaxBackoff: time.Second}
				long := d.job("long", Every(20*time.Second).Offset(0), 15*time.Second)
				a := w.join([]Job{d.job("j", Every(time.Second).Offset(0), 0), failing, long},
					WithKeepRuns(5))
				bad := func(op string) fault {
					if slices.Contains(all, op) && calls.Add(1) < 100_000 &&
						slices.Contains(ops, op) {
						return say // else it spins: let it come to an end
					}
					return none
				}
				a.link.answer = fmt.Errorf("%w: says the test", answer)
				if !led {
					a.link.set(bad)
				}
				a.start()
				synctest.Wait()
				if led {
					require.True(t, a.leads())
					sleepUntil(25 * time.Second)
					a.trigger("j", "alice", "")
					a.link.set(bad)
				}
				time.Sleep(time.Minute)
				assert.Less(t, calls.Load(), int64(2000), "calls in a minute")
				assert.Positive(t, calls.Load())
				a.link.set(nil)
				n := len(d.read())
				time.Sleep(time.Minute)
				assert.Greater(t, len(d.read()), n+20, "and it heals")
			})
		}
	}
}

func TestTheCursorsOfOneJobAreNoConcernOfAnother(t *testing.T) {
	inDiary(t, func(t *testing.T, w *world, d *diary) {
		a := w.leader([]Job{d.job("bad", Every(time.Second).Offset(0), 0),
			d.job("good", Every(time.Second).Offset(0), 0)})
		sleepUntil(time.Second)
		// Somebody edits it all the time.
		a.link.set(func(op string) fault {
			if op == "decide" {
				at := w.now().Add(-time.Hour)
				w.db.EditCursor("bad", at, fmt.Sprint("edited at ", at, time.Since(midnight)))
			}
			return none
		})
		sleepUntil(3 * time.Minute)
		good := 0
		for _, line := range d.read() {
			if line[:4] == "good" {
				good++
			}
		}
		assert.Equal(t, 180, good)
		assert.True(t, a.leads())
		assert.Less(t, len(a.link.log()), 3000)
	})
}

func TestRunsAreGoneIfMoreAttemptsHaveEndedThanTheOthersTell(t *testing.T) {
	row := &ledger.Job{Stats: ledger.Stats{Done: 3, Failed: 4}}
	runs := []ledger.Run{{Status: ledger.Skipped}, {Status: ledger.Done, Attempt: 3},
		{Status: ledger.Failed, Attempt: 2}, {Status: ledger.Abandoned, Attempt: 1},
		{Status: ledger.InProgress, Attempt: 2}}
	require.False(t, anyGone(row, runs), "the attempt in progress has not ended")
	for i, r := range runs {
		others := slices.Delete(slices.Clone(runs), i, i+1)
		require.Equal(t, r.Status != ledger.Skipped, anyGone(row, others), r.Status)
	}
}
