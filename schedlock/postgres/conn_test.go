package postgres_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/schedlock/postgres"
	"example.com/schedlock/tasks/queue"
)

// Such as of a variable that nobody has set: the driver then looks for a server of its own accord.
func TestTheErrorOfAnEmptyURLSaysThatItIsEmpty(t *testing.T) {
	t.Setenv("PGHOST", t.TempDir()) // no server listens there
	for url, empty := range map[string]bool{"": true, " ": true, "dbname=app": false} {
		_, err := postgres.Open(ctx, url, silent)
		require.Error(t, err)
		assert.Equal(t, empty, strings.Contains(err.Error(), "the database URL is empty"), err)
	}
}

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		version string
		old     bool
	}{{"9.6.24", true}, {"12.22 (Debian 12.22-1)", true}, {"13.0", false}, {"pooler", false}} {
		address := servertest.Listen(t, func(conn net.Conn) {
			defer conn.Close()
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.AuthenticationOk{})
			server.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: tc.version})
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			_ = server.Flush()
			_, _ = server.Receive()
		})
		_, err := postgres.Open(ctx, fmt.Sprintf("postgres://app@%s/app?sslmode=disable", address),
			silent)
		require.Error(t, err) // it answers no statement
		if tc.old {
			require.ErrorIs(t, err, driver.ErrPermanent)
			require.ErrorContains(t, err, "PostgreSQL "+tc.version+" is too old")
		} else {
			require.NotErrorIs(t, err, driver.ErrPermanent)
		}
	}
}

// enough is longer than any call may hang on a dead connection: its statement, and
// what follows. Before there was a bound it was minutes, or for ever.
const enough = 2 * patience

// hurried is how long a statement may take here, on a busy machine too.
const hurried = 3 * time.Second

// promptly fails unless f returns in time, without a deadline of its own.
func promptly(t testing.TB, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(enough):
		t.Fatalf("%s hangs on a dead connection", what)
		return nil
	}
}

// The connections are dead, and the caller has set no limit: each call returns
// soon, and works again over another connection.
func TestNoCallHangsOnADeadConnection(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"Done", "Capture", "Add", "GetLockInfo", "Info", "Inbox",
		"Pause", "TryLock"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w, url := servertest.Through(t, migrated(t))
			store := open(t, url)
			store.Hurry(hurried)
			queues, err := queue.New(store.Queue())
			require.NoError(t, err)
			_, err = queues.Add(ctx, "q", 0, "a", "b")
			require.NoError(t, err)
			tasks, err := queues.Capture(ctx, "q", 1)
			require.NoError(t, err)
			locks := locksOf(t, store, time.Minute)
			call := map[string]func() error{
				"Done":    func() error { return queues.Done(ctx, tasks...) },
				"Capture": func() error { _, err := queues.Capture(ctx, "q", 1); return err },
				"Add":     func() error { _, err := queues.Add(ctx, "q", 0, "c"); return err },
				"GetLockInfo": func() error {
					_, err := schedlock.GetLockInfo(ctx, store)
					return err
				},
				"Info":  func() error { _, err := locks.Info(ctx, lockA); return err },
				"Inbox": func() error { _, err := store.Pending(ctx); return err },
				"Pause": func() error {
					_, err := store.Pause(ctx, ledger.Action{By: "me"})
					return err
				},
				"TryLock": func() error { _, err := locks.TryLock(ctx, what); return err },
			}[what]
			w.Die()
			if err := promptly(t, what, call); err != nil {
				require.NoError(t, promptly(t, what+" again", call))
			}
		})
	}
}

func TestAConnectionThatIsLateIsUsed(t *testing.T) {
	t.Parallel()
	line, url := servertest.Through(t, migrated(t))
	servertest.ConnectsLate(t, line, open(t, url), "application_name")
}

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
