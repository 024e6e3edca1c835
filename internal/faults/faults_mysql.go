//go:build linux

package faults

import (
	"context"
	"fmt"
)

// ChangeBehindReader: somebody alters the table of the lock row for more than a TTL, as a
// transaction that has read it stays open. All others wait behind that. At the end nobody
// leads. Bound: TTL + 2 s after the transaction has ended.
func ChangeBehindReader(ctx context.Context, c *Cluster, in *Injection, s *mysqlServer,
	_ *process, _ Belief) error {
	if s.galera() {
		return fmt.Errorf("%w: Galera ends the reader", errCannotInject)
	}
	end, err := block(ctx, s.dbs[0], `USE `+myDatabase, `START TRANSACTION`,
		`SELECT count(*) FROM scheduler_lock`)
	if err != nil {
		return err
	}
	changed := make(chan error, 1)
	go func() {
		changed <- execOn(ctx, s.dbs[0], `USE `+myDatabase,
			`ALTER TABLE scheduler_lock COMMENT = 'altered'`)
	}()
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	select {
	case err := <-changed:
		in.note("the table was altered although it was read, or was not: %v", err)
		end()
	default:
		end()
		err = <-changed
	}
	in.Bound = c.boundTTL()
	return err
}
