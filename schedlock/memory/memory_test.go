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

// at is a database whose clock stands.
func at(t time.Time) (*memory.Store, *time.Time) {
	now := t
	return memory.New(memory.WithClock(func() time.Time { return now })), &now
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))

func look(t *testing.T, db *memory.Store) driver.Snapshot {
	t.Helper()
	v, err := db.Look(ctx)
	require.NoError(t, err)
	return v
}

func claim(judged driver.Snapshot) driver.Claim {
	return driver.Claim{Ref: driver.Ref{Owner: owner, Token: driver.NewToken()}, Timing: timing,
		Expected: judged, Reason: driver.EndExpired}
}

// win acquires what is there, whatever it is.
func win(t *testing.T, db *memory.Store) driver.Ref {
	t.Helper()
	c := claim(look(t, db))
	grant, err := db.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref
}

func TestAcquireWritesRowAndTerm(t *testing.T) {
	db, now := at(noon)
	require.Equal(t, driver.Snapshot{Now: noon.UTC().Truncate(time.Microsecond)}, look(t, db))
	ref := win(t, db)
	stamp := noon.UTC().Truncate(time.Microsecond)
	*now = noon.Add(time.Hour)
	v := look(t, db)
	require.Equal(t, &driver.Row{Ref: ref, RawToken: ref.Token.String(), State: driver.StateLeading,
		CreatedAt: stamp, HeartbeatAt: stamp, Timing: timing}, v.Row)
	require.Equal(t, &driver.Term{Ref: ref, AcquiredAt: stamp, TTL: time.Minute}, v.Newest)
	require.Equal(t, stamp.Add(time.Hour), v.Now)
}

func TestTermsGrow(t *testing.T) {
	db, now := at(noon)
	first := win(t, db)
	require.Equal(t, noon.UnixMilli(), first.Term, "the database's clock")
	require.Equal(t, first.Term+1, win(t, db).Term, "the last + 1")
	*now = noon.Add(-time.Hour)
	require.Equal(t, first.Term+2, win(t, db).Term, "whatever the clock says")
	c := claim(look(t, db))
	c.MinTerm = first.Term + 100
	grant, err := db.Acquire(ctx, c)
	require.NoError(t, err)
	require.Equal(t, first.Term+100, grant.Term, "what the replica has seen")
	db.Edit(func(r *driver.Row) { r.Term += 50 })
	require.Equal(t, first.Term+151, win(t, db).Term, "what stood in the row")
}

func TestHelpers(t *testing.T) {
	db, _ := at(noon)
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
	db, _ := at(noon)
	win(t, db)
	v := look(t, db)
	v.Row.Term, v.Newest.Term = 1, 1
	require.NotEqual(t, v, look(t, db))
}

func TestACallWhoseContextHasEndedDoesNothing(t *testing.T) {
	db, _ := at(noon)
	ref := win(t, db)
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(ctx)
	cancel(why)
	before := look(t, db)
	_, err := db.Look(ended)
	require.ErrorIs(t, err, why)
	_, err = db.Acquire(ended, claim(before))
	require.ErrorIs(t, err, why)
	_, err = db.Heartbeat(ended, ref, driver.StateLeading)
	require.ErrorIs(t, err, why)
	_, err = db.Release(ended, ref, driver.EndReleased)
	require.ErrorIs(t, err, why)
	_, err = db.Terms(ended, 1)
	require.ErrorIs(t, err, why)
	require.Equal(t, before, look(t, db))
}
