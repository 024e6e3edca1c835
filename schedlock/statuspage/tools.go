package statuspage

import (
	"context"
	"sync"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/tasks/queue"
)

const (
	maxLocks   = 100 // that the page shows
	maxQueues  = 100
	toolsShare = 100             // of the time: they take at most one part in so many
	toolsEvery = 5 * time.Second // how often they are read at the most
	// counting a large queue may take longer; the rest of the page does not wait for it
	toolsTimeout = time.Second
)

// tools are the named locks and the queues of the database, as they were read
// last. All pages share one reading.
type tools struct {
	mu     sync.Mutex
	lock   *schedlock.Lock // whose store it was
	next   time.Time       // when they may be read again
	locks  toolsView
	queues toolsView
}

// toolsView is what a part shows: nothing at all if there is neither a row nor
// an error.
type toolsView struct {
	Rows   any
	More   int
	Failed string
}

// A lockRow is a named lock and until when it stands so, unless it is extended.
type lockRow struct {
	named.Info
	Until time.Time
}

// read looks at both, if that was not done just before. now is the database's.
func (t *tools) read(ctx context.Context, h *Handler, lock *schedlock.Lock,
	now time.Time) (locks, queues toolsView) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lock == lock && time.Now().Before(t.next) {
		return t.locks, t.queues
	}
	// All share what one of them reads, so it does not end with that one's client.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolsTimeout)
	defer cancel()
	begin := time.Now()
	t.lock, t.locks, t.queues = lock, toolsView{}, toolsView{}
	if s, ok := lock.Store().(interface{ Named() namedlock.Store }); ok {
		t.locks = h.readLocks(ctx, s.Named(), now)
	}
	if s, ok := lock.Store().(interface{ Queue() taskqueue.Store }); ok {
		t.queues = h.readQueues(ctx, s.Queue())
	}
	t.next = time.Now().Add(max(toolsEvery, toolsShare*time.Since(begin)))
	return t.locks, t.queues
}

func (h *Handler) readLocks(ctx context.Context, store namedlock.Store, now time.Time) toolsView {
	locks, err := named.New(store)
	var infos []named.Info
	if err == nil {
		infos, err = locks.List(ctx)
	}
	if err != nil || len(infos) == 0 {
		return toolsView{Failed: h.toolFailed("named locks", err)}
	}
	view := toolsView{More: max(len(infos)-maxLocks, 0)}
	var rows []lockRow
	for _, i := range infos[:len(infos)-view.More] {
		rows = append(rows, lockRow{i, now.Add(i.Left)})
	}
	view.Rows = rows
	return view
}

func (h *Handler) readQueues(ctx context.Context, store taskqueue.Store) toolsView {
	queues, err := queue.New(store)
	var counts []queue.Count
	if err == nil {
		counts, err = queues.Count(ctx)
	}
	if err != nil || len(counts) == 0 {
		return toolsView{Failed: h.toolFailed("queues", err)}
	}
	view := toolsView{More: max(len(counts)-maxQueues, 0)}
	view.Rows = counts[:len(counts)-view.More]
	return view
}

// toolFailed is what the part says; "" for no error.
func (h *Handler) toolFailed(what string, err error) string {
	if err != nil {
		h.cfg.Log.Debug("status page: part", "part", what, "err", err)
	}
	return h.public(err)
}
