package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

var (
	ctx    = context.Background()
	timing = driver.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second,
		HeartbeatInterval: 10 * time.Second}
	owner = driver.Owner{PID: 7, Hostname: "h"}
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))

// atNoon is a database whose clock stands.
func atNoon() *memory.Store {
	return memory.New(memory.WithClock(func() time.Time { return noon }))
}

func look(t *testing.T, db *memory.Store) driver.Snapshot {
	t.Helper()
	v, err := db.Look(ctx)
	require.NoError(t, err)
	return v
}

// win acquires what is there, whatever it is.
func win(t *testing.T, db *memory.Store) driver.Ref {
	t.Helper()
	c := driver.Claim{Ref: driver.Ref{Owner: owner, Token: driver.NewToken()}, Timing: timing,
		Expected: look(t, db), Reason: driver.EndExpired}
	grant, err := db.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref
}

func TestHelpers(t *testing.T) {
	db := atNoon()
	defer db.Begin().Rollback() // it fences nothing, so it is in nobody's way
	require.False(t, db.Edit(func(*driver.Row) { t.Error("there is no row") }))
	require.False(t, db.DeleteRow())
	ref := win(t, db)
	restore := db.Backup()
	token := driver.NewToken()
	require.True(t, db.Edit(func(r *driver.Row) { r.Token = token }))
	require.Equal(t, token.String(), look(t, db).Row.RawToken)
	require.True(t, db.DeleteRow())
	win(t, db)
	for range 2 {
		restore()
		v := look(t, db)
		require.Equal(t, ref, v.Row.Ref)
		require.True(t, v.Newest.Open())
		win(t, db)
	}
}

func TestAViewIsACopy(t *testing.T) {
	db := atNoon()
	win(t, db)
	v := look(t, db)
	v.Row.Term, v.Newest.Term = 1, 1
	require.NotEqual(t, v, look(t, db))
}

func TestACallWhoseContextHasEndedSaysWhy(t *testing.T) {
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(ctx)
	cancel(why)
	_, err := memory.New().Look(ended)
	require.ErrorIs(t, err, why)
}
