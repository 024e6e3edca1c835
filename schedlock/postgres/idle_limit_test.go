package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

func TestATransactionThatGuardsMoreThanTheLockMayBeIdleForItsTimeOutOnly(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	key := namedlock.Key{Kind: namedlock.KindLock, Name: "n"}
	token := driver.NewToken()
	term, _, err := store.Named().Take(ctx, namedlock.Claim{Key: key, Token: token, TTL: time.Hour})
	require.NoError(t, err)
	addTasks(t, store.Queue(), 0, "a", "b")
	_, err = store.Queue().Capture(ctx, "q", token, time.Hour, 2)
	require.NoError(t, err)
	for _, tc := range []struct{ own, want string }{{"0", "90s"}, {"5s", "5s"}} {
		for what, guard := range map[string]func(tx pgx.Tx) error{
			"a named lock": func(tx pgx.Tx) error {
				_, err := store.Named().Fence(ctx, tx,
					namedlock.Ref{Key: key, Token: token, Term: term}, 90*time.Second)
				return err
			},
			"the end of a task": func(tx pgx.Tx) error {
				_, err := store.Queue().DoneTx(ctx, tx, "q", token, 90*time.Second,
					[]string{"a", "b"})
				return err
			},
		} {
			t.Run(what+", "+tc.own, func(t *testing.T) {
				conn := session(t, url)
				exec(t, conn, `SET idle_in_transaction_session_timeout = '`+tc.own+`'`)
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, guard(tx))
				require.Equal(t, tc.want, value[string](t, conn,
					`SHOW idle_in_transaction_session_timeout`))
				require.NoError(t, tx.Rollback(ctx))
			})
		}
	}
}
