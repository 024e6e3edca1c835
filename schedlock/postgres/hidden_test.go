package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// secured are the tables whose hidden rows would matter.
var secured = []string{"scheduler_lock", "scheduler_terms", "scheduler_jobs", "scheduler_runs",
	"scheduler_requests", "scheduler_pauses", "scheduler_lock_schema"}

// needsOperator requires an error that says what must be done, on which table
// and for which role.
func needsOperator(t *testing.T, err error, role, table string) {
	t.Helper()
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.NotErrorIs(t, err, driver.ErrLost)
	for _, text := range []string{"row-level security", role, table, "BYPASSRLS",
		"DISABLE ROW LEVEL SECURITY"} {
		require.ErrorContains(t, err, text)
	}
}

// A row that a policy hides must never look like a free lock.
func TestRowsThatAPolicyMayHideAreForAnOperator(t *testing.T) {
	t.Parallel()
	t.Run("direct", func(t *testing.T) {
		admin, role, url := granted(t)
		policies(t, admin, role, url)
	})
	t.Run("PgBouncer", func(t *testing.T) {
		missing.OnlyFull(t, "tries the same through a pooler")
		admin, role, url := granted(t)
		bouncer := pgtest.PgBouncer(t, pgtest.Shared(t))
		policies(t, admin, role, as(t, bouncer.URL(databaseName(t, url)), role))
	})
}

func policies(t *testing.T, admin *pgx.Conn, role, url string) {
	store := opened(t, url)
	ref := acquire(t, store, time.Minute)
	judged := look(t, store)
	for _, table := range secured {
		t.Run(table, func(t *testing.T) {
			exec(t, admin, `ALTER TABLE `+table+` ENABLE ROW LEVEL SECURITY`)
			for name, ask := range map[string]func(*postgres.Store) error{
				"Look": func(s *postgres.Store) error {
					_, err := s.Look(ctx)
					return err
				},
				"LookAtSession": func(s *postgres.Store) error {
					_, err := s.LookAtSession(ctx)
					return err
				},
				"Check": func(s *postgres.Store) error { return s.Check(ctx) },
				"Heartbeat": func(s *postgres.Store) error {
					_, err := s.Heartbeat(ctx, ref, driver.StateLeading)
					return err
				},
				"GetLockInfo": func(s *postgres.Store) error {
					_, err := schedlock.GetLockInfo(ctx, s)
					return err
				},
				"Acquire by a campaign": func(s *postgres.Store) error {
					ctx, cancel := context.WithTimeout(ctx, patience/2)
					defer cancel()
					lease, err := newLock(t, s, time.Minute).Acquire(ctx)
					require.Nil(t, lease)
					return err
				},
			} {
				t.Run(name, func(t *testing.T) { needsOperator(t, ask(store), role, table) })
			}
			t.Run("OpenReader", func(t *testing.T) {
				reader, err := postgres.OpenReader(ctx, url, silent)
				require.NoError(t, err)
				defer reader.Close()
				_, err = reader.Look(ctx)
				needsOperator(t, err, role, table)
			})
			t.Run("Opener", func(t *testing.T) {
				_, err := postgres.Opener(url, silent)(ctx)
				needsOperator(t, err, role, table)
			})
			t.Run("a claim that was under way", func(t *testing.T) {
				for _, view := range []driver.Snapshot{judged, {Incarnation: judged.Incarnation},
					{Incarnation: judged.Incarnation, Newest: judged.Newest}} {
					_, err := store.Acquire(ctx, claim(view, time.Minute))
					if !errors.Is(err, driver.ErrConflict) { // it says so at the next look
						needsOperator(t, err, role, table)
					}
				}
				require.Equal(t, 1, value[int](t, admin, `SELECT count(*) FROM scheduler_terms`))
			})
			t.Run("whom it does not concern", func(t *testing.T) {
				_, err := open(t, as(t, url, "postgres")).Look(ctx)
				require.NoError(t, err)
				exec(t, admin, `ALTER ROLE `+role+` BYPASSRLS`)
				heartbeat(t, store, ref)
				require.NoError(t, store.Check(ctx))
				require.Equal(t, ref.Token, look(t, store).Row.Token)
				exec(t, admin, `ALTER ROLE `+role+` NOBYPASSRLS`)
			})
			exec(t, admin, `ALTER TABLE `+table+` DISABLE ROW LEVEL SECURITY`)
			heartbeat(t, store, ref) // it was mended within the renew deadline
			require.Equal(t, ref.Token, look(t, store).Row.Token)
		})
	}
	t.Run("the owner, by force", func(t *testing.T) {
		exec(t, admin, `GRANT CREATE ON SCHEMA public TO `+role)
		exec(t, admin, `ALTER TABLE scheduler_lock OWNER TO `+role)
		exec(t, admin, `ALTER TABLE scheduler_lock ENABLE ROW LEVEL SECURITY`)
		require.Equal(t, ref.Token, look(t, store).Row.Token)
		exec(t, admin, `ALTER TABLE scheduler_lock FORCE ROW LEVEL SECURITY`)
		_, err := store.Look(ctx)
		needsOperator(t, err, role, "scheduler_lock")
	})
}

// A policy may show rows and refuse to change them.
func TestAHeartbeatThatAPolicyStopsIsNotALostLock(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	store := opened(t, url)
	lock := newLock(t, store, time.Minute)
	lease, err := lock.Acquire(ctx)
	require.NoError(t, err)
	exec(t, admin, `CREATE POLICY shown ON scheduler_lock FOR SELECT USING (true)`)
	exec(t, admin, `ALTER TABLE scheduler_lock ENABLE ROW LEVEL SECURITY`)
	needsOperator(t, lease.Heartbeat(ctx), role, "scheduler_lock")
	require.NoError(t, lease.Err(), "until its renew deadline")
	_, _, err = store.Decide(ctx, lease.Ref(), ledger.Decision{Job: "j",
		Spec: "s", To: tick, Start: tick})
	require.Error(t, err, "nothing starts meanwhile")
	exec(t, admin, `ALTER TABLE scheduler_lock DISABLE ROW LEVEL SECURITY`)
	require.NoError(t, lease.Heartbeat(ctx))
	require.NoError(t, lease.Release(ctx))
}

// Named locks and queues, too, do not judge by rows that they may not see.
func TestHiddenRowsOfLocksAndQueuesAreForAnOperator(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("through a pooler: %v", pooled), func(t *testing.T) {
			if pooled {
				missing.OnlyFull(t, "tries the same through a pooler")
			}
			admin, role, url := granted(t)
			exec(t, admin, `GRANT ALL ON named_locks, named_locks_floor, queue_tasks TO `+role)
			direct := url
			if pooled {
				url = as(t, pgtest.PgBouncer(t, pgtest.Shared(t)).URL(databaseName(t, url)), role)
			}
			store := open(t, url)
			n, q := store.Named(), store.Queue()
			lock := takeNamed(t, n, namedClaim(lockA, time.Minute))
			addTasks(t, q, 1, "a", "b")
			token, ids := captureTasks(t, q, time.Minute, 1)
			ref := acquire(t, store, time.Minute)
			ask := func(table string, f func() error) {
				t.Helper()
				exec(t, admin, `ALTER TABLE `+table+` ENABLE ROW LEVEL SECURITY`)
				err := f()
				require.ErrorIs(t, err, driver.ErrPermanent, table)
				for _, text := range []string{"row-level security", table, "BYPASSRLS"} {
					require.ErrorContains(t, err, text)
				}
				exec(t, admin, `ALTER TABLE `+table+` DISABLE ROW LEVEL SECURITY`)
			}
			for _, table := range []string{"named_locks", "named_locks_floor"} {
				ask(table, func() error {
					_, _, err := n.Take(ctx, namedClaim(lockA, time.Minute))
					return err
				})
				ask(table, func() error { _, err := n.Look(ctx, lockA); return err })
			}
			ask("named_locks", func() error {
				_, err := n.Extend(ctx, lock, time.Minute)
				return err
			})
			ask("named_locks", func() error { _, err := n.Release(ctx, lock, false); return err })
			ask("named_locks", func() error { _, err := n.Clean(ctx, 1); return err })
			for _, start := range kinds {
				ask("named_locks", func() error {
					tx := start(t, direct, sql.LevelReadCommitted)
					defer tx.commit()
					_, err := n.Fence(ctx, tx.tx, lock, time.Minute)
					return err
				})
				ask("scheduler_lock", func() error {
					tx := start(t, direct, sql.LevelReadCommitted)
					defer tx.commit()
					return store.Fence(ctx, tx.tx, ref)
				})
			}
			ask("queue_tasks", func() error {
				_, err := q.Add(ctx, "q", 0, []string{"a"})
				return err
			})
			ask("queue_tasks", func() error {
				_, err := q.Capture(ctx, "q", driver.NewToken(), time.Minute, 1)
				return err
			})
			ask("queue_tasks", func() error { _, err := q.Done(ctx, "q", token, ids); return err })
			ask("queue_tasks", func() error {
				_, err := q.Extend(ctx, "q", token, time.Minute, ids)
				return err
			})
			ask("queue_tasks", func() error {
				_, err := q.Fail(ctx, "q", token, ids[0], "", 0)
				return err
			})
			ask("queue_tasks", func() error {
				_, err := q.Release(ctx, "q", token, ids)
				return err
			})
			ask("queue_tasks", func() error { _, _, err := q.Get(ctx, "q", "a"); return err })
			ask("queue_tasks", func() error { _, err := q.Prune(ctx, "q", 0, 1); return err })
			ours, err := n.Extend(ctx, lock, time.Minute)
			require.NoError(t, err)
			require.True(t, ours, "it was mended in time")
			done, err := q.Done(ctx, "q", token, ids)
			require.NoError(t, err)
			require.Equal(t, ids, done)
		})
	}
}
