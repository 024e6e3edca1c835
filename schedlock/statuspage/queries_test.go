package statuspage

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
)

// count counts a call of the store that the page makes: each is one statement.
func (d *database) count() { d.calls.Add(1) }

func (d *database) Pending(ctx context.Context) (ledger.Pending, error) {
	d.count()
	return d.Store.Pending(ctx)
}

func (d *database) Audit(ctx context.Context, job string, n int) ([]ledger.AuditEntry, error) {
	d.count()
	return d.Store.Audit(ctx, job, n)
}

func (d *database) Replicas(ctx context.Context) ([]ledger.Replica, error) {
	d.count()
	return d.Store.Replicas(ctx)
}

// A viewer has the page open in a browser.
type viewer struct{ header http.Header }

func (v viewer) Header() http.Header         { return v.header }
func (v viewer) WriteHeader(int)             {}
func (v viewer) Write(p []byte) (int, error) { return io.Discard.Write(p) }
func (v viewer) Flush()                      {}

// queries is how many calls a second the database gets from so many viewers, while a leader beats
// and a job runs each second.
func queries(t *testing.T, viewers int, script bool) (perSecond float64) {
	synctest.Test(t, func(t *testing.T) {
		const minute = 60
		db, ref := led(t)
		db.run(t, ref, "tick", ledger.Done, "")
		h := newHandler(t, db, nil)
		h.live.every = pollInterval
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range viewers {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 197 * time.Millisecond)
				for {
					get(h, "/")
					if script {
						h.ServeHTTP(viewer{http.Header{}}, httptest.NewRequest(http.MethodGet,
							"/events", nil).WithContext(ctx))
						return
					}
					select {
					case <-ctx.Done():
						return
					case <-time.After(10 * time.Second):
					}
				}
			})
		}
		time.Sleep(20 * time.Second)
		before := db.calls.Load()
		for second := range minute {
			time.Sleep(time.Second)
			if second%10 == 0 {
				db.beat(t, ref)
			}
			db.finish(t, db.asked(t, ref, "tick", "ann", ""), ledger.End{Status: ledger.Done})
		}
		perSecond = float64(db.calls.Load()-before) / minute
		cancel()
		all.Wait()
	})
	return perSecond
}

func TestFiftyViewersAskTheDatabaseAsOneDoes(t *testing.T) {
	missing.Long(t, "takes seconds")
	one, fifty := queries(t, 1, true), queries(t, 50, true)
	t.Logf("%.1f calls a second for one viewer, %.1f for fifty", one, fifty)
	assert.InDelta(t, one, fifty, one/10)
	assert.Less(t, one, 12.)

	fifty = queries(t, 50, false)
	t.Logf("%.1f for fifty without JavaScript", fifty)
	assert.Less(t, fifty, 20.)
}
