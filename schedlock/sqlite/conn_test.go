package sqlite

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
)

// A closing is a context of a call that comes as a store is closed.
type closing struct {
	context.Context
	s *Store
}

func (c closing) Done() <-chan struct{} {
	_ = c.s.Close()
	return nil
}

func TestACallThatComesAsTheStoreIsClosedTakesNoConnection(t *testing.T) {
	db := appPool(t, "file:"+unused(t)+"?_pragma=busy_timeout(500)&_txlock=immediate")
	for range 30 { // it took one each second time
		s := storeOn(t, db)
		err := s.use(closing{bg, s}, func(context.Context, *sql.Conn) error { return nil })
		require.ErrorContains(t, err, "was closed")
		require.Zero(t, db.Stats().InUse)
	}
}
