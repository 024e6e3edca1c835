package postgres

import (
	"context"
	"fmt"
	"time"
)

// SQLCaptureTasks is what Capture sends.
func SQLCaptureTasks(limit int) string { return fmt.Sprintf(sqlCaptureTasks, limit) }

const SQLMendTasks = sqlMendTasks

// Hurry bounds statements that begin from now on by less than statementTimeout.
// Nobody may use the store meanwhile.
func (s *Store) Hurry(bound time.Duration) { s.bound = bound }

// PrimeFor lets what a standby prepares take longer. Nobody may use the store meanwhile.
func (s *Store) PrimeFor(d time.Duration) { s.primeFor = d }

// HoldMending keeps Capture from looking for what a step of the clock has left
// behind in a queue, until release is called.
func (s *Store) HoldMending(queue string) (release func()) {
	held, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s.mending.Due(queue, func() { close(held); <-end })
	}()
	<-held
	return func() { close(end); <-ended }
}

// BreakUnseen closes the lock's connection as something does whose error nobody
// looks at.
func (s *Store) BreakUnseen(ctx context.Context) error {
	if err := s.turn.Take(ctx, s.closed); err != nil {
		return err
	}
	defer s.turn.Give()
	return s.conn.Close(ctx)
}

// HoldTurn keeps the lock's connection busy.
func (s *Store) HoldTurn(ctx context.Context) (release func(), err error) {
	return s.turn.Give, s.turn.Take(ctx, s.closed)
}

const (
	BorrowWait = borrowWait
	PrimeFor   = primeFor
)

// Borrow lets statements of runs go over the lock's connection for so long after an
// acquisition, as if this replica had stood by on it. They wait so long for it.
func (s *Store) Borrow(ctx context.Context, lasts, wait time.Duration) error {
	if err := s.turn.Take(ctx, s.closed); err != nil {
		return err
	}
	defer s.turn.Give()
	s.primeFor = max(s.primeFor, lasts)
	s.prime(ctx)
	s.borrowFor, s.borrowWait = lasts, wait
	return nil
}
