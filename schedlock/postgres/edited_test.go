package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
)

func TestWhatPostgreSQLCannotKeepIsKeptInSomeForm(t *testing.T) {
	t.Parallel()
	store := open(t, migrated(t))
	c := claim(look(t, store), time.Minute)
	c.Hostname = "a\x00b\xffc"
	_, err := store.Acquire(ctx, c)
	require.NoError(t, err)
	require.Equal(t, "a\uFFFDb\uFFFDc", look(t, store).Row.Hostname)
	for _, job := range []string{"a\x00b", "\xff"} { // what comes from a URL
		_, found, err := store.Run(ctx, job, tick)
		require.NoError(t, err)
		require.False(t, found)
		runs, err := store.Runs(ctx, job, 1)
		require.NoError(t, err)
		require.Empty(t, runs)
	}
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
	t.Run("a next term of 0, which is none, lets somebody lead", func(t *testing.T) {
		empty(t, admin)
		release(t, store, acquire(t, store, time.Minute))
		exec(t, admin, `UPDATE scheduler_terms SET next_term = 0`)
		require.NotZero(t, acquire(t, store, time.Minute).Term)
	})
	t.Run("a TTL breaks no fence", func(t *testing.T) {
		empty(t, admin)
		ref := acquire(t, store, time.Minute)
		for ms, want := range map[int64]string{3_000_000_000: "1d", 0: "1d", -5: "1d",
			60_000: "1min"} {
			exec(t, admin, `UPDATE scheduler_lock SET ttl_ms = $1`, ms)
			require.ErrorIs(t, pgx.BeginFunc(ctx, admin, func(tx pgx.Tx) error {
				require.NoError(t, store.Fence(ctx, tx, ref))
				require.Equal(t, want, value[string](t, tx.Conn(),
					`SELECT current_setting('idle_in_transaction_session_timeout')`))
				return context.Canceled
			}), context.Canceled)
		}
	})
}
