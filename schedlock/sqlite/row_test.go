package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// anotherDriver hides whose driver it is.
type anotherDriver struct{ sqldriver.Connector }

func (a anotherDriver) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := a.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	type plain interface {
		sqldriver.Conn
		sqldriver.ConnPrepareContext
		sqldriver.ConnBeginTx
		sqldriver.ExecerContext
	}
	return struct{ plain }{conn.(plain)}, nil
}

func TestAnotherDriverDoesToo(t *testing.T) {
	t.Parallel()
	connector, err := new(sqlite3driver.SQLite).OpenConnector("file:" + newStore(t).Path() +
		"?_txlock=immediate")
	require.NoError(t, err)
	db := sql.OpenDB(anotherDriver{connector})
	t.Cleanup(func() { db.Close() })
	s := storeOn(t, db)
	require.Nil(t, look(t, s).Newest, "without a history")
	ref := acquire(t, s, nobody)
	assert.Equal(t, ref, look(t, s).Row.Ref)
	beat(t, s, ref)
	release(t, s, ref)
	assert.Equal(t, ref.Term, look(t, s).Newest.Term)
	assert.Empty(t, s.rows, "the test sees the other way")
}

// As after somebody has emptied the history by hand.
func TestARowWithoutAHistoryIsRead(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ref := acquire(t, s, nobody)
	run(t, foreign(t, s), `DELETE FROM scheduler_terms`)
	v := look(t, s)
	require.NotNil(t, v.Row)
	assert.Equal(t, ref, v.Row.Ref)
	assert.Nil(t, v.Newest)
	assert.NotEmpty(t, s.rows, "read as fast as can be")
}
