package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := StartStopwatch()
		assert.Zero(t, watch.Elapsed())
		time.Sleep(time.Hour)
		assert.Equal(t, time.Hour, watch.Elapsed())
		other := watch
		time.Sleep(time.Hour)
		assert.Equal(t, 2*time.Hour, watch.Elapsed())
		assert.Equal(t, 2*time.Hour, other.Elapsed(), "a copy")
	})
	watch := StartStopwatch()
	require.Zero(t, testing.AllocsPerRun(1000, func() { watch.Elapsed() }))
	require.Positive(t, watch.Elapsed())
}
