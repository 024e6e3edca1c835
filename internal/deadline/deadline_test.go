package deadline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestOnlyWhatHasNoDeadlineGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := Default(t.Context(), time.Minute)
		<-ctx.Done()
		assert.Equal(t, time.Minute, time.Since(begin))
		cancel()

		own, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		ctx, cancel = Default(own, time.Minute)
		cancel()
		assert.NoError(t, ctx.Err(), "it is the caller's to cancel")
		<-ctx.Done()
		assert.Equal(t, time.Minute+time.Hour, time.Since(begin))
	})
}
