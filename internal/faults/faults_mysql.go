//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
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
	begin := func(queries ...string) (*sql.Conn, error) {
		conn, err := s.dbs[0].Conn(ctx)
		if err != nil {
			return nil, err
		}
		return conn, execEach(ctx, conn, append([]string{`USE ` + myDatabase}, queries...)...)
	}
	reader, err := begin(`START TRANSACTION`, `SELECT count(*) FROM scheduler_lock`)
	if err != nil {
		return err
	}
	defer reader.Close()
	defer discard(reader)
	other, err := begin()
	if err != nil {
		return err
	}
	defer other.Close()
	changed := make(chan error, 1)
	go func() {
		changed <- execEach(ctx, other, `ALTER TABLE scheduler_lock COMMENT = 'altered'`)
	}()
	c.sleep(ctx, c.outage())
	c.mustBeNobody(in)
	select {
	case err := <-changed:
		in.note("the table was altered although it was read, or was not: %v", err)
	default:
		err = execEach(ctx, reader, `ROLLBACK`)
		err = errors.Join(err, <-changed)
	}
	in.Bound = c.boundTTL()
	return err
}
