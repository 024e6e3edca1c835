// Package deadline bounds what a caller has not bounded.
package deadline

import (
	"context"
	"time"
)

// Default returns ctx, which ends after limit unless it has a deadline of its own.
func Default(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}
