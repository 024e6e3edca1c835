package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// A brokenConnector counts how often a database is opened, and cannot be.
type brokenConnector struct {
	sqldriver.Connector
	opens int
}

func (c *brokenConnector) Connect(context.Context) (sqldriver.Conn, error) {
	c.opens++
	return nil, sqlite3.CANTOPEN
}

func TestADatabaseThatCannotBeOpenedIsNotOpenedAllTheTime(t *testing.T) {
	missing.Long(t, "opens it for an hour")
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	files, err := findFiles(path)
	require.NoError(t, err)
	files.readOnly = true // asks nobody else
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenConnector{}
		db := sql.OpenDB(&pool{databaseFiles: files, Connector: broken})
		defer db.Close()
		callers, began := 0, time.Now()
		for time.Since(began) < time.Minute {
			callers++
			require.ErrorIs(t, db.PingContext(t.Context()), sqlite3.CANTOPEN)
			time.Sleep(20 * time.Millisecond)
		}
		assert.Greater(t, broken.opens, 5, "it may have been mended")
		assert.Less(t, broken.opens, callers/100)
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			_ = db.PingContext(t.Context())
		}
		assert.Less(t, broken.opens, 2*3600/10)
	})
}

func TestADatabaseThatWasMendedIsOpened(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	db, err := openPool(must(findFiles(s.Path())), fileURI(s.Path())+
		"?mode=rw&_pragma=journal_mode(wal)")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxIdleConns(-1)
	good, err := os.ReadFile(s.Path())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	spoil := func(content []byte) {
		file, err := os.OpenFile(s.Path(), os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.Write(content)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	spoil([]byte(strings.Repeat("no database", 100)))
	require.ErrorIs(t, db.PingContext(bg), sqlite3.NOTADB)
	spoil(good)
	require.Eventually(t, func() bool { return db.PingContext(bg) == nil }, soon, time.Millisecond)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A process that starts beside another one, which is making the database, sees no
// database, and a moment later both files.
func TestADatabaseThatIsJustBeingMadeIsNotMissing(t *testing.T) {
	missing.Long(t, "looks all the time")
	t.Parallel()
	dir := t.TempDir()
	for i := range 300 {
		path := filepath.Join(dir, fmt.Sprintf("%d.db", i))
		made := make(chan error, 1)
		go func() {
			made <- errors.Join(os.WriteFile(path, nil, 0o600),
				os.WriteFile(path+"-wal", []byte("w"), 0o600))
		}()
		for ended := false; !ended; {
			select {
			case err := <-made:
				require.NoError(t, err)
				ended = true
			default:
			}
			require.Zero(t, orphanWAL(path), "round %d", i)
		}
	}
}

// SQLite deletes what lies under the name of the -wal file of a new database.
func TestAMissingDatabaseWithAWALFileIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	require.NoError(t, os.WriteFile(path+"-wal", []byte("committed"), 0o600))
	_, err := Open(t.Context(), path)
	require.ErrorContains(t, err, "with 9 bytes that a new database would delete")
	require.ErrorContains(t, err, path+"-wal away")
	require.NoFileExists(t, path)
	text, err := os.ReadFile(path + "-wal")
	require.NoError(t, err)
	require.Equal(t, "committed", string(text))
}
