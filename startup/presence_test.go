package startup_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
)

func TestAnAppTellsOfItselfOnlyIfItIsToldTo(t *testing.T) {
	for _, presence := range []bool{true, false} {
		db := memory.New()
		app, err := startup.NewApp(startup.Config{
			Open:     func(context.Context) (driver.Store, error) { return db, nil },
			Presence: presence, Log: silence, Strict: true,
		})
		require.NoError(t, err)
		require.NoError(t, app.Start(t.Context()))
		count := func() int {
			list, err := db.Replicas(t.Context())
			require.NoError(t, err)
			return len(list)
		}
		if presence {
			require.Eventually(t, func() bool { return count() == 1 }, tooLong, time.Millisecond)
		}
		require.NoError(t, app.Stop(t.Context()))
		require.Zero(t, count())
	}
}
