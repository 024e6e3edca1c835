//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock/ledger"
)

// A loadTest is one cluster under load, and what became of it.
type loadTest struct {
	strict bool
	lasts  time.Duration // with each leader

	// by the wall clock, in Unix microseconds: between them the load was complete
	from, to int64
	told     time.Duration // when the leader was told to stop
}

func TestNothingUnderLoadStarvesTheScheduler(t *testing.T) {
	missing.Long(t, "takes 20 seconds")
	if *loadFor == 0 {
		missing.OnlyFull(t, "keeps a machine busy")
	}
	run := newTestRun(t)
	var together together
	for n, g := range []group{{name: "load"}, {name: "load on a server", on: kindPostgres}} {
		l := &loadTest{strict: *loadFor > 0, lasts: max(*loadFor, 10*time.Second) / 2}
		g.load, g.locks, g.sessions, g.judge = true, true, true, l.judge
		together.run(t, g.name, func(t *testing.T) { run.with(t, g, 600+n, l.run) })
		if l.strict { // one after the other
			together.Wait()
		}
	}
	together.Wait()
}

// run waits until all of the load is there, and lets one process lead, and then
// another.
func (l *loadTest) run(ctx context.Context, c *Cluster) (map[string]error, error) {
	var missing string
	if !await(ctx, 2*time.Minute, func() bool {
		missing = l.missing(ctx, c)
		return missing == ""
	}) {
		return nil, errors.New("the load is not complete: " + missing)
	}
	l.from = time.Now().UnixMicro()
	sleep(ctx, l.lasts)
	p, _, err := c.target(ctx)
	if err != nil {
		return nil, err
	}
	l.told = bootTime()
	p.terminate()
	if _, _, err := c.other(ctx, p); err != nil {
		return nil, err
	}
	sleep(ctx, l.lasts)
	l.to = time.Now().UnixMicro()
	return nil, nil
}

// missing names what is not there yet, "" if all is.
func (l *loadTest) missing(ctx context.Context, c *Cluster) string {
	sleep(ctx, 200*time.Millisecond)
	leader, _ := c.leader()
	if leader == nil {
		return "a leader"
	}
	if records, err := readRecords(leader.file("log")); err != nil ||
		!slices.ContainsFunc(records, func(r Record) bool { return r.Kind == KindHung }) {
		return "an OnRun that hangs"
	}
	var h History
	if err := c.db.Read(ctx, &h); err != nil {
		return err.Error()
	}
	if n := h.waiting(jobAsked); n < manyRequests {
		return fmt.Sprintf("%d of %d requests", manyRequests-n, manyRequests)
	}
	return ""
}

// manyRequests wait. A leader may begin a few when as many as may wait do, and the job is
// not paused yet.
const manyRequests = ledger.MaxPending * 9 / 10

// waiting counts the requests of a job that have not begun.
func (h *History) waiting(job string) int {
	n := 0
	for _, a := range h.Pending {
		if a.Job == job {
			n++
		}
	}
	return n
}

func (l *loadTest) judge(t *testing.T, h *History) {
	var ran, skipped int
	waiting := h.waiting(jobAsked)
	var latest time.Duration
	for _, row := range h.Ledger {
		if row.Job != jobTick || row.AskedBy != "" || row.Tick < l.from ||
			row.Tick > l.to-int64(time.Second/time.Microsecond) {
			continue
		}
		if !row.Started {
			skipped += int(max(row.Count, 1))
			t.Logf("not run: %+v", row)
			continue
		}
		ran++
		latest = max(latest, time.Duration(row.StartedAt-row.Tick)*time.Microsecond)
	}
	handOver := time.Duration(-1)
	for _, records := range h.Logs {
		for _, r := range records {
			if took := r.At - l.told; r.Kind == KindElected && took > 0 &&
				(handOver < 0 || took < handOver) {
				handOver = took
			}
		}
	}
	t.Logf("%d ticks run, %d not, the latest %v late; hand-over after %v; "+
		"%d requests of the paused job wait", ran, skipped, latest, handOver, waiting)
	assert.GreaterOrEqual(t, waiting, manyRequests, "the load was there to the end")
	due := int(time.Duration(l.to-l.from) * time.Microsecond / time.Second)
	if l.strict {
		assert.Zero(t, skipped, "each tick is run")
		assert.GreaterOrEqual(t, ran, due-2, "each tick is run")
		assert.Less(t, latest, 2*time.Second, "no tick waits long")
		assert.Less(t, handOver, time.Second)
		assert.Positive(t, handOver)
		return
	}
	assert.Greater(t, ran, due/3, "a starved machine may miss some")
	assert.Greater(t, handOver, time.Duration(0))
	assert.Less(t, handOver, keepsSlack)
}
