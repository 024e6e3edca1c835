//go:build linux

package faults

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// stormName is what several faults at once are called in the table.
const stormName = "two or three of these at once"

// Storm injects random faults of those that may be injected, one after the
// other or two or three at once, until a number of rounds is done (0: any) or,
// between two rounds, until a length of time has passed (0: any). It returns
// the faults that could not be injected, with the reason.
func (c *Cluster) Storm(ctx context.Context, faults []Fault, rounds int,
	length time.Duration) (map[string]error, error) {
	refused, begin := map[string]error{}, time.Now()
	for round := 0; (rounds == 0 || round < rounds) && (length == 0 ||
		time.Since(begin) < length); round++ {
		var some []Fault
		for range 1 + c.random.IntN(12)/9*(1+c.random.IntN(2)) { // one in four: two or three
			f := faults[c.random.IntN(len(faults))]
			twice := slices.ContainsFunc(some, func(o Fault) bool { return o.Name == f.Name })
			if len(some) == 0 || !twice && !f.Alone && !some[0].Alone {
				some = append(some, f)
			}
		}
		f := some[0]
		if len(some) > 1 {
			f = atOnce(some)
		}
		err := c.Inject(ctx, f)
		switch {
		case errors.Is(err, errCannotInject):
			refused[f.Name] = err
			sleep(ctx, 10*time.Millisecond)
		case err != nil:
			return refused, err
		}
	}
	return refused, nil
}

// atOnce makes one fault of several that begin at random moments within a TTL.
// Bound: TTL + 2 s when the last is over; no leader need stay.
func atOnce(some []Fault) Fault {
	clock := slices.ContainsFunc(some, func(f Fault) bool { return f.Clock })
	rewrites := slices.ContainsFunc(some, func(f Fault) bool { return f.Rewrites || f.Restore })
	return Fault{Name: stormName, Clock: clock, Rewrites: rewrites, Inject: func(
		ctx context.Context, c *Cluster, in *Injection) error {
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			errs  []error
			after []func(context.Context) error
		)
		for _, f := range some {
			pause := time.Duration(c.random.Int64N(int64(c.TTL)))
			wg.Go(func() {
				sleep(ctx, pause)
				part := Injection{}
				err := f.Inject(ctx, c, &part)
				mu.Lock()
				defer mu.Unlock()
				in.idle = in.idle || part.idle
				if part.after != nil {
					after = append(after, part.after)
				}
				if !errors.Is(err, errCannotInject) {
					errs = append(errs, err)
				}
			})
		}
		wg.Wait()
		in.To, in.Bound = bootTime(), c.boundTTL()
		in.after = func(ctx context.Context) error {
			var errs []error
			for _, f := range after {
				errs = append(errs, f(ctx))
			}
			return errors.Join(errs...)
		}
		return errors.Join(errs...)
	}}
}
