package locktest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var heartbeatCases = []testCase{
	{Rule: Rule{21, "a heartbeat is seen",
		"Heartbeat adds one to the beat, sets the stamp to the clock that it returns, and " +
			"touches nothing else.",
		"standbys see no sign of life and take over from a living leader.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			for range 3 {
				want := e.row()
				time.Sleep(time.Millisecond) // the clock goes on
				beat := e.beat(ref, driver.StateLeading)
				want.Beat++
				want.HeartbeatAt = beat.Now.Truncate(time.Microsecond) // as a table keeps it
				require.Equal(e, want, e.row())
			}
			require.True(e, e.look().Newest.Open())
		}},
	{Rule: Rule{22, "a heartbeat tells the state",
		"Heartbeat writes the state it is given, and returns what stands in the row.",
		"nobody sees that a leader drains.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			for _, state := range []driver.State{driver.StateDraining, driver.StateLeading} {
				require.Equal(e, state, e.beat(ref, state).State)
				require.Equal(e, state, e.row().State)
			}
		}},
	{Rule: Rule{23, "revoked stays",
		"Heartbeat leaves and returns StateRevoked, whatever state it is given.",
		"a leader never hears that it was told to leave.", []Feature{Edits}},
		run: func(e *env) {
			ref := e.win(alice)
			e.edit(Edit{State: driver.StateRevoked})
			for _, state := range []driver.State{driver.StateLeading, driver.StateDraining} {
				require.Equal(e, driver.StateRevoked, e.beat(ref, state).State)
				require.Equal(e, driver.StateRevoked, e.row().State)
			}
			require.EqualValues(e, 2, e.row().Beat)
		}},
	{Rule: Rule{24, "a heartbeat touches no other's row",
		"Heartbeat with another token or another term returns ErrLost and changes nothing.",
		"a leader that was replaced believes that it still leads, and keeps its successor's row " +
			"alive.", nil},
		run: func(e *env) {
			old := e.win(alice)
			ref := e.win(alice)
			e.onlyHolder(old, ref, map[string]func(driver.Ref) (bool, error){
				"Heartbeat": func(r driver.Ref) (bool, error) {
					_, err := e.s.Heartbeat(e.ctx, r, driver.StateLeading)
					return false, err
				},
			})
		}},
	{Rule: Rule{25, "a heartbeat never inserts",
		"Heartbeat without a row returns ErrLost and inserts nothing.",
		"a leader that was removed comes back beside its successor.", nil},
		run: func(e *env) {
			_, err := e.s.Heartbeat(e.ctx, driver.Ref{Owner: alice,
				Token: driver.NewToken(), Term: 1}, driver.StateLeading)
			require.ErrorIs(e, err, driver.ErrLost, "on an empty database")
			require.Nil(e, e.look().Row)
			ref := e.win(alice)
			e.release(ref)
			e.unchanged(func() {
				_, err := e.s.Heartbeat(e.ctx, ref, driver.StateLeading)
				require.ErrorIs(e, err, driver.ErrLost, "after a release")
			}, "a heartbeat without a row")
		}},
	{Rule: Rule{26, "heartbeats add up",
		"Heartbeats at the same time each add one.",
		"two heartbeats make one beat, and a standby counts a living holder's silence.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			const each = 8
			var (
				wg              sync.WaitGroup
				done, attempted atomic.Int64
			)
			handles := e.handles(4)
			for _, s := range handles {
				wg.Go(func() {
					for range each {
						for e.ctx.Err() == nil {
							attempted.Add(1)
							if _, err := s.Heartbeat(e.ctx, ref, driver.StateLeading); err == nil {
								done.Add(1)
								break
							}
						}
					}
				})
			}
			wg.Wait()
			require.EqualValues(e, len(handles)*each, done.Load(), "heartbeats that succeeded")
			beat := e.row().Beat
			require.GreaterOrEqual(e, beat, done.Load(), "beats were lost")
			require.LessOrEqual(e, beat, attempted.Load())
		}},
}
