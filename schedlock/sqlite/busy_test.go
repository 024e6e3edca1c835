package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
)

// ops are all statements that the lock depends on.
func ops(ctx context.Context, s *Store, ref driver.Ref) map[string]func() error {
	now := time.Now()
	me := ledger.Action{Job: "k", By: "me"}
	return map[string]func() error{
		"look": func() error { return errOf(s.Look(ctx)) },
		"acquire": func() error {
			v, err := s.Look(ctx)
			if err != nil {
				return err
			}
			return errOf(s.Acquire(ctx, claimOf(v)))
		},
		"heartbeat": func() error { return errOf(s.Heartbeat(ctx, ref, driver.StateLeading)) },
		"release":   func() error { return errOf(s.Release(ctx, ref, driver.EndReleased)) },
		"jobs":      func() error { return errOf(s.Jobs(ctx)) },
		"abandon":   func() error { return errOf(s.Abandon(ctx, ref, nil)) },
		"decide": func() error {
			_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
				Spec: "s", To: now, Start: now,
				Skipped: []ledger.Skip{{First: now.Add(-2 * time.Second),
					Last: now.Add(-time.Second), Count: 2, Reason: ledger.Missed}}})
			return err
		},
		"finish": func() error {
			return errOf(s.Finish(ctx, ledger.Run{ID: 1, Term: ref.Term, Attempt: 1},
				ledger.End{Status: ledger.Done}))
		},
		"retry": func() error {
			_, _, err := s.Retry(ctx, ref, ledger.Run{ID: 2, Attempt: 1})
			return err
		},
		"give up": func() error { return errOf(s.GiveUp(ctx, ref, ledger.Run{ID: 2, Attempt: 1})) },
		"run":     func() error { _, _, err := s.Run(ctx, "k", noon); return err },
		"retries": func() error { return errOf(s.Retries(ctx)) },
		"inbox":   func() error { return errOf(s.Pending(ctx)) },
		"trigger": func() error { return errOf(s.Trigger(ctx, me)) },
		"answer": func() error {
			_, _, err := s.Answer(ctx, ref, ledger.Request{Action: me, At: noon}, "")
			return err
		},
		"pause":        func() error { return errOf(s.Pause(ctx, me)) },
		"resume":       func() error { return errOf(s.Resume(ctx, "k", "me")) },
		"reset cursor": func() error { return errOf(s.ResetCursor(ctx, me)) },
		"revoke":       func() error { return errOf(s.Revoke(ctx, ref.Term, "me", "")) },
		"prune":        func() error { return errOf(s.Prune(ctx, "k", 0, 10)) },
	}
}

func errOf[T any](_ T, err error) error { return err }

// seed gives the ledger's operations something to do: a run in progress, one
// that is owed an attempt, two that another term left, and a request.
func seed(t testing.TB, conn *sql.Conn, ref driver.Ref) {
	t.Helper()
	run(t, conn, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
		VALUES ('k', 's', ?1, ?1)`, formatTime(noon))
	for i, r := range []struct {
		status  ledger.Status
		term    int64
		retryAt time.Time
	}{{ledger.InProgress, ref.Term, time.Time{}}, {ledger.Failed, ref.Term, noon},
		{ledger.InProgress, 1, time.Time{}}, {ledger.InProgress, 1, time.Time{}}} {
		run(t, conn, `INSERT INTO scheduler_runs
			(id, job, scheduled_at, started_at, status, term, pid, hostname, attempt, retry_at)
			VALUES (?1, 'k', ?2, ?2, ?3, ?4, 1, 'h', 1, ?5)`,
			i+1, formatTime(noon.Add(time.Duration(i-5)*time.Hour)),
			string(r.status), r.term, formatOptional(r.retryAt))
	}
	run(t, conn, `INSERT INTO scheduler_requests VALUES ('k', ?1, 'me', '')`, formatTime(noon))
}

// A loser that keeps the write lock starves the leader's heartbeat.
func TestNoOperationLeavesAWriteLockBehindHoweverItEnds(t *testing.T) {
	missing.Long(t, "cancels hundreds of operations")
	t.Parallel()
	s := newStore(t)
	other := foreign(t, s)
	ref := acquire(t, s)
	cancelled, rounds := 0, 20
	if missing.Full() {
		rounds = 50
	}
	// On a busy machine an operation may always be over before its context is.
	end := time.Now().Add(time.Minute)
	for i := 0; i < rounds || cancelled == 0 && time.Now().Before(end); i++ {
		for name := range ops(bg, s, ref) {
			ctx, cancel := context.WithCancel(bg)
			done := make(chan struct{})
			go func() {
				defer close(done)
				wait := time.Duration(rand.IntN(1500)) * time.Microsecond
				for end := time.Now().Add(wait); time.Now().Before(end); {
				}
				cancel()
			}()
			err := ops(ctx, s, ref)[name]()
			wantNoWriteLock(t, other, fmt.Sprintf("%s %d (%v)", name, i, err))
			<-done
			if errors.Is(err, sqlite3.INTERRUPT) {
				require.ErrorIs(t, err, context.Canceled, name)
			}
			if errors.Is(err, context.Canceled) {
				cancelled++
			}
			if i%5 == 0 { // the next ones have something to do
				run(t, other,
					`DELETE FROM scheduler_jobs;
					DELETE FROM scheduler_runs;
					DELETE FROM scheduler_requests`)
				ref = acquire(t, s)
				seed(t, other, ref)
			}
		}
	}
	t.Logf("%d were cancelled under way", cancelled)
	require.Positive(t, cancelled)
	// The store works after all that.
	ref = acquire(t, s)
	beat(t, s, ref)
}

func TestAnOperationThatFailsInTheMiddleIsRolledBack(t *testing.T) {
	missing.Long(t, "makes 30 databases")
	t.Parallel()
	for how, raise := range map[string]string{"the statement fails": "RAISE(ABORT, 'sabotage')",
		"SQLite rolls back itself": "RAISE(ROLLBACK, 'sabotage')"} {
		for _, tc := range []struct{ op, when string }{
			{"acquire", "BEFORE INSERT ON scheduler_terms"},
			{"release", "BEFORE UPDATE OF ended_at ON scheduler_terms"},
			{"heartbeat", "AFTER UPDATE OF heartbeat_at ON scheduler_lock"},
			{"decide", "BEFORE INSERT ON scheduler_runs WHEN NEW.status = 'in_progress'"},
			{"finish", "BEFORE UPDATE ON scheduler_jobs"},
			{"abandon", "BEFORE UPDATE ON scheduler_jobs"},
			{"abandon", "BEFORE UPDATE ON scheduler_runs WHEN OLD.id = 4"}, // the second of two
			{"retry", "AFTER UPDATE ON scheduler_runs"},
			{"retry", "BEFORE INSERT ON scheduler_attempts"},
			{"answer", "BEFORE INSERT ON scheduler_runs"},
			{"trigger", "BEFORE INSERT ON scheduler_audit"},
			{"pause", "BEFORE INSERT ON scheduler_audit"},
			{"resume", "BEFORE INSERT ON scheduler_audit"},
			{"reset cursor", "BEFORE INSERT ON scheduler_audit"},
			{"revoke", "BEFORE INSERT ON scheduler_audit"},
		} {
			t.Run(tc.op+" "+tc.when+", "+how, func(t *testing.T) {
				s := newStore(t)
				other := foreign(t, s)
				ref := acquire(t, s)
				seed(t, other, ref)
				op := ops(bg, s, ref)[tc.op]
				if tc.op == "resume" {
					require.NoError(t, ops(bg, s, ref)["pause"]())
				}
				run(t, other, `CREATE TRIGGER sabotage `+tc.when+` BEGIN SELECT `+raise+`; END`)
				before := dump(t, other)
				for range 3 {
					require.ErrorContains(t, op(), "sabotage")
					wantNoWriteLock(t, other, tc.op)
				}
				assert.Equal(t, before, dump(t, other))
				run(t, other, `DROP TRIGGER sabotage`)
				assert.NoError(t, op())
			})
		}
	}
}

func TestAForeignWriterIsReportedInHalfASecond(t *testing.T) {
	missing.Long(t, "waits for a writer")
	t.Parallel()
	each := func(t *testing.T, name string) {
		t.Parallel()
		s := newStore(t)
		ref := acquire(t, s)
		op := ops(bg, s, ref)[name]
		other := foreign(t, s)
		run(t, other, `BEGIN IMMEDIATE`)
		switch name {
		case "look", "jobs", "run", "retries", "inbox":
			assert.NoError(t, op(), "%s only reads", name)
			return
		}
		begin := time.Now()
		err := op()
		took := time.Since(begin)
		assert.ErrorIs(t, err, sqlite3.BUSY, name)
		assert.NotErrorIs(t, err, driver.ErrLost, name)
		assert.ErrorContains(t, err, s.Path(), name)
		assert.Greater(t, took, busyTimeout/2, "%s waits for a while", name)
		assert.Less(t, took, 20*busyTimeout, name)

		begin = time.Now()
		assert.Error(t, ops(lasting(t, 50*time.Millisecond), s, ref)[name](), name)
		assert.Less(t, time.Since(begin), 20*busyTimeout, "%s respects its context", name)
		run(t, other, `ROLLBACK`)
		beat(t, s, ref)
	}
	for name := range ops(bg, nil, driver.Ref{}) {
		t.Run(name, func(t *testing.T) { each(t, name) })
	}
}

func TestAWaitForTheTurnEndsWithTheContext(t *testing.T) {
	s := newStore(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		s.use(bg, func(context.Context, *sql.Conn) error { close(inside); <-leave; return nil })
	})
	<-inside
	ctx, cancel := context.WithCancelCause(bg)
	cancel(errors.New("no patience"))
	_, err := s.Look(ctx)
	assert.ErrorContains(t, err, "no patience")
	close(leave)
	wg.Wait()
}
