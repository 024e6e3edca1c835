package tasks

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/schedlock/ledger"
)

func TestNamesThatTheReaderCannotSeeAreRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var d diary
		a := w.leader([]Job{d.job("j", at(time.Hour), 0)})
		for _, bad := range []string{"a\x00", "a\nb", "\x1b[31m", "a\u202eb", "\u2066a", "\xff"} {
			job := Job{Name: bad, Spec: Every(time.Hour), Do: func(context.Context, Run) error {
				return nil
			}}
			assert.ErrorContains(t, checkJobs([]Job{job}), "is not UTF-8, or contains NUL",
				"%q", bad)
			_, err := a.runner.Trigger(ctx, "j", bad, "")
			assert.ErrorContains(t, err, "is not UTF-8, or contains NUL", "%q", bad)
			// a reason may have lines
			_, err = a.runner.Pause(ctx, "j", "alice", strings.ReplaceAll(bad, "\n", "\x00"))
			assert.ErrorContains(t, err, "is not UTF-8, or contains NUL", "%q", bad)
			_, err = a.runner.Resume(ctx, "j", bad)
			assert.ErrorContains(t, err, "is not UTF-8, or contains NUL", "%q", bad)
			_, err = a.runner.HandOver(ctx, a.lock.Status().Term, bad, "")
			assert.ErrorContains(t, err, "is not UTF-8, or contains NUL", "%q", bad)
			_, err = a.runner.Pause(ctx, bad, "alice", "")
			assert.ErrorIs(t, err, ledger.ErrNoJob, "%q", bad)
			assert.ErrorContains(t, err, "is not UTF-8, or contains NUL", "%q", bad)
		}
		assert.NoError(t, checkJobs([]Job{d.job("日本 🦀", at(time.Hour), 0)}))
	})
}

func TestAZoneHasOneSpelling(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe//Berlin", "Europe/Berlin/", "/Europe/Berlin",
		"./Europe/Berlin", "Europe/./Berlin", "Europe\\Berlin", " Europe/Berlin", "Europe/Ber lin",
		"Europe/Berlin\x00", "Europe/Nowhere"} {
		assert.ErrorContains(t, Cron("0 0 * * *", zone).Validate(), "zone", "%q", zone)
	}
	for _, zone := range []string{"", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires",
		"America/Port-au-Prince", "Etc/GMT+1"} {
		assert.NoError(t, Cron("0 0 * * *", zone).Validate(), "%q", zone)
	}
}
