package locktest

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

var lookCases = []testCase{
	{Rule: Rule{1, "an empty database is free",
		"Look on an empty database returns no row, no term and the database's clock, without an " +
			"error.",
		"the first replica of a new installation never leads.", nil},
		run: func(e *env) {
			v := e.look()
			require.Nil(e, v.Row, "the row")
			require.Nil(e, v.Newest, "the newest term")
			require.False(e, v.Now.IsZero(), "the clock")
			require.Empty(e, e.terms(10))
		}},
	{Rule: Rule{2, "one look is one moment",
		"Look returns the row and the newest term of one moment, whoever writes meanwhile.",
		"a standby judges one holder by the term of another and takes the lock of a living " +
			"leader.", nil},
		run: func(e *env) {
			e.win(alice)
			writer := e.db.Open(e)
			var wg sync.WaitGroup
			var writeErr error
			done := make(chan struct{})
			wg.Go(func() {
				defer close(done)
				for range 40 {
					v, err := writer.Look(e.ctx)
					if err == nil {
						_, err = e.insist(writer, claim(v, bob))
					}
					if err != nil {
						writeErr = err
						return
					}
				}
			})
			defer wg.Wait()
			for {
				v := e.look()
				require.NotNil(e, v.Row, "the row of a lock that is taken over and never released")
				require.NotNil(e, v.Newest)
				require.Equal(e, v.Row.Ref, v.Newest.Ref,
					"the row and the newest term are of two moments")
				require.True(e, v.Newest.Open(),
					"the row and the end of its term are of two moments")
				select {
				case <-done:
					require.NoError(e, writeErr)
					return
				default:
				}
			}
		}},
	{Rule: Rule{3, "a look writes nothing",
		"Look and Terms change nothing.",
		"a thousand standbys wear the database out, or keep a dead holder's beat alive.", nil},
		run: func(e *env) {
			e.win(alice)
			e.unchanged(func() {
				for range 10 {
					e.look()
					e.terms(10)
				}
			}, "Look")
		}},
	{Rule: Rule{4, "a look that fails says so",
		"Look with a context that has ended returns an error, and soon.",
		"a standby takes \"could not read\" for \"free\", or hangs.", nil},
		run: func(e *env) {
			e.win(alice)
			e.soon("Look with an ended context", func() {
				_, err := e.s.Look(ended())
				if err == nil {
					e.Errorf("Look with an ended context: no error")
				}
			})
			ctx, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Hour))
			defer cancel()
			_, err := e.s.Look(ctx)
			require.Error(e, err, "Look past its deadline")
		}},
	{Rule: Rule{5, "a token that was edited is read as text",
		"A token column that holds no token gives the zero Token and the text in RawToken, and " +
			"can be compared and swapped.",
		"one UPDATE by hand and no replica can read the row, or replace it, ever again.",
		[]Feature{Edits}},
		run: func(e *env) {
			for _, text := range []string{"mine now", "it's \"x\" – ü",
				"00112233445566778899aabbccddeefg"} {
				e.win(alice)
				e.edit(Edit{Token: text})
				row := e.row()
				require.Equal(e, text, row.RawToken, "RawToken")
				require.Zero(e, row.Token, "Token")
				require.Equal(e, alice, row.Owner)
			}
			e.edit(Edit{Token: "one"})
			c := claim(e.look(), bob)
			e.edit(Edit{Token: "two"})
			e.moved(c, "one text that is no token was replaced by another")
			e.win(bob)
		}},
	{Rule: Rule{6, "the clock goes on, in UTC",
		"Snapshot.Now is the database's clock: it goes on between two looks, it is that of the " +
			"stamps, and all times are in UTC.",
		"ages on the status page are wrong, and ticks are computed for a time that is not.", nil},
		run: func(e *env) {
			ref := e.win(alice)
			first := e.look()
			time.Sleep(20 * time.Millisecond)
			second := e.look()
			require.Greater(e, second.Now, first.Now, "Now, 20 ms later")
			beat := e.beat(ref, driver.StateLeading)
			third := e.look()
			for name, pair := range map[string][2]time.Time{
				"CreatedAt":   {third.Row.CreatedAt, first.Now},
				"AcquiredAt":  {third.Newest.AcquiredAt, first.Now},
				"HeartbeatAt": {third.Row.HeartbeatAt, third.Now},
				"Beat.Now":    {beat.Now, third.Now},
			} {
				require.LessOrEqual(e, pair[0].Sub(pair[1]), time.Duration(0),
					"%s lies after a later look", name)
				require.Greater(e, pair[0].Sub(pair[1]), -time.Hour,
					"%s is not by the clock of Now", name)
				require.Equal(e, time.UTC, pair[0].Location(), name)
			}
			require.Equal(e, time.UTC, second.Now.Location(), "Now")
		}},
}
