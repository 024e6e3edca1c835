package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/schedlock/internal/bounded"
)

// All but the lock itself goes over two small pools, empty until they are used.
// What the scheduler needs to start and end runs has one of its own, which
// nothing else can use up: named locks, queues, orders and the history, each of
// which may wait for somebody's transaction, share the other.

const (
	defaultPoolSize = 4
	maxPoolSize     = 1000

	// statementTimeout bounds each statement on a pool, the wait for a connection
	// included, whatever context the caller has: a connection that is dead without
	// a word would otherwise hold the caller for as long as TCP hopes.
	statementTimeout = 10 * time.Second

	// pingTimeout bounds the question whether a connection that was idle still
	// works, and how long the end of a broken one keeps its place in the pool.
	pingTimeout = 2 * time.Second
)

// WithRunConnections sets how many connections the scheduler's own statements
// (which start and end runs, and read what is due) may use: 1 to 1,000, default
// 4. Nothing else uses them. What the URL or the app's pool says of the size of
// a pool does not count here.
func WithRunConnections(most int) Option {
	return func(s *Store) error {
		if most < 1 || most > maxPoolSize {
			return fmt.Errorf("option WithRunConnections: %d is not from 1 to %d connections", most,
				maxPoolSize)
		}
		s.runsSize = most
		return nil
	}
}

// WithSharedConnections sets how many connections all else (named locks,
// elections, queues, orders and the history) may use together: 2 to 1,000,
// default 4. What may have to wait for a transaction of somebody else, such as
// adding a task or taking a lock, never uses the last of them.
func WithSharedConnections(most int) Option {
	return func(s *Store) error {
		if most < 2 || most > maxPoolSize {
			return fmt.Errorf("option WithSharedConnections: %d is not from 2 to %d connections",
				most, maxPoolSize)
		}
		s.sharedSize = most
		return nil
	}
}

// openPools makes the pools; they do not connect yet. Of the hooks of the app's
// pool only those of a new connection are used: the others are about how the app
// uses its connections.
func (s *Store) openPools(config *pgxpool.Config) error {
	config = config.Copy()
	config.ConnConfig = s.config.Copy()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = time.Minute
	config.PingTimeout = pingTimeout
	config.AfterRelease, config.ShouldPing = nil, nil
	// It goes before the app's BeforeAcquire, too, which pgx has deprecated.
	config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil }
	config.BeforeClose = func(conn *pgx.Conn) {
		// pgx would wait up to 15 s for the farewell of a server that is silent.
		inner := conn.PgConn().Conn()
		time.AfterFunc(pingTimeout, func() { _ = inner.Close() })
	}
	for _, p := range []struct {
		pool *statementPool
		size int
		runs bool
	}{{&s.runs, s.runsSize, true}, {&s.pool, s.sharedSize, false}} {
		config := config.Copy()
		config.MaxConns = int32(p.size)
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			return s.welcome(ctx, conn, p.runs)
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil { // a configuration that no option allows
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		*p.pool = statementPool{Pool: pool, s: s, borrows: p.runs}
	}
	s.patient = s.pool
	s.patient.places = make(chan struct{}, s.sharedSize-1)
	return nil
}

// A statementPool is a pool whose single statements run at READ COMMITTED, and
// end in time.
type statementPool struct {
	Pool    *pgxpool.Pool
	s       *Store
	borrows bool          // from the lock: see borrow
	places  chan struct{} // how many statements there may be at once; nil: as many as connections
}

// begin is bounded, and where to send one statement.
func (p statementPool) begin(ctx context.Context) (_ context.Context, to committed, end func(),
	err error) {
	if p.borrows {
		if limited, conn, giveBack := p.s.borrow(ctx); conn != nil {
			return limited, p.s.on(conn), giveBack, nil
		}
	}
	ctx, end, err = p.bounded(ctx)
	return ctx, committed{p.Pool, p.s.lent.Load(), p.s.path()}, end, err
}

// bounded bounds what follows; end must be called once it is over.
func (p statementPool) bounded(ctx context.Context) (_ context.Context, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, p.s.bound)
	if p.places == nil {
		return ctx, cancel, nil
	}
	select {
	case p.places <- struct{}{}:
		return ctx, sync.OnceFunc(func() { cancel(); <-p.places }), nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

// tx runs f in a transaction that is bounded as a whole.
func (p statementPool) tx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	ctx, end, err := p.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	return pgx.BeginTxFunc(ctx, p.Pool, p.s.txOptions(pgx.ReadCommitted), func(tx pgx.Tx) error {
		return f(ctx, tx)
	})
}

// insist repeats f while another transaction is in its way: one that keeps a row
// locked, that it deadlocks with, or, where the isolation is strict, that has
// changed what it read. Nothing was written then. It gives up when ctx ends, or
// after statementTimeout if ctx has no deadline.
func (s *Store) insist(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := bounded.Context(ctx, s.bound)
	defer cancel()
	var before error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := f(ctx)
		switch code(err) {
		case codeLockTimeout, codeDeadlock, codeSerialization:
			before = err
		default:
			if err != nil && before != nil && ctx.Err() != nil {
				return fmt.Errorf("%w; gave up: %w", before, context.Cause(ctx))
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; gave up: %w", before, context.Cause(ctx))
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// each calls row for each row of a query, after it was scanned into dest.
func (p statementPool) each(ctx context.Context, dest []any, row func() error, query string,
	args ...any) error {
	ctx, to, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	rows, err := to.Query(ctx, query, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, native(dest), row)
	}
	return err
}

func (p statementPool) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	ctx, to, end, err := p.begin(ctx)
	if err != nil {
		return batchRow{err: err}
	}
	return boundRow{to.QueryRow(ctx, query, args...), end}
}

func (p statementPool) Exec(ctx context.Context, query string,
	args ...any) (pgconn.CommandTag, error) {
	ctx, to, end, err := p.begin(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer end()
	return to.Exec(ctx, query, args...)
}

// all returns the value of each row, as each, and explains the error. With an
// error it returns none.
func all[T any](ctx context.Context, p statementPool, dest []any, value func() T, query string,
	args ...any) ([]T, error) {
	list := []T{}
	if err := p.each(ctx, dest, func() error {
		list = append(list, value())
		return nil
	}, query, args...); err != nil {
		return nil, p.s.explain(err)
	}
	return list, nil
}

// boundRow ends with its Scan.
type boundRow struct {
	row pgx.Row
	end func()
}

func (r boundRow) Scan(dest ...any) error {
	defer r.end()
	return r.row.Scan(dest...)
}
