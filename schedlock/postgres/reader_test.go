package postgres_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/postgres"
)

// A reader does not listen, which a hot standby refuses, and reads what others
// have written.
func TestAReaderDoesNotListen(t *testing.T) {
	t.Parallel()
	databaseURL := migrated(t)
	holder := open(t, databaseURL)
	ref := acquire(t, holder, time.Minute)
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	q := u.Query()
	q.Set("application_name", "reader")
	u.RawQuery = q.Encode()
	reader, err := postgres.OpenReader(ctx, u.String(), silent)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	// The connection has run nothing yet but what opens it.
	last := value[string](t, session(t, databaseURL),
		`SELECT query FROM pg_stat_activity WHERE application_name = 'reader'`)
	assert.Contains(t, last, "inet_server_addr",
		"the last of them, where a store that listens has another")
	assert.NotContains(t, last, "LISTEN")

	view := look(t, reader)
	require.NotNil(t, view.Row)
	assert.Equal(t, ref.Term, view.Row.Term)
	terms, err := reader.Terms(ctx, 1)
	require.NoError(t, err)
	assert.Len(t, terms, 1)
}
