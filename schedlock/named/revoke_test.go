package named_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

// The holder hears of it at its next extension, who and why included, and nobody
// has the lock before that.
func TestAHolderLearnsWhoHasRevokedItsLockBeforeAnotherHasIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		locks, store := w.replica(1)
		lock := try(t, locks, "import")
		lock.KeepAlive()
		time.Sleep(time.Minute)

		key := named.Key{Kind: named.KindLock, Name: "import"}
		_, err := locks.Revoke(ctx, key, lock.Term()+1, "ann", "")
		require.ErrorIs(t, err, named.ErrNotHeld)
		_, err = locks.Revoke(ctx, named.Key{Kind: named.KindLock, Name: "free"}, 1, "ann", "")
		require.ErrorIs(t, err, named.ErrNotHeld)
		store.during(only("revoke", errRefused), nil)
		_, err = locks.Revoke(ctx, key, lock.Term(), "ann", "")
		require.ErrorIs(t, err, errRefused)
		store.during(nil, nil)
		for _, by := range []string{"", " \t"} {
			_, err = locks.Revoke(ctx, key, lock.Term(), by, "")
			require.EqualError(t, err, "revoke: it does not say by whom")
		}
		_, err = locks.Revoke(ctx, key, lock.Term(), "ann", "\x1b[2Jit hangs")
		require.ErrorContains(t, err, "control character")
		order, err := locks.Revoke(ctx, key, lock.Term(), " ann ", "it hangs\n")
		require.NoError(t, err)
		require.Equal(t, named.Revocation{By: "ann", Reason: "it hangs"}, order)
		again, err := locks.Revoke(ctx, key, lock.Term(), "bob", "me too")
		require.NoError(t, err)
		require.Equal(t, order, again, "the first order stays")
		_, err = locks.Revoke(ctx, key, lock.Term()+1, "bob", "")
		require.ErrorIs(t, err, named.ErrNotHeld)
		list, err := locks.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, &order, list[0].Revoked)

		next, err := locks.Lock(ctx, "import")
		require.NoError(t, err)
		require.Error(t, lock.Err(), "two hold it")
		require.ErrorIs(t, lock.Err(), driver.ErrLost)
		require.ErrorContains(t, lock.Err(), "it was revoked by ann: it hangs")
		require.NoError(t, next.Unlock(ctx))
		require.ErrorIs(t, lock.Unlock(ctx), driver.ErrLost)
	})
}

// The end of a lock does not wait for the answer to who has revoked it. That completes the
// error which everybody has by then, and is in the log.
func TestWhoHasRevokedALockIsSaidWhenItIsKnown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		locks, store := w.replica(1, named.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		start := at()
		err := locks.WithLock(ctx, "import", func(ctx context.Context, lock *named.Lock) error {
			key := named.Key{Kind: named.KindLock, Name: "import"}
			_, err := locks.Revoke(ctx, key, lock.Term(), "ann", "it hangs")
			assert.NoError(t, err)
			store.during(slow("look", time.Second/2), nil)
			<-ctx.Done()
			cause := context.Cause(ctx)
			assert.Equal(t, ttl/3, at()-start)
			assert.ErrorIs(t, cause, driver.ErrLost)
			assert.ErrorContains(t, cause, "its row has expired, or is another's")
			time.Sleep(time.Second / 2)
			synctest.Wait()
			assert.ErrorIs(t, cause, driver.ErrLost)
			assert.EqualError(t, cause,
				`lock "import" (term 946684800000) is lost: it was revoked by ann: it hangs`)
			return nil
		})
		require.ErrorIs(t, err, driver.ErrLost)
		require.Contains(t, log.String(), `msg="a lock was revoked" `+
			`lock="lock \"import\"" term=946684800000 by=ann reason="it hangs"`)
	})
}
