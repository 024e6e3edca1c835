package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/sqlite"
)

// Two apps that share a lock by mistake are told apart in its history.
func TestHistoryNamesTheAppsIfThereAreSeveral(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	store, err := sqlite.Opener("file:" + path)(bg)
	require.NoError(t, err)
	lead := func(app string) {
		require.NoError(t, acquired(t, store, schedlock.WithApp(app)).Release(bg))
	}
	lead("billing")
	assert.NotContains(t, call(t, "history", "--db", path).out, "billing", "all are of one app")
	lead("shop")
	require.NoError(t, store.(*sqlite.Store).Close())
	out := call(t, "history", "--db", path).out
	assert.Contains(t, out, "  billing  ")
	assert.Contains(t, out, "  shop  ")
	var list []historyJSON
	strict(t, call(t, "history", "--json", "--db", path).out, &list)
	require.Len(t, list, 2)
	assert.Equal(t, "shop", list[0].App)
	assert.Equal(t, "billing", list[1].App)
}
