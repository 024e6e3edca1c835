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
	maxRows    = 100             // of locks, queues or replicas, that the page shows
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
	locks  table
	queues table
}

// table is what a part shows: nothing at all if there is neither a row nor
// an error.
type table struct {
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
	now time.Time) (locks, queues table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lock == lock && time.Now().Before(t.next) {
		return t.locks, t.queues
	}
	// All share what one of them reads, so it does not end with that one's client.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolsTimeout)
	defer cancel()
	begin := time.Now()
	t.lock, t.locks, t.queues = lock, table{}, table{}
	if s, ok := lock.Store().(interface{ Named() namedlock.Store }); ok {
		rows, err := readLocks(ctx, s.Named(), now)
		t.locks = viewOf(h, "named locks", rows, err)
	}
	if s, ok := lock.Store().(interface{ Queue() taskqueue.Store }); ok {
		rows, err := readQueues(ctx, s.Queue())
		t.queues = viewOf(h, "queues", rows, err)
	}
	t.next = time.Now().Add(max(toolsEvery, toolsShare*time.Since(begin)))
	return t.locks, t.queues
}

func readLocks(ctx context.Context, store namedlock.Store, now time.Time) (rows []lockRow,
	err error) {
	locks, err := named.New(store)
	if err != nil {
		return nil, err
	}
	infos, err := locks.List(ctx)
	for _, i := range infos {
		rows = append(rows, lockRow{i, now.Add(i.Left)})
	}
	return rows, err
}

func readQueues(ctx context.Context, store taskqueue.Store) ([]queue.Count, error) {
	queues, err := queue.New(store)
	if err != nil {
		return nil, err
	}
	return queues.Count(ctx)
}

func viewOf[T any](h *Handler, what string, rows []T, err error) table {
	if err != nil {
		h.cfg.Log.Debug("status page: part", "part", what, "err", err)
		return table{Failed: h.cfg.PublicError(err)}
	}
	return newTable(rows)
}

func newTable[T any](rows []T) table {
	shown := min(len(rows), maxRows)
	return table{Rows: rows[:shown], More: len(rows) - shown}
}
