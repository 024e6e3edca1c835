package memory_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

var (
	ctx    = context.Background()
	timing = schedlock.Timing{TTL: time.Minute, RenewDeadline: 45 * time.Second, HeartbeatInterval: 10 * time.Second}
	owner  = schedlock.Owner{PID: 7, Hostname: "h"}
)

// at is a database whose clock stands.
func at(t time.Time) (*memory.Store, *time.Time) {
	now := t
	return memory.New(memory.WithClock(func() time.Time { return now })), &now
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))

func look(t *testing.T, db *memory.Store) schedlock.View {
	t.Helper()
	v, err := db.Look(ctx)
	require.NoError(t, err)
	return v
}

func claim(judged schedlock.View) schedlock.Claim {
	return schedlock.Claim{Ref: schedlock.Ref{Owner: owner, Token: schedlock.NewToken()}, Timing: timing, Judged: judged, Reason: schedlock.EndExpired}
}

// win acquires what is there, whatever it is.
func win(t *testing.T, db *memory.Store) schedlock.Ref {
	t.Helper()
	c := claim(look(t, db))
	grant, err := db.Acquire(ctx, c)
	require.NoError(t, err)
	c.Term = grant.Term
	return c.Ref
}

func TestAcquireWritesRowAndTerm(t *testing.T) {
	db, now := at(noon)
	require.Equal(t, schedlock.View{Now: noon.UTC().Truncate(time.Microsecond)}, look(t, db))
	ref := win(t, db)
	stamp := noon.UTC().Truncate(time.Microsecond)
	*now = noon.Add(time.Hour)
	v := look(t, db)
	require.Equal(t, &schedlock.Row{Ref: ref, RawToken: ref.Token.String(), State: schedlock.StateLeading, CreatedAt: stamp, HeartbeatAt: stamp, Timing: timing}, v.Row)
	require.Equal(t, &schedlock.Term{Ref: ref, AcquiredAt: stamp, TTL: time.Minute}, v.Newest)
	require.Equal(t, stamp.Add(time.Hour), v.Now)
}

func TestAcquireIsCompareAndSwap(t *testing.T) {
	db, _ := at(noon)
	empty := look(t, db)
	first := win(t, db)
	judged := look(t, db)
	moved := func(c schedlock.Claim) {
		t.Helper()
		before := look(t, db)
		_, err := db.Acquire(ctx, c)
		require.ErrorIs(t, err, schedlock.ErrMoved)
		require.Equal(t, before, look(t, db), "nothing was written")
	}
	moved(claim(empty))
	_, err := db.Heartbeat(ctx, first, schedlock.StateLeading)
	require.NoError(t, err)
	moved(claim(judged)) // the beat
	judged = look(t, db)
	other := judged
	row := *judged.Row
	row.RawToken = "x"
	other.Row = &row
	moved(claim(other)) // the token
	row = *judged.Row
	row.Term++
	moved(claim(other)) // the term

	grant, err := db.Acquire(ctx, claim(judged))
	require.NoError(t, err)
	require.Greater(t, grant.Term, first.Term)
	moved(claim(judged)) // the second that judged the same dead row
	db.DeleteRow()
	moved(claim(judged)) // a row that is gone
	moved(claim(empty))  // free, but not with the newest term that was judged
	win(t, db)
}

func TestOfManyThatJudgedTheSameOneWins(t *testing.T) {
	db := memory.New()
	for range 3 {
		judged := look(t, db)
		var won atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := db.Acquire(ctx, claim(judged)); err == nil {
					won.Add(1)
				} else if !errors.Is(err, schedlock.ErrMoved) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, won.Load())
	}
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
	db.Edit(func(r *schedlock.Row) { r.Term += 50 })
	require.Equal(t, first.Term+151, win(t, db).Term, "what stood in the row")
}

func TestAcquireEndsWhatIsOpen(t *testing.T) {
	db, _ := at(noon)
	first := win(t, db)
	db.DeleteRow()
	require.True(t, look(t, db).Newest.Open(), "a row deleted by hand ends nothing")
	second := win(t, db)
	terms, err := db.Terms(ctx, 9)
	require.NoError(t, err)
	require.Len(t, terms, 2)
	require.Equal(t, second.Term, terms[0].Term, "newest first")
	require.True(t, terms[0].Open())
	require.Equal(t, first.Term, terms[1].Term)
	require.Equal(t, schedlock.EndExpired, terms[1].EndReason)
	require.Equal(t, second.Term, terms[1].NextTerm)
}

func TestHistoryIsBounded(t *testing.T) {
	db, _ := at(noon)
	var last schedlock.Ref
	for range 1005 {
		last = win(t, db)
	}
	terms, err := db.Terms(ctx, 5000)
	require.NoError(t, err)
	require.Len(t, terms, 1000)
	require.Equal(t, last.Term, terms[0].Term)
	require.Equal(t, last.Term-999, terms[999].Term)
	for _, limit := range []int{-1, 0, 3} {
		terms, err = db.Terms(ctx, limit)
		require.NoError(t, err)
		require.Len(t, terms, max(limit, 0))
	}
}

func TestHeartbeat(t *testing.T) {
	db, now := at(noon)
	ref := win(t, db)
	*now = noon.Add(time.Second)
	beat, err := db.Heartbeat(ctx, ref, schedlock.StateDraining)
	require.NoError(t, err)
	require.Equal(t, schedlock.Beat{State: schedlock.StateDraining, Now: noon.Add(time.Second).UTC().Truncate(time.Microsecond)}, beat)
	row := look(t, db).Row
	require.EqualValues(t, 1, row.Beat)
	require.Equal(t, beat.Now, row.HeartbeatAt)
	require.Equal(t, schedlock.StateDraining, row.State)
	db.Edit(func(r *schedlock.Row) { r.State = schedlock.StateRevoked })
	beat, err = db.Heartbeat(ctx, ref, schedlock.StateLeading)
	require.NoError(t, err)
	require.Equal(t, schedlock.StateRevoked, beat.State, "stays so")

	for name, spoil := range map[string]func(*schedlock.Ref){
		"token": func(r *schedlock.Ref) { r.Token = schedlock.NewToken() },
		"term":  func(r *schedlock.Ref) { r.Term++ },
	} {
		other := ref
		spoil(&other)
		_, err := db.Heartbeat(ctx, other, schedlock.StateLeading)
		require.ErrorIs(t, err, schedlock.ErrLost, name)
	}
	db.DeleteRow()
	_, err = db.Heartbeat(ctx, ref, schedlock.StateLeading)
	require.ErrorIs(t, err, schedlock.ErrLost)
	require.Nil(t, look(t, db).Row, "it never inserts")
}

func TestReleaseIsScoped(t *testing.T) {
	db, _ := at(noon)
	ref := win(t, db)
	for name, spoil := range map[string]func(*schedlock.Ref){
		"pid":      func(r *schedlock.Ref) { r.PID++ },
		"hostname": func(r *schedlock.Ref) { r.Hostname = "x" },
		"token":    func(r *schedlock.Ref) { r.Token = schedlock.NewToken() },
		"term":     func(r *schedlock.Ref) { r.Term++ },
	} {
		other := ref
		spoil(&other)
		deleted, err := db.Release(ctx, other, schedlock.EndReleased)
		require.NoError(t, err)
		require.False(t, deleted, name)
		require.NotNil(t, look(t, db).Row, name)
	}
	deleted, err := db.Release(ctx, ref, schedlock.EndRevoked)
	require.NoError(t, err)
	require.True(t, deleted)
	v := look(t, db)
	require.Nil(t, v.Row)
	deleted, err = db.Release(ctx, ref, schedlock.EndLost)
	require.NoError(t, err)
	require.False(t, deleted)
	require.Equal(t, v, look(t, db), "the end that is written stays")
}

func TestReleaseEndsTheTermOfARowThatIsGone(t *testing.T) {
	db, _ := at(noon)
	ref := win(t, db)
	db.Edit(func(r *schedlock.Row) { r.RawToken = "x" })
	deleted, err := db.Release(ctx, ref, schedlock.EndLost)
	require.NoError(t, err)
	require.False(t, deleted)
	v := look(t, db)
	require.Equal(t, "x", v.Row.RawToken)
	require.Zero(t, v.Row.Token)
	require.Equal(t, schedlock.EndLost, v.Newest.EndReason)
}

func TestHelpers(t *testing.T) {
	db, _ := at(noon)
	require.False(t, db.Edit(func(*schedlock.Row) { t.Error("there is no row") }))
	require.False(t, db.DeleteRow())
	ref := win(t, db)
	restore := db.Backup()
	token := schedlock.NewToken()
	require.True(t, db.Edit(func(r *schedlock.Row) { r.Token = token }))
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
	_, err = db.Heartbeat(ended, ref, schedlock.StateLeading)
	require.ErrorIs(t, err, why)
	_, err = db.Release(ended, ref, schedlock.EndReleased)
	require.ErrorIs(t, err, why)
	_, err = db.Terms(ended, 1)
	require.ErrorIs(t, err, why)
	require.Equal(t, before, look(t, db))
}
