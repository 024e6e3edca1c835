package sqlite

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

var idleFor = flag.Duration("sqlite.idle", 2*time.Second,
	"how long TestTwentyIdleStandbysWriteNothing watches")

const (
	walHeader = 32
	walFrame  = 24 + 4096 // what a commit of one page adds to the -wal file
)

// sizes of the database file and its -wal file.
func sizes(t testing.TB, s *Store) (db, wal int64) {
	t.Helper()
	file, err := os.Stat(s.Path())
	require.NoError(t, err)
	beside, err := os.Stat(s.Path() + "-wal")
	require.NoError(t, err)
	return file.Size(), beside.Size()
}

func heartbeats(t testing.TB, s *Store, ref driver.Ref, n int) {
	t.Helper()
	for range n {
		beat(t, s, ref)
	}
}

// SQLite writes the -wal file from its beginning again whenever it has 1,000
// pages; 10,000 heartbeats, one page each, are more than a day's at the default
// interval. By default 2,400 of them start it from its beginning twice.
func TestADayOfHeartbeatsDoesNotGrowTheFiles(t *testing.T) {
	missing.Long(t, "writes 10,000 heartbeats")
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	first, more := 1200, 1200
	if missing.Full() {
		first, more = 2000, 8000
	}
	heartbeats(t, s, ref, first)
	db, wal := sizes(t, s)
	heartbeats(t, s, ref, more)
	dbAfter, walAfter := sizes(t, s)
	assert.Equal(t, db, dbAfter, "the database file")
	assert.Equal(t, wal, walAfter, "the -wal file")
	assert.Less(t, walAfter, int64(walHeader+1100*walFrame))
	assert.EqualValues(t, first+more, look(t, s).Row.Beat)
}

// While somebody reads one old state of the database, the -wal file cannot be
// written from its beginning: it grows by a page with each heartbeat. When that
// reader has gone the file keeps its size, but grows no more.
func TestAReaderThatNeverEndsGrowsTheWALByAPageABeat(t *testing.T) {
	missing.Long(t, "writes many heartbeats")
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s)
	reader := foreign(t, s)
	run(t, reader, `BEGIN`)
	seen := func() int64 { return ask[int64](t, reader, `SELECT beat FROM scheduler_lock`) }
	require.Zero(t, seen())

	_, before := sizes(t, s)
	begin := time.Now()
	heartbeats(t, s, ref, 1500)
	took := time.Since(begin)
	_, stuck := sizes(t, s)
	assert.EqualValues(t, 1500*walFrame, stuck-before, "one page each")
	assert.Zero(t, seen(), "the reader still reads what it read first")
	t.Logf("%d bytes each, %v each", (stuck-before)/1500, took/1500)

	run(t, reader, `COMMIT`)
	// the last at the end of the file: its commit finds that all can be written back
	heartbeats(t, s, ref, 1)
	_, free := sizes(t, s)
	heartbeats(t, s, ref, 1499)
	_, after := sizes(t, s)
	assert.Equal(t, free, after)
	assert.EqualValues(t, 3000, seen())
}

// What the files look like.
type fileState struct {
	size     int64
	modified time.Time
}

func states(t testing.TB, s *Store) map[string]fileState {
	t.Helper()
	found := map[string]fileState{}
	for _, suffix := range []string{"", "-wal", "-lease"} {
		info, err := os.Stat(s.Path() + suffix)
		require.NoError(t, err)
		found[suffix] = fileState{info.Size(), info.ModTime()}
	}
	return found
}

// Their stores are opened as by 20 processes, each with connections of its own.
// While the leader is silent no file is touched; its heartbeats add what they
// add, a page each, and nothing else is added.
func TestTwentyIdleStandbysWriteNothing(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	s := newStore(t)
	needProof(t, s)
	leader := newLock(t, s, schedlock.WithTTL(driver.MaxTTL),
		schedlock.WithHeartbeatInterval(time.Hour)) // only those below, however slow the machine
	lease, err := leader.Acquire(bg)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, lease.Release(bg))
	}) // when no standby waits for it any more

	looked := make(chan struct{}, 20)
	for range 20 {
		standby := newLock(t, mustOpen(t, s.Path()),
			schedlock.WithObserver(func(e schedlock.Event) {
				if e.Kind == schedlock.EventStandby {
					looked <- struct{}{}
				}
			}))
		done := make(chan error, 1)
		go func() {
			_, err := standby.Wait(t.Context())
			done <- err
		}()
		t.Cleanup(func() { assert.ErrorIs(t, <-done, t.Context().Err()) })
	}
	for range 20 {
		select {
		case <-looked:
		case <-time.After(30 * time.Second):
			t.Fatal("20 standbys have not looked at the lock")
		}
	}

	before := states(t, s)
	time.Sleep(*idleFor) // nothing is waited for: nothing must happen
	assert.Equal(t, before, states(t, s))

	for range 3 {
		require.NoError(t, lease.Heartbeat(bg))
		time.Sleep(*idleFor / 10)
	}
	after := states(t, s)
	assert.Equal(t, before[""], after[""])
	assert.Equal(t, before["-lease"], after["-lease"])
	assert.EqualValues(t, 3*walFrame, after["-wal"].size-before["-wal"].size)
}
