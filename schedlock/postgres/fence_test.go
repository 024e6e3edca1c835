package postgres_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

// A guarded transaction, of either kind.
type guarded struct {
	tx     any
	exec   func(query string) error
	commit func() error
}

var kinds = map[string]func(t testing.TB, url string, level sql.IsolationLevel) guarded{
	"pgx.Tx": func(t testing.TB, url string, level sql.IsolationLevel) guarded {
		tx := begin(t, url, pgx.TxOptions{IsoLevel: map[sql.IsolationLevel]pgx.TxIsoLevel{
			sql.LevelReadCommitted: pgx.ReadCommitted, sql.LevelRepeatableRead: pgx.RepeatableRead,
			sql.LevelSerializable: pgx.Serializable,
		}[level]})
		return guarded{
			tx:     tx,
			exec:   func(query string) error { _, err := tx.Exec(ctx, query); return err },
			commit: func() error { return tx.Commit(ctx) },
		}
	},
	"*sql.Tx": func(t testing.TB, url string, level sql.IsolationLevel) guarded {
		config, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		db := stdlib.OpenDB(*config)
		t.Cleanup(func() { _ = db.Close() })
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		return guarded{
			tx:     tx,
			exec:   func(query string) error { _, err := tx.ExecContext(ctx, query); return err },
			commit: tx.Commit,
		}
	},
}

func TestFenceInEveryIsolationLevel(t *testing.T) {
	t.Parallel()
	for kind, start := range kinds {
		for _, level := range missing.Some(sql.LevelReadCommitted, sql.LevelRepeatableRead,
			sql.LevelSerializable) {
			t.Run(fmt.Sprint(kind, " ", level), func(t *testing.T) {
				url := migrated(t)
				store := open(t, url)
				ref := acquire(t, store, time.Minute)

				tx := start(t, url, level)
				// takes the snapshot
				require.NoError(t, tx.exec(`SELECT count(*) FROM scheduler_lock`))
				heartbeat(t, store, ref)
				require.NoError(t, store.Fence(ctx, tx.tx, ref))
				heartbeat(t, store, ref)
				_, err := store.Acquire(ctx, claim(look(t, store), time.Minute))
				require.ErrorIs(t, err, driver.ErrBlocked)
				heartbeat(t, store, ref)
				require.NoError(t, tx.exec(`CREATE TABLE work ()`))
				require.NoError(t, tx.commit())

				late := start(t, url, level)
				require.NoError(t, late.exec(`SELECT count(*) FROM scheduler_lock`))
				acquire(t, store, time.Minute)
				require.ErrorIs(t, store.Fence(ctx, late.tx, ref), driver.ErrLost,
					"replaced since the snapshot")
				stale := start(t, url, level)
				require.ErrorIs(t, store.Fence(ctx, stale.tx, ref), driver.ErrLost)
			})
		}
	}
}

// A row lock that was taken after a savepoint goes with the roll-back to it.
func TestAFenceBehindASavepointIsRefused(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	lock, err := named.New(store.Named())
	require.NoError(t, err)
	held, err := lock.Lock(ctx, "x")
	require.NoError(t, err)
	defer held.Unlock(ctx)

	const says = "savepoint: fence the outer transaction"
	t.Run("of pgx", func(t *testing.T) {
		pool, err := pgxpool.New(ctx, url)
		require.NoError(t, err)
		defer pool.Close()
		pooled, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer pooled.Rollback(ctx)
		for _, outer := range []pgx.Tx{begin(t, url, pgx.TxOptions{}), pooled} {
			nested, err := outer.Begin(ctx)
			require.NoError(t, err)
			deeper, err := nested.Begin(ctx)
			require.NoError(t, err)
			for _, tx := range []pgx.Tx{deeper, nested} {
				err = store.Fence(ctx, tx, ref)
				require.ErrorContains(t, err, says)
				require.NotErrorIs(t, err, driver.ErrNoFence,
					"an app that writes without a fence then")
				require.ErrorContains(t, held.Fence(ctx, tx), says)
				require.NoError(t, tx.Rollback(ctx))
			}
			require.ErrorContains(t, store.Fence(ctx, outer, ref), says,
				"the savepoints are still there")
			require.NoError(t, held.Fence(ctx, outer))
			require.NoError(t, outer.Rollback(ctx))
		}
	})
	for kind, start := range kinds {
		t.Run("by hand, "+kind, func(t *testing.T) {
			tx := start(t, url, sql.LevelReadCommitted)
			require.NoError(t, tx.exec(`SAVEPOINT a`))
			require.ErrorContains(t, store.Fence(ctx, tx.tx, ref), says)
			require.NoError(t, tx.exec(`ROLLBACK TO a`))
			require.ErrorContains(t, store.Fence(ctx, tx.tx, ref), says, "it is still there")
			require.NoError(t, tx.exec(`ROLLBACK TO a; RELEASE a`))
			require.NoError(t, store.Fence(ctx, tx.tx, ref))
			require.NoError(t, tx.exec(`SAVEPOINT b`))
			require.NoError(t, store.Fence(ctx, tx.tx, ref), "the outer one holds the lock row")
			require.NoError(t, tx.exec(`ROLLBACK TO b`))
			heartbeat(t, store, ref)
			require.NoError(t, store.Fence(ctx, tx.tx, ref))
			_, err := store.Acquire(ctx, claim(look(t, store), time.Minute))
			require.ErrorIs(t, err, driver.ErrBlocked)
			require.NoError(t, tx.commit())
		})
	}
}

// Others that hold the row too, and heartbeats, hide nothing and spoil nothing.
func TestManyFencesAtOnceAreAllGranted(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	var all []guarded
	for range 3 {
		for _, start := range kinds {
			tx := start(t, url, sql.LevelReadCommitted)
			require.NoError(t, store.Fence(ctx, tx.tx, ref))
			heartbeat(t, store, ref)
			all = append(all, tx)
		}
	}
	for _, tx := range all {
		require.NoError(t, store.Fence(ctx, tx.tx, ref))
		require.NoError(t, tx.commit())
	}
}

// A time-out of the app's own stays if it is shorter.
func TestAFencedTransactionMayBeIdleForTheTTLOnly(t *testing.T) {
	t.Parallel()
	const limit = 90 * time.Second
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	n, q := store.Named(), store.Queue()
	ref, lock := acquire(t, store, limit), takeNamed(t, n, namedClaim(lockA, time.Hour))
	addTasks(t, q, 0, "a")
	token, ids := captureTasks(t, q, time.Hour, 1)
	for what, guard := range map[string]func(tx pgx.Tx) error{
		"the lock": func(tx pgx.Tx) error { return store.Fence(ctx, tx, ref) },
		"a named lock": func(tx pgx.Tx) error {
			_, err := n.Fence(ctx, tx, lock, limit)
			return err
		},
		"the end of a task": func(tx pgx.Tx) error {
			_, err := q.DoneTx(ctx, tx, "q", token, limit, ids)
			return err
		},
	} {
		for own, want := range map[string]string{"0": "90s", "5s": "5s", "1min": "1min",
			"2min": "90s", "1d": "90s", "2500ms": "2500ms"} {
			t.Run(what+", "+own, func(t *testing.T) {
				const sqlLimit = `SHOW idle_in_transaction_session_timeout`
				exec(t, conn, `SET idle_in_transaction_session_timeout = '`+own+`'`)
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, guard(tx))
				require.Equal(t, want, value[string](t, conn, sqlLimit))
				require.NoError(t, tx.Rollback(ctx))
				require.Equal(t, own, value[string](t, conn, sqlLimit))
			})
		}
	}
}

func TestNoFenceForWhatIsNotOnTheDatabaseOfTheLock(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store := open(t, url)
	ref := acquire(t, store, time.Minute)
	elsewhere := pgtest.Shared(t).Database(t)
	lock := takeNamed(t, store.Named(), namedClaim(lockA, time.Minute))
	for kind, start := range kinds {
		tx := start(t, elsewhere, sql.LevelReadCommitted).tx
		require.ErrorIs(t, store.Fence(ctx, tx, ref), driver.ErrNoFence, kind)
		tx = start(t, elsewhere, sql.LevelReadCommitted).tx
		_, err := store.Named().Fence(ctx, tx, lock, time.Minute)
		require.ErrorIs(t, err, driver.ErrNoFence, kind)
	}
	for _, tx := range []any{"a string", nil, 1} {
		require.ErrorIs(t, store.Fence(ctx, tx, ref), driver.ErrNoFence)
	}
}
