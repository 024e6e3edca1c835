package bans

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/schedlock/internal/child"
)

func TestMain(m *testing.M) {
	child.InMemory()
	goleak.VerifyTestMain(m)
}

var t0 = time.Date(2026, 11, 21, 9, 50, 46, 123456789, time.UTC)

func openSQLite(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func newStore(t testing.TB) *Store {
	t.Helper()
	s := NewStore(openSQLite(t, filepath.Join(t.TempDir(), "app.db")), SQLite)
	require.NoError(t, s.Migrate(t.Context()))
	return s
}

func count(t testing.TB, s *Store) int {
	t.Helper()
	n, err := s.Count(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return n
}

// folder returns a folder of block lists, given as name, content, name, content.
func folder(files ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		fsys[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return fsys
}

// addresses returns a list of n different addresses.
func addresses(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "2001:db8::%x:%x\n", i>>16, i&0xffff)
	}
	return b.String()
}

func TestMigrateOnACurrentTableDoesNotWaitForAWriter(t *testing.T) {
	s := newStore(t)
	tx, err := s.db.BeginTx(t.Context(), SQLite.txOpts)
	require.NoError(t, err)
	defer tx.Rollback()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // shorter than the busy timeout
	defer cancel()
	assert.NoError(t, s.Migrate(ctx))
}

type sqlStateError string

func (e sqlStateError) Error() string    { return string(e) }
func (e sqlStateError) SQLState() string { return string(e) }

func TestMigrateRetriesOnlyALostRace(t *testing.T) {
	for state, want := range map[string]bool{
		"23505": true, "42P07": true, "42710": true, "40001": true, "40P01": true,
		"42501": false, "53100": false,
	} {
		assert.Equal(t, want, lostRace(fmt.Errorf("wrapped: %w", sqlStateError(state))), state)
	}
	assert.False(t, lostRace(errors.New("other")))

	path := filepath.Join(t.TempDir(), "app.db")
	blocker := openSQLite(t, path)
	tx, err := blocker.BeginTx(t.Context(), SQLite.txOpts)
	require.NoError(t, err)
	defer tx.Rollback()
	db, err := sql.Open("sqlite3", "file:"+path+"?_pragma=busy_timeout(0)")
	require.NoError(t, err)
	defer db.Close()
	busy := NewStore(db, SQLite).migrate(t.Context())
	require.Error(t, busy)
	assert.True(t, lostRace(busy), "%v", busy)

	release := time.AfterFunc(50*time.Millisecond, func() { tx.Rollback() })
	defer release.Stop()
	assert.NoError(t, NewStore(db, SQLite).Migrate(t.Context()))
}

func TestTimesAreStoredAsReadableText(t *testing.T) {
	s := newStore(t)
	_, err := s.Import(t.Context(), folder("a.txt", "192.0.2.1"), nil,
		t0.In(time.FixedZone("", 3600)))
	require.NoError(t, err)
	var first, last, expires string
	require.NoError(t, s.db.QueryRowContext(t.Context(),
		"SELECT first_seen, last_seen, expires_at FROM bans").Scan(&first, &last, &expires))
	assert.Equal(t, "2026-11-21T09:50:46.123456Z", first)
	assert.Equal(t, "2026-11-21T09:50:46.123456Z", last)
	assert.Equal(t, "2026-11-28T09:50:46.123456Z", expires)

	assert.Equal(t, "2026-11-21T09:50:46.000000Z", SQLite.timeArg(t0.Truncate(time.Second)),
		"of fixed width")
}

// A transaction that database/sql has rolled back because ctx ended fails with
// sql.ErrTxDone, which tells nobody why.
func TestWriteUnderAnEndedContextSaysSo(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := s.write(ctx, nil, func(tx *sql.Tx) error {
		cancel()
		require.Eventually(t, func() bool {
			_, err := tx.ExecContext(t.Context(), "SELECT 1")
			return errors.Is(err, sql.ErrTxDone)
		}, 10*time.Second, time.Millisecond)
		return nil
	})
	assert.ErrorIs(t, err, sql.ErrTxDone)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestLatestListsTheNewestFirst(t *testing.T) {
	s := newStore(t)
	first := t0.Truncate(time.Microsecond)
	second := first.Add(time.Second)
	_, err := s.Import(t.Context(), folder("a.txt", "192.0.2.2\n192.0.2.1"), nil, first)
	require.NoError(t, err)
	_, err = s.Import(t.Context(), folder("b.txt", "192.0.2.2\n198.51.100.0/24"), nil, second)
	require.NoError(t, err)

	all := []Ban{
		{netip.MustParsePrefix("198.51.100.0/24"), "b.txt", second, second,
			second.Add(BanDuration)},
		{netip.MustParsePrefix("192.0.2.1/32"), "a.txt", first, first,
			first.Add(BanDuration)},
		{netip.MustParsePrefix("192.0.2.2/32"), "b.txt", first, second,
			second.Add(BanDuration)},
	}
	for limit, want := range map[int][]Ban{-1: nil, 0: nil, 2: all[:2], 100: all} {
		got, err := s.Latest(t.Context(), limit)
		require.NoError(t, err)
		assert.Equal(t, want, got, "limit %d", limit)
	}
	assert.Equal(t, 3, count(t, s))
}

func TestExpireDeletesInFencedBatches(t *testing.T) {
	s := newStore(t)
	_, err := s.Import(t.Context(), folder("a.txt", addresses(2500)), nil, t0)
	require.NoError(t, err)
	_, err = s.Import(t.Context(), folder("b.txt", "192.0.2.1"), nil, t0.Add(time.Hour))
	require.NoError(t, err)

	over := t0.Add(BanDuration)
	n, err := s.Expire(t.Context(), over.Add(-time.Microsecond), nil)
	require.NoError(t, err)
	assert.Zero(t, n, "not yet")

	lost := errors.New("lost")
	f := &countingFence{failAt: 2, err: lost}
	n, err = s.Expire(t.Context(), over, f.fence)
	assert.ErrorIs(t, err, lost)
	assert.Equal(t, 1000, n)
	assert.Equal(t, 1501, count(t, s))

	f = &countingFence{}
	n, err = s.Expire(t.Context(), over, f.fence)
	require.NoError(t, err)
	assert.Equal(t, 1500, n)
	assert.Equal(t, 2, f.calls)
	assert.Equal(t, 1, count(t, s), "the ban that lasts longer")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err = s.Expire(ctx, over.Add(time.Hour), nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, n)
	assert.Equal(t, 1, count(t, s))
}
