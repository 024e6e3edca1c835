package migrations

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWithoutADeadlineThirtySecondsAreTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, attempts := time.Now(), 0
		err := withDeadline(t.Context(), func(ctx context.Context) error {
			return sqliteEngine.retry(ctx, func() error {
				attempts++
				return errors.New("somebody's driver: database is locked (5) (SQLITE_BUSY)")
			})
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "SQLITE_BUSY")
		assert.Equal(t, 30*time.Second, time.Since(start))
		assert.Greater(t, attempts, 300, "the database may be free again at any moment")
		assert.Less(t, attempts, 1000, "a busy database is not to be kept busy")
	})
}

func TestADriversOwnWordsForAnInterruptionStillWrapTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := withDeadline(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("interrupted")
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "interrupted")
	})
}

func TestTheEndOfTheContextIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := withDeadline(t.Context(), func(ctx context.Context) error {
			return mysqlEngine.retry(ctx, func() error {
				<-ctx.Done()
				return fmt.Errorf("wait for somebody: %w", ctx.Err())
			})
		})
		require.EqualError(t, err, "wait for somebody: context deadline exceeded")
	})
}
