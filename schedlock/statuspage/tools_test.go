package statuspage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks/queue"
)

func TestNamedLocksAndQueuesAreShownIfThereAreAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		h := newHandler(t, db, nil)
		page := func() string { return get(h, "/").Body.String() }
		require.NotContains(t, page(), "Named locks")
		require.NotContains(t, page(), "Queues")

		locks, err := named.New(db.Named(),
			named.WithOwner(driver.Owner{PID: 77, Hostname: "web-7"}))
		require.NoError(t, err)
		held, err := locks.TryLock(ctx, "import <b>")
		require.NoError(t, err)
		defer func() { _ = held.Unlock(ctx) }()
		_, err = locks.OncePer(ctx, "report", time.Hour)
		require.NoError(t, err)
		queues, err := queue.New(db.Queue())
		require.NoError(t, err)
		_, err = queues.Add(ctx, "mail", 0, "1", "2", "3")
		require.NoError(t, err)
		_, err = queues.AddAfter(ctx, "mail", time.Hour, 0, "later")
		require.NoError(t, err)
		captured, err := queues.Capture(ctx, "mail", 1)
		require.NoError(t, err)
		require.NoError(t, queues.Fail(ctx, captured[0], errors.New("no"), 0))

		time.Sleep(toolsEvery)
		text := page()
		require.Contains(t, text, "import &lt;b&gt;")
		require.Contains(t, text, "pid 77 on web-7")
		require.Regexp(t, `(?s)report.*rests`, text)
		require.Regexp(t, `(?s)data-label="queue">mail<.*pending" class="num">2<`+
			`.*delayed" class="num">1<.*in progress" class="num">0<`+
			`.*failed" class="num"><span class="tag bad">1<`, text)

		_, err = locks.Revoke(ctx, named.Key{Kind: named.KindLock, Name: "import <b>"}, held.Term(),
			"ann", "it hangs")
		require.NoError(t, err)
		require.NotContains(t, page(), "revoked by ann", "it is read every 5 s at the most")
		time.Sleep(toolsEvery)
		require.Contains(t, page(), "revoked by ann: it hangs")

		for i := range 2 * maxRows {
			_, err = queues.Add(ctx, fmt.Sprintf("of user %03d", i), 0, "1")
			require.NoError(t, err)
		}
		time.Sleep(toolsEvery)
		text = page()
		require.Equal(t, maxRows, strings.Count(text, `data-label="queue"`))
		require.Contains(t, text, "and 101 more")
	})
}

// hung is a database whose queue cannot be counted.
type hung struct{ *database }

type hungQueue struct{ taskqueue.Store }

func (h hung) Queue() taskqueue.Store { return hungQueue{h.database.Queue()} }

func (hungQueue) Count(ctx context.Context) ([]taskqueue.Count, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestAQueueThatCannotBeCountedKeepsNoOtherPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		locks, err := named.New(db.Named())
		require.NoError(t, err)
		_, err = locks.OncePer(ctx, "report", time.Hour)
		require.NoError(t, err)
		h := newHandler(t, hung{db}, nil)
		h.live.every = 0 // pages do not wait for each other
		begin := time.Now()
		gone, cancel := context.WithCancel(ctx)
		cancel()
		h.tools.read(gone, h, h.app.Lock(), time.Now()) // for a client that is gone
		for range 3 {
			w := get(h, "/")
			require.Equal(t, 200, w.Code)
			require.Contains(t, w.Body.String(), "report")
			require.Contains(t, w.Body.String(), "the database did not answer in time")
		}
		require.Equal(t, toolsTimeout, time.Since(begin), "one reading for all")
		time.Sleep(toolsShare*toolsTimeout - time.Second)
		begin = time.Now()
		get(h, "/")
		require.Zero(t, time.Since(begin), "counting a large table takes a hundredth of the time")
		time.Sleep(time.Second)
		get(h, "/")
		require.Equal(t, time.Second+toolsTimeout, time.Since(begin))
	})
}
