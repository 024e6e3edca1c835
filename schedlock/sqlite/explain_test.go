package sqlite

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func TestAnErrorIsExplainedOnce(t *testing.T) {
	s := &Store{path: "/data/app.db"}
	for _, err := range []error{sqlite3.NOTADB, sqlite3.CORRUPT, sqlite3.FULL, sqlite3.READONLY,
		sqlite3.BUSY, driver.ErrLost, errors.New("no such table: scheduler_lock"),
		errors.New("no such table: named_locks"), errors.New("no such table: queue_tasks")} {
		explained := fmt.Errorf("somewhere: %w", s.explain(err))
		require.ErrorIs(t, explained, err)
		require.Equal(t, explained.Error(), s.explain(explained).Error())
	}
	require.ErrorContains(t, s.explain(sqlite3.FULL), "database /data/app.db: ")
	require.ErrorContains(t, s.explain(sqlite3.FULL), "; the disk is full")
	require.NoError(t, s.explain(nil))
}
