package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

const (
	normal = 1
	full   = 2
)

func synchronous(t testing.TB, conn *sql.Conn) int {
	t.Helper()
	return ask[int](t, conn, `PRAGMA synchronous`)
}

// flushes is what the last call has left on the connection of a store.
func flushes(t testing.TB, s *Store) (level int) {
	t.Helper()
	require.NoError(t, s.use(bg, func(_ context.Context, conn *sql.Conn) error {
		level = synchronous(t, conn)
		return nil
	}))
	return level
}

// Whatever comes between, a heartbeat and a release are not flushed, and everything else is.
func TestOnlyHeartbeatsAndReleasesAreNotFlushed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	write := func(ctx context.Context) error {
		return s.write(ctx, func(context.Context, tx) error {
			assert.Equal(t, full, synchronous(t, s.conn))
			return nil
		})
	}
	beat := func() {
		t.Helper()
		beat(t, s, ref)
		assert.Equal(t, normal, flushes(t, s))
	}
	require.Equal(t, full, flushes(t, s), "after an acquisition")
	beat()
	beat()
	require.NoError(t, write(bg))
	beat()
	gone, cancel := context.WithCancel(bg)
	cancel()
	require.Error(t, write(gone))
	require.NoError(t, write(bg), "after one that failed")
	beat()
	require.NoError(t, s.use(bg, func(context.Context, *sql.Conn) error {
		s.discard()
		return nil
	}))
	require.NoError(t, write(bg), "on another connection")
	release(t, s, ref)
	assert.Equal(t, normal, flushes(t, s))
	acquire(t, s)
	assert.Equal(t, full, flushes(t, s))
}

// A lateContext has ended when it was asked a number of times: SQLite and the
// driver ask it at every place where they can stop.
type lateContext struct {
	context.Context
	left int
}

func (c *lateContext) Done() <-chan struct{} { return nil }

func (c *lateContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// SQLite looks for an interruption every 1,000 steps in the life of a statement:
// one of many transactions is interrupted when it has just begun.
func TestATransactionThatIsInterruptedAnywhereIsRolledBack(t *testing.T) {
	missing.Long(t, "interrupts it often")
	t.Parallel()
	s := newStore(t)
	other := foreign(t, s)
	for range 300 {
		for asked := range 10 {
			_ = s.write(&lateContext{bg, asked}, func(context.Context, tx) error { return nil })
			wantNoWriteLock(t, other, "a transaction")
		}
	}
}

// An app that waits for 5 s must not find a connection that gives up after half a
// second: Use migrates on the pool, and Close gives the connection back. Nor must its
// own writes be less durable than before.
func TestAConnectionIsGivenBackAsItWas(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]int{"normal": normal, "full": full} {
		db := appPool(t, "file:"+filepath.Join(t.TempDir(), "app.db")+
			"?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_pragma=synchronous("+set+")")
		db.SetMaxOpenConns(2)
		store, err := Use(db)(bg)
		require.NoError(t, err)
		s := store.(*Store)
		ref := acquire(t, s)
		beat(t, s, ref)
		s.dropByte(ref.Token)
		require.NoError(t, s.Close())
		for range 2 {
			conn, err := db.Conn(bg)
			require.NoError(t, err)
			defer conn.Close()
			assert.Equal(t, 5000, ask[int](t, conn, `PRAGMA busy_timeout`))
			assert.Equal(t, want, synchronous(t, conn))
		}
	}
}
