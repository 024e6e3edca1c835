package sqlite

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/driver"
)

// unreleased is a store whose release has failed, because another program held
// the database, which it does not any more.
func unreleased(t *testing.T) (*Store, driver.Ref) {
	t.Helper()
	missing.Long(t, "waits for a writer")
	s := newStore(t)
	needProof(t, s)
	ref := acquire(t, s)
	writer := foreign(t, s)
	run(t, writer, `BEGIN IMMEDIATE`)
	_, err := s.Release(bg, ref, driver.EndReleased)
	require.Error(t, err)
	run(t, writer, `ROLLBACK`)
	return s, ref
}

// leadsSoon fails unless a replica on the store leads long before the TTL.
func leadsSoon(t *testing.T, s *Store) {
	t.Helper()
	lease, err := newLock(t, s).Wait(lasting(t, 20*time.Second))
	require.NoError(t, err, "the TTL decides")
	require.NoError(t, lease.Release(bg))
}

func TestWhatAFailedReleaseHasLeftDelaysNoLaterStart(t *testing.T) {
	t.Parallel()
	t.Run("the store is opened anew", func(t *testing.T) {
		t.Parallel()
		s, _ := unreleased(t)
		require.NoError(t, s.Close())
		leadsSoon(t, mustOpen(t, s.Path()))
	})
	t.Run("the store campaigns anew", func(t *testing.T) {
		t.Parallel()
		s, _ := unreleased(t)
		leadsSoon(t, s)
	})
	t.Run("the row has gone", func(t *testing.T) {
		t.Parallel()
		s, _ := unreleased(t)
		run(t, foreign(t, s), `DELETE FROM scheduler_lock`)
		look(t, s)
		leadsSoon(t, mustOpen(t, s.Path()))
	})
	t.Run("the row is another's", func(t *testing.T) {
		t.Parallel()
		s, first := unreleased(t)
		next := mustOpen(t, s.Path())
		ref := acquire(t, next)
		look(t, s)
		release(t, next, ref)
		assert.False(t, s.heldFile(first.Token).Valid, "it has seen that its row is another's")
		leadsSoon(t, mustOpen(t, s.Path()))
	})
	t.Run("the release is repeated", func(t *testing.T) {
		t.Parallel()
		s, ref := unreleased(t)
		assert.Equal(t, driver.SignAlive, look(t, mustOpen(t, s.Path())).Sign,
			"until then nobody says that it has died")
		release(t, s, ref)
		leadsSoon(t, mustOpen(t, s.Path()))
	})
}

func TestAStoreThatIsClosedKeepsTheByteOfALeaseThatLasts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	needProof(t, s)
	acquire(t, s)
	require.NoError(t, s.Close())
	assert.Equal(t, driver.SignAlive, look(t, mustOpen(t, s.Path())).Sign)
}

// atCommit calls do before each commit of a store's connection, which is rolled back
// if do returns false.
func atCommit(t *testing.T, s *Store, do func() bool) {
	t.Helper()
	require.NoError(t, s.use(bg, func(_ context.Context, conn *sql.Conn) error {
		return conn.Raw(func(c any) error {
			c.(rawConn).Raw().CommitHook(do)
			return nil
		})
	}))
}

func TestAFailedCommitOfAnAcquisitionLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T, opts ...Option) *Store {
		s := newStore(t, opts...)
		view := look(t, s)
		atCommit(t, s, func() bool { return false })
		_, err := s.Acquire(bg, claimOf(view))
		require.Error(t, err)
		return s
	}
	t.Run("the store looks", func(t *testing.T) {
		s := failed(t)
		look(t, s)
		assert.Empty(t, s.bytes)
		assert.Empty(t, s.tenures)
	})
	t.Run("no proof", func(t *testing.T) {
		s := failed(t, WithoutProofOfDeath())
		look(t, s)
		assert.Empty(t, s.tenures)
	})
	t.Run("the store is closed meanwhile", func(t *testing.T) {
		path := newStore(t).Path()
		for range 20 {
			s := mustOpen(t, path)
			needProof(t, s)
			view, closed := look(t, s), make(chan error)
			atCommit(t, s, func() bool {
				go func() { closed <- s.Close() }()
				<-s.closed
				return false
			})
			_, err := s.Acquire(bg, claimOf(view))
			require.Error(t, err)
			require.NoError(t, <-closed)
			require.NotEqual(t, driver.SignAlive, look(t, mustOpen(t, s.Path())).Sign)
		}
	})
	t.Run("the store is closed", func(t *testing.T) {
		s := failed(t)
		needProof(t, s)
		next := mustOpen(t, s.Path())
		require.Equal(t, driver.SignAlive, look(t, next).Sign, "it may have been committed")
		require.NoError(t, s.Close())
		assert.NotEqual(t, driver.SignAlive, look(t, next).Sign)
	})
}

func TestAStoreThatIsClosedKeepsTheByteOfAnAcquisitionThatReturns(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	needProof(t, s)
	view := look(t, s)
	closed := make(chan error)
	atCommit(t, s, func() bool {
		go func() { closed <- s.Close() }()
		<-s.closed
		return true
	})
	_, err := s.Acquire(bg, claimOf(view))
	require.NoError(t, err)
	require.NoError(t, <-closed)
	assert.Equal(t, driver.SignAlive, look(t, mustOpen(t, s.Path())).Sign)
}

// A closing is a context of a call that comes as a store is closed.
type closing struct {
	context.Context
	s *Store
}

func (c closing) Done() <-chan struct{} {
	_ = c.s.Close()
	return nil
}

func TestACallThatComesAsTheStoreIsClosedTakesNoConnection(t *testing.T) {
	db := appPool(t, "file:"+unused(t)+"?_pragma=busy_timeout(500)&_txlock=immediate")
	for range 30 { // it took one each second time
		s := storeOn(t, db)
		err := s.use(closing{bg, s}, func(context.Context, *sql.Conn) error { return nil })
		require.ErrorContains(t, err, "was closed")
		require.Zero(t, db.Stats().InUse)
	}
}

// losing is a store whose next commit is applied and answered with an error.
func losing(t *testing.T, path string) (s *Store, lose *atomic.Bool) {
	t.Helper()
	lose = new(atomic.Bool)
	db, err := sqlite3driver.Open("file:"+path+"?_pragma=busy_timeout(500)",
		func(c *sqlite3.Conn) error {
			// The commit stands, whatever the hook returns.
			c.WALHook(func(*sqlite3.Conn, string, int) error {
				if lose.CompareAndSwap(true, false) {
					return sqlite3.IOERR
				}
				return nil
			})
			return nil
		})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return storeOn(t, db), lose
}

func TestALeaderWhoseAcquisitionWasNeverAnsweredKeepsItsByte(t *testing.T) {
	missing.Long(t, "waits for what does not happen")
	t.Parallel()
	for name, sql := range map[string]string{
		"the row is deleted": `DELETE FROM scheduler_lock`,
		"its token is edited": `UPDATE scheduler_lock SET token = '` +
			driver.NewToken().String() + `'`,
	} {
		t.Run(name, func(t *testing.T) {
			other := newStore(t)
			needProof(t, other)
			s, lose := losing(t, other.Path())
			lock := newLock(t, s)
			lose.Store(true)
			lease, err := lock.Acquire(bg)
			require.NoError(t, err)
			require.False(t, lose.Load(), "the answer to the commit was lost")
			t.Cleanup(func() { require.NoError(t, lease.Release(bg)) })

			run(t, foreign(t, other), sql)
			look(t, s) // as a page does that shows the lock
			require.NoError(t, lock.IsLeader(bg), "it learns of it at its next heartbeat")
			assert.NotEqual(t, driver.SignDead, look(t, other).Sign)
			rival := newLock(t, other)
			_, err = rival.Acquire(lasting(t, 200*time.Millisecond))
			require.Error(t, err, "two leaders")
			require.NoError(t, rival.Stop(bg))
		})
	}
}
