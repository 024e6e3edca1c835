package bounded

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatIsDoneTakesASmallPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			p     Pace
			times int
			took  = time.Millisecond
		)
		ask := func(key string) {
			p.Due(key, func() {
				times++
				p.Due(key, func() { t.Error("twice at a time") })
				time.Sleep(took)
			})
		}
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
			ask("quick")
		}
		require.InDelta(t, 60, times, 1, "once a second")
		times, took = 0, 100*time.Millisecond
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
			ask("slow")
		}
		require.LessOrEqual(t, times, 6, "1 % of the time")
		took = time.Hour
		ask("once")
		took = 0
		time.Sleep(most)
		times = 0
		ask("once")
		require.Equal(t, 1, times, "however long it took once")
		times = 0
		for range 3 {
			ask("a")
			ask("b")
		}
		require.Equal(t, 2, times, "each key")
		for i := range 10 * maxKeys {
			ask(fmt.Sprint(i))
		}
		require.LessOrEqual(t, len(p.next), maxKeys)
	})
}
