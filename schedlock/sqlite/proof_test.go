package sqlite

import (
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
