//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
)

// forgotten are the moments at which the harness has deleted all cursors, see History.
type forgotten struct {
	mu   sync.Mutex
	anew []Anew
}

func (f *forgotten) add(a Anew) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.anew = append(f.anew, a)
}

func (f *forgotten) list() []Anew {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.anew)
}

// forgetJobs deletes the cursors, between begin, from which on whoever decides waits, and end.
func (f *forgotten) forgetJobs(ctx context.Context, conn *sql.Conn, begin, end string) error {
	if err := execEach(ctx, conn, begin); err != nil {
		return err
	}
	var anew Anew
	if err := conn.QueryRowContext(ctx, sqlNewestRun).Scan(&anew.Newest); err != nil {
		return err
	}
	var err error
	if anew.Jobs, err = readJobs(ctx, conn); err != nil {
		return err
	}
	if err := execEach(ctx, conn, sqlForgetJobs, end); err != nil {
		return err
	}
	f.add(anew)
	return nil
}

func execEach(ctx context.Context, conn *sql.Conn, queries ...string) error {
	for _, query := range queries {
		if _, err := conn.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("%.60s: %w", query, err)
		}
	}
	return nil
}
