//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"example.com/schedlock/internal/clock"
)

// A bench measures the contestants.
type bench struct {
	env                       environment
	contestants               []contestant
	calls, handovers, crashes int
	idle, patience            time.Duration
	progress                  io.Writer
	locks                     atomic.Int64 // that were set up

	mu      sync.Mutex
	results map[string]*result
}

// A result is what was measured of one contestant.
type result struct {
	series          series
	handover, crash []int64
	tooSlow         int     // crashes after which nobody led in time
	standby         float64 // seconds of the processor a second
	failed          []string
}

// start is how long a replica may take until it answers.
const start = 40 * time.Second

func (b *bench) measure(ctx context.Context) error {
	b.results = map[string]*result{}
	for _, c := range b.contestants {
		b.results[c.name] = &result{}
	}
	for _, c := range b.contestants {
		if err := b.step(ctx, "operations", c, b.operations); err != nil {
			return err
		}
	}
	// Who sleeps for a second waits for most of the time, so these go side by side.
	var quick, slow []contestant
	for _, c := range b.contestants {
		switch {
		case c.perTick:
		case c.poll < time.Second && c.settle == 0:
			quick = append(quick, c)
		default:
			slow = append(slow, c)
		}
	}
	for _, c := range quick {
		if err := b.step(ctx, "hand-over", c, b.handover(b.handovers)); err != nil {
			return err
		}
	}
	const pairs = 4
	b.sideBySide(ctx, "hand-over", slices.Repeat(slow, pairs),
		b.handover((b.handovers+pairs-1)/pairs))
	b.sideBySide(ctx, "idle", slices.Concat(quick, slow), b.idleCost)
	for i := range b.crashes {
		b.sideBySide(ctx, fmt.Sprint("crash ", i+1), slices.Concat(quick, slow), b.crash)
	}
	return ctx.Err()
}

type measurement func(ctx context.Context, c contestant, r *result) error

func (b *bench) step(ctx context.Context, what string, c contestant, f measurement) error {
	fmt.Fprintf(b.progress, "%s: %s\n", what, c.name)
	var mine result
	if err := f(ctx, c, &mine); err != nil {
		mine.failed = append(mine.failed, what+": "+err.Error())
		fmt.Fprintf(b.progress, "%s: %s: %v\n", what, c.name, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[c.name].add(mine)
	return ctx.Err()
}

func (r *result) add(o result) {
	if o.series.Acquire != nil {
		r.series = o.series
	}
	r.handover = append(r.handover, o.handover...)
	r.crash = append(r.crash, o.crash...)
	r.tooSlow += o.tooSlow
	r.standby += o.standby
	r.failed = append(r.failed, o.failed...)
}

func (b *bench) sideBySide(ctx context.Context, what string, all []contestant, f measurement) {
	if ctx.Err() != nil {
		return
	}
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 300 * time.Millisecond) // they don't start at once
			_ = b.step(ctx, what, c, f)                           // measure looks at ctx
		})
	}
	wg.Wait()
}

// lock sets up a lock, and returns its name, which every peer accepts.
func (b *bench) lock(ctx context.Context, c contestant) (name string, err error) {
	name = fmt.Sprint("l", b.locks.Add(1)) + strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, c.name)
	if c.setup != nil {
		err = c.setup(ctx, b.env, name)
	}
	return name, err
}

// pair starts a holder and a standby.
func (b *bench) pair(ctx context.Context, c contestant) (holder, standby child, err error) {
	lock, err := b.lock(ctx, c)
	if err != nil {
		return holder, standby, err
	}
	if holder, err = startChild(c, b.env, lock, "A"); err != nil {
		return holder, standby, err
	}
	if _, err = holder.expect("HELD", start); err == nil {
		if standby, err = startChild(c, b.env, lock, "B"); err == nil {
			if _, err = standby.expect("READY", start); err == nil {
				return holder, standby, nil
			}
			standby.kill()
		}
	}
	holder.kill()
	return holder, standby, err
}

func (b *bench) operations(ctx context.Context, c contestant, r *result) error {
	if c.leaves {
		return nil
	}
	lock, err := b.lock(ctx, c)
	if err != nil {
		return err
	}
	k, err := startChild(c, b.env, lock, "A")
	if err != nil {
		return err
	}
	defer k.kill()
	if !c.perTick {
		if _, err := k.expect("HELD", start); err != nil {
			return err
		}
		k.say("release")
		if _, err := k.expect("RELEASED", start); err != nil {
			return err
		}
	}
	k.say("series " + strconv.Itoa(b.calls))
	text, err := k.expect("SERIES", b.patience)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), &r.series)
}

// handover hands the lock to and fro, at a random moment of the standby's sleep.
func (b *bench) handover(rounds int) measurement {
	return func(ctx context.Context, c contestant, r *result) error {
		holder, standby, err := b.pair(ctx, c)
		if err != nil {
			return err
		}
		defer holder.kill()
		defer standby.kill()
		for range rounds {
			if err := sleep(ctx, max(c.settle, 150*time.Millisecond), c.poll); err != nil {
				return err
			}
			took, err := b.handOver(holder, standby)
			if err != nil {
				return err
			}
			r.handover = append(r.handover, took)
			holder.say("acquire")
			holder, standby = standby, holder
		}
		return nil
	}
}

func (b *bench) handOver(holder, standby child) (int64, error) {
	holder.say("release")
	from, err := holder.at("RELEASING", start)
	if err != nil {
		return 0, err
	}
	if _, err := holder.expect("RELEASED", start); err != nil {
		return 0, err
	}
	to, err := standby.at("HELD", b.patience)
	if err == nil && to < from {
		err = errors.New("both held the lock")
	}
	return to - from, err
}

// sleep waits for d, and for a random time up to more.
func sleep(ctx context.Context, d, more time.Duration) error {
	if more > 0 {
		d += rand.N(more)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// crash kills the holder at a random moment of its heartbeat.
func (b *bench) crash(ctx context.Context, c contestant, r *result) error {
	holder, standby, err := b.pair(ctx, c)
	if err != nil {
		return err
	}
	defer holder.kill()
	defer standby.kill()
	settle, poll := c.settle+2*time.Second, min(20*time.Second, max(c.poll, c.renew))
	if err := sleep(ctx, settle, poll); err != nil {
		return err
	}
	from := int64(clock.System.Boot())
	holder.kill()
	to, err := standby.at("HELD", b.patience)
	switch {
	case errors.Is(err, errPatience):
		r.tooSlow++
	case err != nil:
		return err
	case to < from:
		return errors.New("both held the lock")
	default:
		r.crash = append(r.crash, to-from)
	}
	return nil
}

func (b *bench) idleCost(ctx context.Context, c contestant, r *result) error {
	if c.watched {
		return nil
	}
	holder, standby, err := b.pair(ctx, c)
	if err != nil {
		return err
	}
	defer holder.kill()
	defer standby.kill()
	if err := sleep(ctx, 4*time.Second, 0); err != nil { // after the start's work
		return err
	}
	used := func() (float64, error) {
		standby.say("cpu")
		text, err := standby.expect("CPU", start)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(text, 64)
	}
	before, err := used()
	if err != nil {
		return err
	}
	if err := sleep(ctx, b.idle, 0); err != nil {
		return err
	}
	after, err := used()
	r.standby = (after - before) / b.idle.Seconds()
	return err
}
