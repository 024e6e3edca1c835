package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func TestWhatPostgreSQLCannotKeepIsKeptInSomeForm(t *testing.T) {
	t.Parallel()
	store := open(t, migrated(t))
	c := claim(look(t, store), time.Minute)
	c.Hostname = "a\x00b\xffc"
	grant, err := store.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	require.Equal(t, "a\uFFFDb\uFFFDc", look(t, store).Row.Hostname)

	at := time.Unix(1_800_000_000, 0).UTC()
	run, started, err := store.Decide(ctx, c.Ref, ledger.Decision{Job: "j",
		Spec: "s", To: at, Start: at})
	require.NoError(t, err)
	require.True(t, started)
	written, err := store.Finish(ctx, run, ledger.End{Status: ledger.Failed, Error: "x\x00y\xfe"})
	require.NoError(t, err)
	require.True(t, written)
	runs, err := store.Runs(ctx, "j", 1)
	require.NoError(t, err)
	require.Equal(t, "x\uFFFDy\uFFFD", runs[0].Error)
	jobs, err := store.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, "x\uFFFDy\uFFFD", jobs[0].LastError)
	for _, job := range []string{"a\x00b", "\xff"} { // what comes from a URL
		_, err := store.Trigger(ctx, ledger.Action{Job: job, By: "me"})
		require.ErrorIs(t, err, ledger.ErrNoJob)
		_, err = store.Pause(ctx, ledger.Action{Job: job, By: "me"})
		require.ErrorIs(t, err, ledger.ErrNoJob)
		_, found, err := store.Run(ctx, job, at)
		require.NoError(t, err)
		require.False(t, found)
		runs, err := store.Runs(ctx, job, 1)
		require.NoError(t, err)
		require.Empty(t, runs)
	}
	release(t, store, c.Ref)
}

func TestWhateverAHandWritesCanBeRead(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store, admin := open(t, url), session(t, url)
	for _, edit := range []string{
		`heartbeat_at = 'infinity'`, `heartbeat_at = '-infinity'`, `created_at = 'infinity'`,
		`created_at = '-infinity'`,
		`heartbeat_at = '4000-01-01 BC'`, `heartbeat_at = '294276-12-31'`,
		`ttl_ms = 9223372036854775807`, `ttl_ms = -9223372036854775808`,
		`ttl_ms = 9223372036854775807, heartbeat_at = '-infinity'`,
		`token = ''`, `hostname = '', pid = -1`, `beat = -1`,
	} {
		t.Run(edit, func(t *testing.T) {
			empty(t, admin)
			ref := acquire(t, store, time.Minute)
			exec(t, admin, `UPDATE scheduler_lock SET `+edit)
			info, err := schedlock.GetLockInfo(ctx, store)
			require.NoError(t, err)
			require.Equal(t, ref.Term, info.Term)
			_, err = info.HeartbeatAt.MarshalJSON()
			if edit != `heartbeat_at = '4000-01-01 BC'` && edit != `heartbeat_at = '294276-12-31'` {
				require.NoError(t, err)
			}
			exec(t, admin,
				`UPDATE scheduler_terms
					SET acquired_at = 'infinity', ended_at = '-infinity', end_reason = 'lost'`)
			terms, err := store.Terms(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, 9999, terms[0].AcquiredAt.Year())
			require.False(t, terms[0].Open())
			acquire(t, store, time.Minute)
		})
	}
}
