package startup_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
)

// reluctant refuses to release until a time.
type reluctant struct {
	*database
	until time.Time
}

func (r *reluctant) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (bool, error) {
	if time.Now().Before(r.until) {
		return false, errors.New("connection refused")
	}
	return r.database.Release(ctx, ref, reason)
}

func TestRunReturnsNoErrorIfTheReleaseSucceedsInTheEnd(t *testing.T) {
	for name, outage := range map[string]time.Duration{
		"within the budget of a release":      3 * time.Second,
		"within that of the stage after HTTP": 8 * time.Second,
	} {
		bubble(t, name, func(t *testing.T) {
			var d diary
			db := &reluctant{database: newDatabase(&d)}
			app := newApp(t, startup.Config{Strict: true,
				Open: func(context.Context) (driver.Store, error) { return db, nil }})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			db.until = time.Now().Add(time.Minute + outage)
			assert.NoError(t, app.Run(ctx))
			assert.Equal(t, []string{"acquire", "release", "close"}, d.read())
			assert.Nil(t, db.info(t))
		})
	}
	bubble(t, "but says what is left", func(t *testing.T) {
		db := &reluctant{database: newDatabase(&diary{}), until: time.Now().Add(time.Hour)}
		app := newApp(t, startup.Config{Strict: true,
			Open: func(context.Context) (driver.Store, error) { return db, nil }})
		require.NoError(t, app.Start(t.Context()))
		begin := time.Now()
		err := app.Stop(t.Context())
		require.ErrorContains(t, err, "connection refused")
		stage, ok := errors.AsType[*startup.StageError](err)
		require.True(t, ok)
		assert.Equal(t, startup.StageWorkerMode, stage.Stage)
		assert.LessOrEqual(t, time.Since(begin), 10*time.Second)
	})
}

// Another process writes for longer than a statement waits for it.
func TestRunReleasesASQLiteFileThatIsBusy(t *testing.T) {
	missing.Long(t, "takes a second")
	path := filepath.Join(t.TempDir(), "app.db")
	app := newApp(t, startup.Config{Open: sqlite.Opener("file:" + path), Strict: true})
	require.NoError(t, app.Start(t.Context()))
	db, err := sqlite3driver.Open("file:" + path)
	require.NoError(t, err)
	defer db.Close()
	// BEGIN IMMEDIATE
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	require.NoError(t, err)
	free := time.AfterFunc(1200*time.Millisecond, func() { _ = tx.Rollback() })
	defer free.Stop()
	require.NoError(t, app.Stop(t.Context()))
	info, err := sqliteInfo(t, path)
	require.NoError(t, err)
	assert.Nil(t, info)
}

func sqliteInfo(t *testing.T, path string) (*schedlock.LockInfo, error) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	defer store.Close()
	return schedlock.GetLockInfo(t.Context(), store)
}
