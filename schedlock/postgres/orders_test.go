package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

var tick = time.Unix(1_800_000_000, 0).UTC()

// What starts an attempt: each is given a job that has ended one run, which is
// owed another attempt.
var starts = map[string]struct {
	prepare func(t *testing.T, s *postgres.Store) (start func(driver.Ref) (bool, error))
	hold    string // locks a row that the statement comes to last
}{
	"Decide": {
		prepare: func(t *testing.T, s *postgres.Store) func(driver.Ref) (bool, error) {
			return func(ref driver.Ref) (bool, error) {
				next := tick.Add(time.Minute)
				_, started, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
					Spec: "s", From: tick, To: next, Start: next})
				return started, err
			}
		},
		hold: `SELECT FROM scheduler_jobs FOR UPDATE`,
	},
	"Retry": {
		prepare: func(t *testing.T, s *postgres.Store) func(driver.Ref) (bool, error) {
			owed, err := s.Retries(ctx)
			require.NoError(t, err)
			return func(ref driver.Ref) (bool, error) {
				_, started, err := s.Retry(ctx, ref, owed[0])
				return started, err
			}
		},
		hold: `SELECT FROM scheduler_runs FOR UPDATE`,
	},
	"Answer": {
		prepare: func(t *testing.T, s *postgres.Store) func(driver.Ref) (bool, error) {
			request, err := s.Trigger(ctx, ledger.Action{Job: "j", By: "me"})
			require.NoError(t, err)
			return func(ref driver.Ref) (bool, error) {
				_, started, err := s.Answer(ctx, ref, request, "")
				return started, err
			}
		},
		hold: `SELECT FROM scheduler_requests FOR UPDATE`,
	},
}

// forEachStart runs a test for each kind of start, each time on emptied tables. The
// store comes to its database by url.
func forEachStart(t *testing.T, direct, url string, test func(t *testing.T,
	s *postgres.Store, ref driver.Ref, hold string, start func(driver.Ref) (bool, error))) {
	for name, kind := range starts {
		t.Run(name, func(t *testing.T) {
			empty(t, session(t, direct))
			s := open(t, url)
			ref := acquire(t, s, time.Minute)
			run, _, err := s.Decide(ctx, ref, ledger.Decision{Job: "j",
				Spec: "s", To: tick, Start: tick})
			require.NoError(t, err)
			_, err = s.Finish(ctx, run, ledger.End{Status: ledger.Failed, RetryAt: tick})
			require.NoError(t, err)
			test(t, s, ref, kind.hold, kind.prepare(t, s))
		})
	}
}

// An answer comes from a goroutine.
type answer struct {
	started bool
	err     error
}

func inBackground(f func() (bool, error)) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		started, err := f()
		c <- answer{started, err}
	}()
	return c
}

// waiting waits until n sessions of the store wait for a lock.
func waiting(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	eventually(t, "sessions that wait", func() bool {
		return n == value[int](t, conn, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'schedlock'
			AND wait_event_type = 'Lock'`)
	})
}

// patient makes schema patient, in whose search_path the statements of a store wait
// for a lock for as long as a starved machine needs.
func patient(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `
		CREATE SCHEMA patient;
		GRANT USAGE ON SCHEMA patient TO PUBLIC;
		CREATE FUNCTION patient.set_config(name text, value text, local boolean)
		RETURNS text LANGUAGE sql AS $$
			SELECT pg_catalog.set_config(name,
				CASE name WHEN 'lock_timeout' THEN '2min' ELSE value END, local) $$`)
}

const patientPath = "patient,pg_catalog,public"

func TestAPauseWaitsForTheStartsThatDoNotSeeIt(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	patient(t, conn)
	slow := as(t, url, "postgres", "search_path", patientPath)
	for _, job := range []string{"j", ""} {
		forEachStart(t, url, slow, func(t *testing.T, s *postgres.Store, ref driver.Ref,
			hold string, start func(driver.Ref) (bool, error)) {
			tx := begin(t, url, pgx.TxOptions{})
			_, err := tx.Exec(ctx, hold)
			require.NoError(t, err)
			starting := inBackground(func() (bool, error) { return start(ref) })
			waiting(t, conn, 1) // it has its snapshot

			pausing := inBackground(func() (bool, error) {
				_, err := s.Pause(ctx, ledger.Action{Job: job, By: "me"})
				return true, err
			})
			waiting(t, conn, 2)
			heartbeat(t, s, ref)
			_, err = s.Pending(ctx)
			require.NoError(t, err)
			require.NoError(t, tx.Rollback(ctx))
			require.Equal(t, answer{true, nil}, <-starting)
			require.Equal(t, answer{true, nil}, <-pausing)
		})
	}
}

func TestAStartWaitsForThePauseThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	patient(t, conn)
	slow := as(t, url, "postgres", "search_path", patientPath)
	exec(t, conn, `
		CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON scheduler_pauses
			FOR EACH ROW EXECUTE FUNCTION gate()`)
	for _, again := range []bool{false, true} {
		forEachStart(t, url, slow, func(t *testing.T, s *postgres.Store, ref driver.Ref,
			hold string, start func(driver.Ref) (bool, error)) {
			if again { // the row is there
				_, err := s.Pause(ctx, ledger.Action{Job: "j", By: "somebody"})
				require.NoError(t, err)
				resumed, err := s.Resume(ctx, "j", "somebody")
				require.NoError(t, err)
				require.True(t, resumed)
			}
			exec(t, conn, `SELECT pg_advisory_lock(1)`)
			pausing := inBackground(func() (bool, error) {
				_, err := s.Pause(ctx, ledger.Action{Job: "j", By: "me"})
				return true, err
			})
			waiting(t, conn, 1)
			starting := inBackground(func() (bool, error) { return start(ref) })
			waiting(t, conn, 2)
			heartbeat(t, s, ref)
			exec(t, conn, `SELECT pg_advisory_unlock(1)`)
			require.Equal(t, answer{true, nil}, <-pausing)
			got := <-starting
			require.False(t, got.started)
			var paused *ledger.PausedError
			require.ErrorAs(t, got.err, &paused)
			require.Equal(t, ledger.Action{Job: "j", By: "me"}, paused.Action)
			require.Equal(t, tick, value[time.Time](t, conn,
				`SELECT cursor_at FROM scheduler_jobs`).UTC())
		})
	}
}

func TestAPauseThatCannotBeWrittenSaysSo(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	tx := begin(t, url, pgx.TxOptions{})
	_, err := tx.Exec(ctx, `LOCK scheduler_pauses IN ROW SHARE MODE`)
	require.NoError(t, err)
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = s.Pause(bounded, ledger.Action{By: "me"})
	require.ErrorContains(t, err, "lock timeout")
	require.NoError(t, tx.Rollback(ctx))
	_, err = s.Pause(ctx, ledger.Action{By: "me"})
	require.NoError(t, err)
}

func TestATakeOverWaitsForAStartAndAStartForATakeOver(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	usual := open(t, url)
	patient(t, conn)
	slow := as(t, url, "postgres", "search_path", patientPath)
	forEachStart(t, url, slow, func(t *testing.T, s *postgres.Store,
		ref driver.Ref, hold string, start func(driver.Ref) (bool, error)) {
		over := begin(t, url, pgx.TxOptions{})
		_, err := over.Exec(ctx, `DELETE FROM scheduler_lock`)
		require.NoError(t, err)
		starting := inBackground(func() (bool, error) { return start(ref) })
		waiting(t, conn, 1)
		require.NoError(t, over.Commit(ctx))
		got := <-starting
		require.False(t, got.started)
		require.ErrorIs(t, got.err, driver.ErrLost)

		ref = acquire(t, s, time.Minute)
		tx := begin(t, url, pgx.TxOptions{})
		_, err = tx.Exec(ctx, hold)
		require.NoError(t, err)
		starting = inBackground(func() (bool, error) { return start(ref) })
		waiting(t, conn, 1)
		_, err = usual.Acquire(ctx, claim(look(t, usual), time.Minute))
		require.ErrorIs(t, err, driver.ErrBlocked)
		require.NoError(t, tx.Rollback(ctx))
		require.Equal(t, answer{true, nil}, <-starting)
	})
}

func TestRequestsOfOneMomentGetTimesOfTheirOwn(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	// The clock stands still, so that every request meets those before it.
	exec(t, conn, `CREATE SCHEMA shadow;
		CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql
		AS $$ SELECT timestamptz '2026-03-01 12:00:00Z' $$`)
	s := open(t, as(t, url, "postgres", "search_path", "shadow,pg_catalog,public"))
	exec(t, conn,
		`INSERT INTO scheduler_jobs VALUES ('j', 's', now(), now()), ('k', 's', now(), now())`)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	exec(t, conn, `INSERT INTO scheduler_runs
		(job, scheduled_at, status, term, pid, hostname, attempt)
		VALUES ('j', $1, 'done', 1, 1, 'h', 1), ('j', $2, 'done', 1, 1, 'h', 1)`,
		noon, noon.Add(3*time.Microsecond))
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		times []time.Time
	)
	const askers, requests = 4, 5
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range askers {
		wg.Go(func() {
			for range requests {
				r, err := s.Trigger(bounded, ledger.Action{Job: "j", By: "me"})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				times = append(times, r.At)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	want := []time.Time{noon.Add(time.Microsecond), noon.Add(2 * time.Microsecond)}
	for i := range askers*requests - 2 {
		want = append(want, noon.Add(time.Duration(4+i)*time.Microsecond))
	}
	require.ElementsMatch(t, want, times)
	other, err := s.Trigger(ctx, ledger.Action{Job: "k", By: "me"})
	require.NoError(t, err)
	require.Equal(t, noon, other.At)
}
