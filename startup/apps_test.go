package startup_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/startup"
)

// Two apps that were both named, on one lock: the second one says so at its start.
func TestAnAppRefusesToStartWhileAnotherLeadsWithItsLock(t *testing.T) {
	db := memory.New()
	newApp := func(name string, strict bool) *startup.App {
		app, err := startup.NewApp(startup.Config{
			Open: func(context.Context) (driver.Store, error) { return db, nil },
			Lock: []schedlock.Option{schedlock.WithApp(name)}, Strict: strict, Log: silence,
		})
		require.NoError(t, err)
		return app
	}
	shop := newApp("shop", true)
	require.NoError(t, shop.Start(t.Context()))
	for _, strict := range []bool{false, true} {
		err := newApp("billing", strict).Start(t.Context())
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, `stage "worker_mode": start: needs an operator: `+
			`scheduler lock: another app, "shop", leads with this lock`)
		require.ErrorContains(t, err, `postgres.WithSchema("...")`)
	}
	replica := newApp("shop", false)
	require.NoError(t, replica.Start(t.Context()), "of the same app")
	require.NoError(t, replica.Stop(t.Context()))
	require.NoError(t, shop.Stop(t.Context()))

	billing := newApp("billing", false)
	require.NoError(t, billing.Start(t.Context()))
	require.Eventually(t, func() bool {
		return billing.Lock().IsLeader(t.Context()) == nil
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, billing.Stop(t.Context()))
}
