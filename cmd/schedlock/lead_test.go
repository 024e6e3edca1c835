package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/memory"
)

// What ends the lease may be known before the end of the campaign's context has been seen.
func TestNothingIsPromisedUnderALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	lock, err := schedlock.New(memory.New())
	require.NoError(t, err)
	lease, err := lock.Acquire(t.Context())
	require.NoError(t, err)
	s := &sidecar{lock: lock, lease: lease, validFor: time.Second}
	term, valid := s.promise()
	require.Equal(t, lease.Term(), term)
	require.Equal(t, time.Second, valid)
	require.WithinDuration(t, time.Now().Add(valid), s.promised, time.Minute)
	promised := s.promised
	require.NoError(t, lease.Release(t.Context()))
	term, valid = s.promise()
	require.Zero(t, term)
	require.Zero(t, valid)
	require.Equal(t, promised, s.promised)
}
