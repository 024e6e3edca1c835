package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// A role, a database or a server may have a stricter isolation for its default
// than READ COMMITTED, which the statements are written for.

// forEachIsolation runs a test as a role that has such a default, on a direct
// connection and through a pooler. direct is the URL of a superuser.
func forEachIsolation(t *testing.T, test func(t *testing.T, direct, url, role string)) {
	server := pgtest.Shared(t)
	pooler := pgtest.PgBouncer(t, server)
	for i, level := range []string{"repeatable read", "serializable"} {
		for _, pooled := range []bool{false, true} {
			if pooled != (i == 0) && !missing.Full() {
				continue
			}
			t.Run(fmt.Sprintf("%s, through a pooler: %v", level, pooled), func(t *testing.T) {
				direct := migrated(t)
				role := newRole(t, direct, "SUPERUSER")
				exec(t, session(t, direct),
					fmt.Sprintf(`ALTER ROLE %s SET default_transaction_isolation = '%s'`, role,
						level))
				url := direct
				if pooled {
					url = pooler.URL(databaseName(t, direct))
				}
				test(t, direct, as(t, url, role), role)
			})
		}
	}
}

func TestMigrationsRunWhateverTheIsolationOfTheRole(t *testing.T) {
	t.Parallel()
	forEachIsolation(t, func(t *testing.T, direct, url, _ string) {
		exec(t, session(t, direct), `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				store, err := postgres.Opener(url, silent).Open(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				_ = store.Close()
			})
		}
		wg.Wait()
	})
}

// The server may find only as it commits that it cannot.
func TestACommitThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	direct := migrated(t)
	store := open(t, direct)
	ref := acquire(t, store, time.Minute)
	_, _, err := store.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick})
	require.NoError(t, err)
	_, err = store.Pause(ctx, ledger.Action{Job: "j", By: "me"})
	require.NoError(t, err)
	conn := session(t, direct)
	exec(t, conn, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'no commit'; END $$`)
	for _, table := range []string{"scheduler_lock", "scheduler_pauses", "queue_tasks"} {
		exec(t, conn, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON `+table+
			` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	}
	for name, url := range map[string]string{"direct": direct,
		"through a pooler": pgtest.PgBouncer(t, server).URL(databaseName(t, direct))} {
		t.Run(name, func(t *testing.T) {
			store := open(t, url)
			for what, f := range map[string]func() error{
				"a row": func() error {
					_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
					return err
				},
				"rows": func() error {
					_, err := store.Queue().Add(ctx, "q", 1, []string{"a"})
					return err
				},
				"a number": func() error { _, err := store.Resume(ctx, "j", "me"); return err },
			} {
				for range 3 {
					require.ErrorContains(t, f(), "no commit", what)
				}
				require.NotNil(t, look(t, store).Row)
			}
		})
	}
}

// Whoever asks for the time with a stricter isolation is refused.
func TestEveryStatementRunsAtReadCommittedWhateverTheIsolationOfTheRole(t *testing.T) {
	t.Parallel()
	forEachIsolation(t, func(t *testing.T, direct, url, role string) {
		// the very first term is serializable
		release(t, open(t, direct), acquire(t, open(t, direct), time.Minute))
		shadow(t, direct, "strict", `
			IF current_setting('transaction_isolation') <> 'read committed' THEN
				RAISE EXCEPTION 'it runs at %', current_setting('transaction_isolation');
			END IF;
			IF current_setting('jit') <> 'off' THEN
				RAISE EXCEPTION 'its plan may be compiled';
			END IF;`)
		exec(t, session(t, direct),
			fmt.Sprintf(`ALTER ROLE %s SET search_path = strict, public, pg_catalog`, role))
		store := open(t, url)
		_, err := store.Pool().Exec(ctx, `SELECT clock_timestamp()`) // sent by an app, not by us
		if store.Pooled() {
			require.ErrorContains(t, err, "it runs at")
		}
		free := acquire(t, store, time.Minute)
		over := acquire(t, store, time.Minute)
		require.Greater(t, over.Term, free.Term)
		heartbeat(t, store, over)
		_, err = store.Revoke(ctx, over.Term, "me", "")
		require.NoError(t, err)
		release(t, store, over)
		ref := acquire(t, store, time.Minute)
		one := func(what string, f func() error) { require.NoError(t, f(), what) }
		oneRoundTripEach(t, store, ref, "j", one)
		_, err = store.Pause(ctx, ledger.Action{Job: "j", By: "me"})
		require.NoError(t, err)
		_, err = store.Resume(ctx, "j", "me")
		require.NoError(t, err)
		_, err = store.Abandon(ctx, ref, nil)
		require.NoError(t, err)
		for range 2 { // of a free key, and again
			everyNamedCall(t, store.Named(), one)
		}
		everyCall(t, store.Queue(), one)
	})
}
