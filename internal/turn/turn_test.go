package turn

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATurnIsOnesAtATime(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	x := New()
	require.NoError(t, x.Take(ctx))
	require.True(t, x.Taken())
	require.False(t, x.TryTake())
	waiter := make(chan error)
	go func() { waiter <- x.Take(ctx) }()
	x.Give()
	require.NoError(t, <-waiter, "it waits for its turn")
	require.True(t, x.Taken())
	go func() { waiter <- x.Take(ctx) }()
	cancel(io.EOF)
	require.Equal(t, io.EOF, <-waiter, "but no longer than its context lasts")
	x.Give()
	require.False(t, x.Taken())
	require.True(t, x.TryTake())
}
