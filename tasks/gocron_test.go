package tasks

import (
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
)

// An app that has a gocron scheduler keeps it and passes the lock to it.
var _ gocron.Elector = (*schedlock.Lock)(nil)

func TestALockIsAnElectorForAnAppsOwnGocron(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ofA, ofB diary
		a, b := w.join(nil), w.join(nil)
		for r, d := range map[*replica]*diary{a: &ofA, b: &ofB} {
			s, err := gocron.NewScheduler(gocron.WithDistributedElector(r.lock))
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Shutdown()) }()
			_, err = s.NewJob(gocron.DurationJob(time.Second), gocron.NewTask(func() {
				d.write("ran")
			}))
			require.NoError(t, err)
			s.Start()
		}
		sleepUntil(5 * time.Second)
		require.Empty(t, ofA.read(), "nobody leads")
		require.Empty(t, ofB.read())

		a.lead()
		b.stand()
		time.Sleep(500 * time.Millisecond)
		sleepUntil(15*time.Second + 500*time.Millisecond)
		ran := len(ofA.read())
		assert.GreaterOrEqual(t, ran, 10)
		assert.Empty(t, ofB.read())

		require.NoError(t, a.runner.Stop(ctx))
		sleepUntil(25*time.Second + 500*time.Millisecond)
		assert.Len(t, ofA.read(), ran)
		assert.GreaterOrEqual(t, len(ofB.read()), 9)
	})
}
