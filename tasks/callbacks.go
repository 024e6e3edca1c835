package tasks

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/ledger"
)

const (
	callbackLimit = 10 * time.Second // of one call
	maxCallbacks  = 1000             // calls that wait for their turn
	maxHung       = 10               // calls that have not returned, though their time was up
)

// callbacks calls one function of the app, such as OnRun, once for each
// thing that it is told, in order. It does so on goroutines of its own, so that
// no run waits for it, and whatever the function does: it may panic, block, or
// end its goroutine. A call that takes longer than its limit is left alone, and
// the next one begins.
type callbacks struct {
	name string // of the option: "OnRun"
	log  *slog.Logger

	mu      sync.Mutex
	waiting []*callback
	current *callback     // nil: none is under way
	idle    chan struct{} // closed when all was called; nil: it is
	hung    int
	lost    int // calls that were not made since the last line about it
}

type callback struct {
	job string
	do  func()
}

// call lets do be called, soon.
func (c *callbacks) call(job string, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= maxCallbacks || c.hung >= maxHung {
		c.lose(1)
		return
	}
	if c.lost > 0 {
		c.log.Warn(c.name+" is told again", "missed", c.lost)
		c.lost = 0
	}
	c.waiting = append(c.waiting, &callback{job, do})
	if c.idle == nil {
		c.idle = make(chan struct{})
		go c.work()
	}
}

// lose counts n calls that are not made, and says it the first time; mu is held.
func (c *callbacks) lose(n int) {
	if c.lost == 0 {
		c.log.Error(c.name+" does not keep up: it is not told of everything", "hung", c.hung,
			"waiting", len(c.waiting))
	}
	c.lost += n
}

// work calls what waits, one after the other.
func (c *callbacks) work() {
	for {
		c.mu.Lock()
		if c.current = nil; len(c.waiting) == 0 {
			close(c.idle)
			c.idle = nil
			c.mu.Unlock()
			return
		}
		x := c.waiting[0]
		c.current, c.waiting = x, c.waiting[1:]
		c.mu.Unlock()
		result := bounded.Go(func() error { x.do(); return nil })
		select {
		case err := <-result:
			c.ended(x, err)
		case <-time.After(callbackLimit):
			c.leave(x, result)
		}
	}
}

// ended says so if a call has not returned.
func (c *callbacks) ended(x *callback, err error) {
	p, ok := errors.AsType[*bounded.Panic](err)
	if !ok {
		return
	}
	if text, panicked := strings.CutPrefix(p.Error(), "panic: "); panicked {
		c.log.Error(c.name+" has panicked", "job", x.job, "panic", ledger.Cut(text))
	} else {
		c.log.Error(c.name+" has called runtime.Goexit instead of returning", "job", x.job)
	}
}

// leave goes on without a call that takes too long.
func (c *callbacks) leave(x *callback, result <-chan error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hung++
	c.log.Error(c.name+" does not return: nothing waits for it any more", "job", x.job, "limit",
		callbackLimit)
	if c.hung >= maxHung {
		c.lose(len(c.waiting))
		c.waiting = nil
	}
	go func() {
		c.ended(x, <-result)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hung--
	}()
}

// wait waits until all was called that is to be, but not for longer than limit.
func (c *callbacks) wait(limit time.Duration) {
	c.mu.Lock()
	idle, job, n := c.idle, "", len(c.waiting)
	if c.current != nil {
		job, n = c.current.job, n+1
	}
	c.mu.Unlock()
	if idle == nil {
		return
	}
	said := time.AfterFunc(min(time.Second, limit), func() {
		c.log.Info("stopping waits for "+c.name, "job", job, "calls", n)
	})
	defer said.Stop()
	if !bounded.Wait(idle, limit) {
		c.log.Warn("stopped without waiting for "+c.name+" any longer", "limit", limit)
	}
}
