package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASleepLastsAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lasts := func(d time.Duration, sleep func() bool, result bool) {
			t.Helper()
			begin := time.Now()
			require.Equal(t, result, sleep())
			require.Equal(t, d, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, d := range []time.Duration{-1, 0, time.Second} {
			lasts(max(d, 0), func() bool { return For(ctx, d) }, true)
			lasts(max(d, 0), func() bool { return Until(ctx.Done(), d) }, false)
		}
		lasts(58*time.Second, func() bool { return For(ctx, time.Hour) }, false)
		for range 100 { // both at once
			lasts(0, func() bool { return For(ctx, 0) }, false)
			lasts(0, func() bool { return Until(ctx.Done(), 0) }, true)
		}
	})
}
