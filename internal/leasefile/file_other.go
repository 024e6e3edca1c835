//go:build !linux

package leasefile

import (
	"context"
	"errors"
	"fmt"

	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/schedlock/driver"
)

// A File does not exist here: nothing but the TTL tells of a death.
type File struct{}

func Open(dbPath string, _ *inotify.Watch) (*File, error) {
	return nil, fmt.Errorf("lease file %s-lease: needs Linux: %w", dbPath, errors.ErrUnsupported)
}

func Find(dbPath string, _ *inotify.Watch) (*File, error) { return Open(dbPath, nil) }

func (*File) Hold(driver.Token) (Byte, error) {
	return Byte{}, errors.ErrUnsupported
}

func (*File) Probe(driver.Token, ...driver.Token) (State, error) {
	return State{}, errors.ErrUnsupported
}

func (*File) ProbeWithout(driver.Token, func(string, Span) (driver.Token, bool),
	[]driver.Token) (State, []driver.Token, error) {
	return State{}, nil, errors.ErrUnsupported
}

func (*File) Await(ctx context.Context, _ driver.Token, _ State, _ ...driver.Token) {
	<-ctx.Done()
}

func (*File) Close() {}
