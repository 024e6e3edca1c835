package statuspage

import (
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/bounded"
)

func TestASectionThatDoesNotReturnKeepsNoOtherPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		block := make(chan struct{})
		release := sync.OnceFunc(func() { close(block) })
		defer release()
		var log strings.Builder
		h := newHandler(t, newDatabase(), func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
			c.Sections = []Section{
				{Title: "Stuck", Render: func(context.Context) (template.HTML, error) {
					calls.Add(1)
					<-block
					return "<em>3 lists</em>", nil
				}},
				{Title: "Works", Render: func(context.Context) (template.HTML, error) {
					return "<em>1,204 bans</em>", nil
				}},
			}
		})
		h.live.every = 0 // pages do not wait for each other
		begin := time.Now()
		for range 3 {
			w := get(h, "/")
			require.Equal(t, 200, w.Code)
			require.Contains(t, w.Body.String(), "this part cannot be shown")
			require.Contains(t, w.Body.String(), "<em>1,204 bans</em>")
		}
		require.Equal(t, readTimeout+bounded.Moment, time.Since(begin),
			"nobody waits for a call that is late already")

		h.live.every = pollInterval
		for range 3 { // viewers that are gone after a second
			s := h.live.join()
			time.Sleep(time.Second)
			begin = time.Now()
			h.live.leave(s)
			require.LessOrEqual(t, time.Since(begin), bounded.Moment)
		}
		require.EqualValues(t, 1, calls.Load(), "one call at a time")

		require.Equal(t, 1, strings.Count(log.String(), "section does not return"), log.String())

		release()
		synctest.Wait()
		h.live.every = 0
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				assert.Contains(t, get(h, "/").Body.String(), "<em>3 lists</em>")
			})
		}
		readers.Wait()
	})
}

// The first call may be of a poller whose last viewer goes before the call has had its time.
func TestASectionIsLateWhoeverHasCalledIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		defer close(block)
		h := newHandler(t, newDatabase(), func(c *Config) {
			c.Sections = []Section{{Title: "Stuck",
				Render: func(context.Context) (template.HTML, error) { <-block; return "", nil }}}
		})
		s := h.live.join()
		time.Sleep(time.Second)
		h.live.leave(s)
		h.live.every = 0
		begin := time.Now()
		for range 3 {
			require.Contains(t, get(h, "/").Body.String(), "this part cannot be shown")
		}
		require.Equal(t, readTimeout, time.Since(begin), "the first waits, and no other")
	})
}

func TestASectionThatHeedsItsContextSaysWhatWasSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newDatabase(), func(c *Config) {
			slow := func(ctx context.Context) (template.HTML, error) {
				<-ctx.Done()
				return "", context.Cause(ctx)
			}
			c.Sections = []Section{{Title: "Slow", Render: slow}, {Title: "Slow too", Render: slow}}
		})
		h.live.every = 0
		begin := time.Now()
		body := get(h, "/").Body.String()
		require.Equal(t, 2, strings.Count(body, "the database did not answer in time"))
		require.Equal(t, readTimeout, time.Since(begin), "they do not wait for each other")
	})
}

func TestAClientThatIsGoneWaitsForNoReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newDatabase(), nil)
		h.shared.next = &shot{done: make(chan struct{})} // of somebody who never reads
		gone, cancel := context.WithCancel(ctx)
		cancel()
		begin := time.Now()
		require.Nil(t, h.readShared(gone))
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
		h.ServeHTTP(w, r.WithContext(gone))
		require.Empty(t, w.Body.String())
		require.Zero(t, time.Since(begin))
	})
}
