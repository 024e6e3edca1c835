package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// rights is all that a role needs that does not own the tables, besides USAGE
// on their schema. docs/databases.md has the same list.
var rights = []struct {
	table      string
	privileges []string
}{
	{"scheduler_lock", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
	{"scheduler_terms", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
	{"scheduler_jobs", []string{"SELECT", "INSERT", "UPDATE"}},
	{"scheduler_runs", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
	{"scheduler_attempts", []string{"SELECT", "INSERT", "DELETE"}},
	{"scheduler_requests", []string{"SELECT", "INSERT", "DELETE"}},
	{"scheduler_pauses", []string{"SELECT", "INSERT", "UPDATE"}},
	{"scheduler_audit", []string{"SELECT", "INSERT", "DELETE"}},
	{"scheduler_replicas", []string{"SELECT"}},
	{"scheduler_lock_schema", []string{"SELECT"}},
}

// granted is a migrated database and a role that has these rights, no more.
func granted(t testing.TB) (admin *pgx.Conn, role, url string) {
	direct := migrated(t)
	admin, role = session(t, direct), newRole(t, direct, "")
	exec(t, admin, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	exec(t, admin, fmt.Sprintf(`GRANT USAGE ON SCHEMA public TO %s`, role))
	for _, r := range rights {
		for _, privilege := range r.privileges {
			exec(t, admin, fmt.Sprintf(`GRANT %s ON %s TO %s`, privilege, r.table, role))
		}
	}
	return admin, role, as(t, direct, role)
}

func opened(t testing.TB, url string) *postgres.Store {
	t.Helper()
	store, err := postgres.Opener(url, silent)(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.(*postgres.Store).Close()) })
	return store.(*postgres.Store)
}

func TestTheDocumentedRightsAreEnoughForEverything(t *testing.T) {
	t.Parallel()
	_, _, url := granted(t)
	store := opened(t, url)

	old := acquire(t, store, time.Minute)
	started := time.Unix(1_800_000_000, 0).UTC()
	_, ok, err := store.Decide(ctx, old, ledger.Decision{Job: "j",
		Spec: "s", To: started, Start: started})
	require.NoError(t, err)
	require.True(t, ok)

	ref := acquire(t, store, time.Minute) // a take-over
	heartbeat(t, store, ref)
	tx, err := session(t, url).Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, store.Fence(ctx, tx, ref))
	require.NoError(t, tx.Commit(ctx))

	abandoned, err := store.Abandon(ctx, ref, func(ledger.Run) time.Time { return started })
	require.NoError(t, err)
	require.Len(t, abandoned, 1)
	again, ok, err := store.Retry(ctx, ref, abandoned[0])
	require.NoError(t, err)
	require.True(t, ok)
	written, err := store.Finish(ctx, again, ledger.End{Status: ledger.Failed, RetryAt: started})
	require.NoError(t, err)
	require.True(t, written)
	owed, err := store.Retries(ctx)
	require.NoError(t, err)
	require.Len(t, owed, 1)
	changed, err := store.GiveUp(ctx, ref, owed[0])
	require.NoError(t, err)
	require.True(t, changed)
	next := started.Add(time.Minute)
	run, ok, err := store.Decide(ctx, ref, ledger.Decision{Job: "j",
		Spec: "s", From: started, To: next, Start: next,
		Skipped: []ledger.Skip{{First: started.Add(time.Second), Last: started.Add(time.Second),
			Count: 1, Reason: ledger.Missed}}})
	require.NoError(t, err)
	require.True(t, ok)
	written, err = store.Finish(ctx, run, ledger.End{Status: ledger.Done})
	require.NoError(t, err)
	require.True(t, written)
	runs, err := store.Runs(ctx, "", 10)
	require.NoError(t, err)
	require.Len(t, runs, 3)
	jobs, err := store.Jobs(ctx)
	require.NoError(t, err)
	require.Len(t, jobs, 1)

	request, err := store.Trigger(ctx, ledger.Action{Job: "j", By: "me"})
	require.NoError(t, err)
	for range 2 { // a new row, and the same again
		_, err = store.Pause(ctx, ledger.Action{Job: "j", By: "me"})
		require.NoError(t, err)
		_, _, err = store.Answer(ctx, ref, request, "")
		require.ErrorIs(t, err, ledger.ErrPaused)
		resumed, err := store.Resume(ctx, "j", "me")
		require.NoError(t, err)
		require.True(t, resumed)
	}
	inbox, err := store.Pending(ctx)
	require.NoError(t, err)
	require.Len(t, inbox.Requests, 1)
	_, ok, err = store.Answer(ctx, ref, request, "")
	require.NoError(t, err)
	require.True(t, ok)
	_, found, err := store.Run(ctx, "j", request.At)
	require.NoError(t, err)
	require.True(t, found)
	pruned, err := store.Prune(ctx, "j", 0, 10)
	require.NoError(t, err)
	require.EqualValues(t, 3, pruned)

	_, err = store.ResetCursor(ctx, ledger.Action{Job: "j", By: "me"})
	require.NoError(t, err)
	_, err = store.Revoke(ctx, ref.Term, "me", "")
	require.NoError(t, err)
	orders, err := store.Audit(ctx, "", 10)
	require.NoError(t, err)
	require.Len(t, orders, 7)
	replicas, err := store.Replicas(ctx)
	require.NoError(t, err)
	require.Empty(t, replicas)

	release(t, store, ref)
	terms, err := store.Terms(ctx, 10)
	require.NoError(t, err)
	require.Len(t, terms, 2)
	release(t, store, acquire(t, store, time.Minute)) // on a free lock
}

func TestOpenerNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	refused := func(t *testing.T, wanted ...string) {
		t.Helper()
		_, err := postgres.Opener(url, silent)(ctx)
		require.ErrorIs(t, err, driver.ErrPermanent)
		for _, text := range append(wanted, databaseName(t, url)) {
			require.ErrorContains(t, err, text)
		}
	}
	for _, r := range rights {
		for _, privilege := range r.privileges {
			t.Run(privilege+" ON "+r.table, func(t *testing.T) {
				exec(t, admin, fmt.Sprintf(`REVOKE %s ON %s FROM %s`, privilege, r.table, role))
				refused(t, "GRANT "+privilege+" ON ", r.table, role)
				exec(t, admin, fmt.Sprintf(`GRANT %s ON %s TO %s`, privilege, r.table, role))
			})
		}
	}
	t.Run("USAGE ON SCHEMA", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`REVOKE USAGE ON SCHEMA public FROM %s`, role))
		refused(t, "GRANT USAGE")
		store := open(t, url)
		err := store.Check(ctx)
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, "GRANT USAGE")
		exec(t, admin, fmt.Sprintf(`GRANT USAGE ON SCHEMA public TO %s`, role))
	})
	opened(t, url)
}

func TestARoleWithTheRightsOfVersion1IsToldAllThatIsMissing(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	exec(t, admin, fmt.Sprintf(`REVOKE ALL ON scheduler_requests, scheduler_pauses FROM %s`, role))
	_, err := postgres.Opener(url, silent)(ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	for _, r := range rights {
		for _, privilege := range r.privileges {
			grant := fmt.Sprintf("GRANT %s ON public.%s TO %s", privilege, r.table, role)
			if r.table == "scheduler_requests" || r.table == "scheduler_pauses" {
				require.ErrorContains(t, err, grant)
			} else {
				require.NotContains(t, err.Error(), grant)
			}
		}
	}
}

func TestARightThatIsTakenAwayLaterIsForAnOperator(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	store := opened(t, url)
	ref := acquire(t, store, time.Minute)
	exec(t, admin, fmt.Sprintf(`REVOKE UPDATE ON scheduler_lock FROM %s`, role))
	_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "GRANT")
	exec(t, admin, fmt.Sprintf(`GRANT UPDATE ON scheduler_lock TO %s`, role))
	heartbeat(t, store, ref)
}
