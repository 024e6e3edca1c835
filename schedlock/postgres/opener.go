package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/schedlock/schedlock/driver"
)

// An OpenFunc is what Opener and Use return, and what startup.Config takes:
//
//	startup.Config{Open: postgres.Opener("postgres://app@db/app")}
type OpenFunc = driver.OpenFunc[*Store]

// Opener connects to the database that url names, as [Open] does, brings the
// tables up to date, and checks the rights of the role. An outage at this
// moment, or a right that is missing, is an error: a process that cannot reach
// its database at its start should not pretend to run.
func Opener(url string, opts ...Option) OpenFunc {
	return ready(func(ctx context.Context) (*Store, error) { return Open(ctx, url, opts...) })
}

// Use is [Opener] with the settings of the app's own pool: server, role, TLS,
// tracer, how old a connection may become, and of its hooks those that make a
// connection, BeforeConnect and AfterConnect. The others (PrepareConn,
// BeforeAcquire, AfterRelease, BeforeClose, ShouldPing) are about how the app uses
// its connections, and are not called; nor is OnNotification. The connections are
// the store's own, so an exhausted pool does not matter to it; the app's pool
// stays the app's to close.
func Use(pool *pgxpool.Pool, opts ...Option) OpenFunc {
	return ready(func(ctx context.Context) (*Store, error) {
		if pool == nil {
			return nil, errors.New("the *pgxpool.Pool is nil")
		}
		return open(ctx, pool.Config(), opts)
	})
}

// ready migrates and checks what open has opened.
func ready(open func(context.Context) (*Store, error)) OpenFunc {
	return driver.Ready(open, func(ctx context.Context, s *Store) error {
		err := s.use(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return hidden(ctx, s.on(conn))
		}) // of the schema's version, too
		if err == nil {
			err = s.Migrate(ctx)
		}
		if err == nil {
			err = s.Check(ctx)
		}
		return err
	})
}
