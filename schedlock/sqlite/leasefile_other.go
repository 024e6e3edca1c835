//go:build !linux

package sqlite

import (
	"context"
	"errors"
	"fmt"

	"example.com/schedlock/schedlock"
)

// A leaseFile does not exist here: nothing but the TTL tells of a death.
type leaseFile struct{}

func openLeaseFile(dbPath string) (*leaseFile, error) {
	return nil, fmt.Errorf("lease file %s-lease: needs Linux: %w", dbPath, errors.ErrUnsupported)
}

func findLeaseFile(dbPath string) (*leaseFile, error) { return openLeaseFile(dbPath) }

func (*leaseFile) hold(schedlock.Token) (leaseByte, error) {
	return leaseByte{}, errors.ErrUnsupported
}

func (*leaseFile) probe(schedlock.Token, ...schedlock.Token) (leaseState, error) {
	return leaseState{}, errors.ErrUnsupported
}

func (*leaseFile) await(ctx context.Context, _ schedlock.Token, _ leaseState, _ ...schedlock.Token) {
	<-ctx.Done()
}

func (*leaseFile) close() error { return nil }
