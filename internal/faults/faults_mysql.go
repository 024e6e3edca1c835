//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
)

// mysql returns the server under test; errCannotInject if the database is another.
func (c *Cluster) mysql() (*mysqlServer, error) {
	if s, ok := c.db.(*mysqlServer); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: the database is not MariaDB", errCannotInject)
}

// ChangeBehindReader: somebody alters the table of the lock row for more than a TTL, as a
// transaction that has read it stays open. All others wait behind that. At the end nobody
// leads. Bound: TTL + 2 s after the transaction has ended.
func ChangeBehindReader(ctx context.Context, c *Cluster, in *Injection) error {
	s, err := c.mysql()
	if err != nil {
		return err
	}
	if s.galera() {
		return fmt.Errorf("%w: Galera ends the reader", errCannotInject)
	}
	if _, _, err := c.target(ctx); err != nil {
		return err
	}
	err = s.use(ctx, func(ctx context.Context, reader *sql.Conn) error {
		if err := execEach(ctx, reader, `START TRANSACTION`,
			`SELECT count(*) FROM scheduler_lock`); err != nil {
			return err
		}
		changed := make(chan error, 1)
		go func() {
			changed <- s.exec(ctx, `ALTER TABLE scheduler_lock COMMENT = 'altered'`)
		}()
		c.sleep(ctx, c.outage())
		c.mustBeNobody(in)
		select {
		case err := <-changed:
			return fmt.Errorf("the table was altered although it was read: %w", err)
		default:
		}
		if err := execEach(ctx, reader, `ROLLBACK`); err != nil {
			return err
		}
		return <-changed
	})
	in.Bound = c.boundTTL()
	return err
}
