package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
)

// needsPassword lets a role in with its password only.
func needsPassword(t testing.TB, databaseURL, role string) {
	path := filepath.Join(pgtest.Shared(t).Dir(), "data", "pg_hba.conf")
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	line := fmt.Sprintf("host all %s 127.0.0.1/32 scram-sha-256\n", role)
	require.NoError(t, os.WriteFile(path, append([]byte(line), before...), 0o600))
	exec(t, session(t, databaseURL), `SELECT pg_reload_conf()`)
}

func TestWhatOnlyAnOperatorCanMendSaysSoAndHow(t *testing.T) {
	t.Parallel()
	const secret = "open-sesame"
	url := migrated(t)
	role := newRole(t, url, "PASSWORD 'right'")
	needsPassword(t, url, role)
	withSecret := strings.Replace(as(t, url, role), role+"@", role+":"+secret+"@", 1)
	empty := pgtest.Shared(t).Database(t)
	for _, tc := range []struct{ name, url, advice string }{
		{"wrong password", withSecret, "password of role"},
		{"missing database", strings.Replace(url, databaseName(t, url), "nowhere", 1),
			"create the database"},
		{"missing tables", empty, "run the migrations"},
		{"missing schema", as(t, url, "postgres", "search_path", "nowhere"), "search_path"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var err error
			// The server reads pg_hba.conf again a little later.
			eventually(t, "the error", func() bool {
				var store *postgres.Store
				if store, err = postgres.Open(ctx, tc.url, silent); err == nil {
					err = store.Check(ctx)
					require.NoError(t, store.Close())
				}
				return err != nil
			})
			require.ErrorIs(t, err, driver.ErrPermanent)
			require.ErrorContains(t, err, fmt.Sprintf("database %q", databaseName(t, tc.url)))
			require.ErrorContains(t, err, tc.advice)
			require.NotContains(t, err.Error(), secret)
		})
	}
	_, err := postgres.Opener(as(t, empty, "postgres", "search_path", "nowhere"), silent)(ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "search_path", "migrations into a missing schema")
}

func TestErrorsThatTimeMayMend(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := open(t, as(t, url, "postgres", "search_path", "shadow,pg_catalog,public"))
	ref := acquire(t, store, time.Minute)
	for _, tc := range []struct {
		code      string
		permanent bool
		damaged   bool
		advice    string
	}{
		{code: "40001"}, {code: "40P01"}, {code: "55P03"}, {code: "53100"}, {code: "57014"},
		{code: "58030"}, {code: "XX000"},
		{code: "42501", permanent: true, advice: "GRANT what role"},
		{code: "42P01", permanent: true, advice: "run the migrations"},
		{code: "XX001", damaged: true}, {code: "XX002", damaged: true},
	} {
		t.Run(tc.code, func(t *testing.T) {
			// The lock's statements call clock_timestamp, and find this one first.
			exec(t, conn, fmt.Sprintf(`CREATE SCHEMA shadow;
				CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
				BEGIN RAISE EXCEPTION 'raised' USING ERRCODE = '%s'; END $$`, tc.code))
			_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
			_, lookErr := store.Look(ctx)
			for _, err := range []error{err, lookErr} {
				require.ErrorContains(t, err, tc.code)
				require.ErrorContains(t, err, tc.advice)
				require.ErrorContains(t, err, databaseName(t, url))
				require.Equal(t, tc.permanent, errors.Is(err, driver.ErrPermanent), err)
				require.Equal(t, tc.damaged, errors.Is(err, driver.ErrCorrupt), err)
				require.NotErrorIs(t, err, driver.ErrLost)
			}
			exec(t, conn, `DROP SCHEMA shadow CASCADE`)
			heartbeat(t, store, ref)
		})
	}
}

func TestTooManyConnectionsPass(t *testing.T) {
	t.Parallel()
	admin, role, url := granted(t)
	exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT 1`, role))
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	_, err := store.Terms(ctx, 1) // wants a second one
	require.ErrorContains(t, err, "53300")
	require.NotErrorIs(t, err, driver.ErrPermanent)
	heartbeat(t, store, ref)
	exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT 2`, role))
	_, err = store.Terms(ctx, 1)
	require.NoError(t, err)
}

func TestAReadOnlyServerIsLeftForAnother(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	decide := func() error { // on a session of the ledger, which is given up, too
		_, _, err := store.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick,
			Start: tick})
		return err
	}
	exec(t, conn, `ALTER DATABASE `+databaseName(t, url)+` SET default_transaction_read_only = on`)
	require.ErrorContains(t, decide(), "read-only")
	exec(t, conn, sqlTerminate)
	_, err := store.Heartbeat(ctx, ref, driver.StateLeading)
	require.Error(t, err) // of the session that was ended
	_, err = store.Heartbeat(ctx, ref, driver.StateLeading)
	require.ErrorContains(t, err, "read-only")
	require.NotErrorIs(t, err, driver.ErrPermanent)
	require.NotErrorIs(t, err, driver.ErrLost)
	eventually(t, "the session is dropped", func() bool {
		return value[int](t, conn, sqlBackends) == 0
	})
	exec(t, conn, `SET default_transaction_read_only = off`)
	exec(t, conn, `ALTER DATABASE `+databaseName(t, url)+` RESET default_transaction_read_only`)
	heartbeat(t, store, ref)
	require.NoError(t, decide())
}

// It says nothing about the server to which the store's own sessions lead.
func TestAReadOnlyTransactionOfTheCallerEndsNoSessionOfTheStore(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := session(t, url)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	_, err := store.Pending(ctx)
	require.NoError(t, err)
	const sqlPIDs = `SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`
	own := value[[]int32](t, conn, sqlPIDs)
	for name, use := range map[string]func(tx pgx.Tx) error{
		"fence": func(tx pgx.Tx) error { return store.Fence(ctx, tx, ref) },
		"named fence": func(tx pgx.Tx) error {
			_, err := store.Named().Fence(ctx, tx, namedlock.Ref{Key: namedlock.Key{
				Kind: namedlock.KindLock, Name: "n"}, Term: 1}, time.Minute)
			return err
		},
		"AddTx": func(tx pgx.Tx) error {
			_, err := store.Queue().AddTx(ctx, tx, "q", 0, []string{"a"})
			return err
		},
	} {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		require.NoError(t, err)
		require.ErrorContains(t, use(tx), "the caller's transaction is read-only", name)
		require.NoError(t, tx.Rollback(ctx))
		require.Equal(t, own, value[[]int32](t, conn, sqlPIDs), name)
	}
}

func TestAServerThatRefusesUsIsNotHammered(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	var attempts atomic.Int64
	port := servertest.Listen(t, func(client net.Conn) {
		defer client.Close()
		attempts.Add(1)
		backend := pgproto3.NewBackend(client, client)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01",
			Message: "password authentication failed"})
		_ = backend.Flush()
	}).Port
	// It had a connection, and lost it.
	moved := false
	store := configured(t, url, func(config *pgxpool.Config) {
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if moved {
				c.Port = uint16(port)
			}
			return nil
		}
	})
	moved = true
	exec(t, session(t, url), sqlTerminate)
	_, err := store.Look(ctx)
	require.Error(t, err)
	began := time.Now()
	for time.Since(began) < 3*time.Second {
		_, err := store.Look(ctx)
		require.ErrorIs(t, err, driver.ErrPermanent)
		time.Sleep(10 * time.Millisecond)
	}
	require.LessOrEqual(t, attempts.Load(), int64(4))
	require.GreaterOrEqual(t, attempts.Load(), int64(2), "it asks again")
}
