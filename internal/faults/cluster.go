//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/tempserver"
	"example.com/schedlock/schedlock/driver"
)

// Config describes a cluster.
type Config struct {
	Dir       string // for its files; it must exist
	Processes int
	SameOwner bool // all processes say that they are pid 1 on one host
	Seed      uint64
	Logf      func(format string, args ...any)
	Shape
}

// Shape is what all processes of a cluster have in common.
type Shape struct {
	TTL       time.Duration
	Heartbeat time.Duration
	Tick      time.Duration // of the quick job
	Drain     time.Duration
	// after the end of a leader's session, where there are sessions; 0: only the TTL counts
	Grace  time.Duration
	Locks  bool // they use named locks and a queue, too
	Load   bool // they are under load, with Locks (see load.go); nobody else asks for anything
	Frugal bool // each has one processor
}

// A Cluster is several processes of the test program on one database. What
// ends is started again after a moment. Its faults are injected one after the
// other.
type Cluster struct {
	Config
	db      Database
	random  *rand.Rand // what the faults choose
	keepers sync.WaitGroup
	closing chan struct{}
	users   users

	clockSet atomic.Bool

	mu         sync.Mutex
	restarts   *rand.Rand
	slots      []*process // nil: none runs
	all        []*process
	control    []Control
	failed     int // starts that failed
	exits      []Exit
	forgot     []Span
	rewritten  []Span
	promotions []Span
	stepped    []Span
	injections []Injection
}

// restartPause is the longest pause before a process is started again.
const restartPause = 300 * time.Millisecond

// NewCluster starts the processes and waits until one leads.
func NewCluster(ctx context.Context, cfg Config, db Database) (*Cluster, error) {
	c := &Cluster{
		Config: cfg, db: db, closing: make(chan struct{}),
		random:   rand.New(&lockedSource{src: rand.NewPCG(cfg.Seed, 1)}),
		restarts: rand.New(rand.NewPCG(cfg.Seed, 2)),
		slots:    make([]*process, cfg.Processes), control: make([]Control, cfg.Processes),
	}
	for slot := range c.slots {
		c.keepers.Go(func() { c.keep(slot) })
	}
	if _, err := c.settleWithin(ctx, startLimit, bootTime(), false); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if c.users.never = c.Load; !c.Load {
		c.users.start(c)
	}
	return c, nil
}

// keep runs the processes of one slot, one after the other.
func (c *Cluster) keep(slot int) {
	for n := 1; ; n++ {
		c.mu.Lock()
		select {
		case <-c.closing:
			c.mu.Unlock()
			return
		default:
		}
		p, err := startProcess(c.Dir, c.settings(slot, n))
		if err == nil {
			c.slots[slot], c.all = p, append(c.all, p)
		}
		c.mu.Unlock()
		if err != nil {
			c.Logf("start: %v", err)
		} else {
			<-p.exited
			c.ended(p)
		}
		c.mu.Lock()
		pause := time.Duration(c.restarts.Int64N(int64(restartPause)))
		c.mu.Unlock()
		select {
		case <-c.closing:
			return
		case <-time.After(pause):
		}
	}
}

func (c *Cluster) settings(slot, n int) Settings {
	s := Settings{
		Name: fmt.Sprintf("p%d.%d", slot, n), Slot: slot, Shape: c.Shape,
		Quiet:     slot > 1 && slot == len(c.slots)-1,
		ExitStuck: slot%2 == 1, Control: c.control[slot],
	}
	if c.SameOwner {
		s.Owner = &driver.Owner{PID: 1, Hostname: "same"}
	}
	c.db.Settings(&s)
	return s
}

// The exit codes of Go itself: a data race, a panic.
const (
	exitRace  = 66
	exitPanic = 2
)

// ended judges an exit. A start that failed because of the database is what
// the design asks for; anything else that nobody wanted is not.
func (c *Cluster) ended(p *process) {
	records, err := readRecords(p.file("log"))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots[p.slot] = nil
	broken := p.code == exitRace || p.code == exitPanic
	if p.isExpected() && !broken {
		return
	}
	if err == nil && len(records) == 0 && p.code == exitFailed {
		c.failed++
		return
	}
	c.exits = append(c.exits, Exit{Process: p.name, At: p.endedAt,
		Code: p.code, Stderr: tail(p.file("stderr"), 4000)})
}

// running returns the processes that run now.
func (c *Cluster) running() []*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ps []*process
	for _, p := range c.slots {
		if p != nil && p.alive() {
			ps = append(ps, p)
		}
	}
	return ps
}

// leader returns the process that leads now, nil if none does.
func (c *Cluster) leader() (leader *process, belief Belief) {
	for _, p := range c.running() {
		if b, ok := p.leads(); ok && b.Term > belief.Term {
			leader, belief = p, b
		}
	}
	return leader, belief
}

// heed is enough for a process to follow what it is told.
const heed = 40 * time.Millisecond

// steer changes what a slot is told; its next processes are told it too.
func (c *Cluster) steer(slot int, change func(*Control)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.control[slot])
	if p := c.slots[slot]; p != nil {
		_ = json.NewEncoder(p.stdin).Encode(c.control[slot]) // it may end just now
	}
}

// freeze stops a process, but not in the middle of a write, or where it holds
// a lock of the WAL index: there it would block everybody (see the package
// comment).
func (c *Cluster) freeze(ctx context.Context, p *process) error {
	for begin := time.Now(); ctx.Err() == nil && time.Since(begin) < tempserver.Patience; {
		if err := p.stop(); err != nil {
			p.resume()
			return err
		}
		blocked := make(chan bool, 1)
		go func() { blocked <- c.db.Blocked(ctx) }()
		select {
		case yes := <-blocked:
			if !yes {
				return nil
			}
			p.resume()
		case <-time.After(c.TTL / 4): // SQLite itself tries for 10 s
			p.resume()
			<-blocked
		}
		sleep(ctx, time.Duration(1+c.random.IntN(10))*time.Millisecond)
	}
	return errors.New("the write lock is never free")
}

// sleep reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// await looks every few milliseconds until cond, and reports whether that was
// within d.
func await(ctx context.Context, d time.Duration, cond func() bool) bool {
	for deadline := time.Now().Add(d); ctx.Err() == nil; sleep(ctx, 15*time.Millisecond) {
		if cond() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
	return false
}

// settleLimit is how long the harness waits for a leader before it gives up.
func (c *Cluster) settleLimit() time.Duration { return 3*c.TTL + 20*time.Second }

// settle waits until one process has led for two heartbeats, the row bears its
// term, and, unless idle, it has started a run since the given moment.
func (c *Cluster) settle(ctx context.Context, since time.Duration, idle bool) (Belief, error) {
	return c.settleWithin(ctx, c.settleLimit(), since, idle)
}

// startLimit is how long the first leader may take: nothing is judged before,
// and a starved machine is slow to start processes and a server.
const startLimit = 2 * time.Minute

func (c *Cluster) settleWithin(ctx context.Context, limit, since time.Duration,
	idle bool) (Belief, error) {
	var seen Belief
	runs := -1
	ok := await(ctx, limit, func() bool {
		p, b := c.leader()
		if p == nil || b.Term != seen.Term {
			seen, runs = b, -1
			return false
		}
		if runs < 0 {
			runs = b.Runs
			if b.First.Before > since {
				runs = 0
			}
		}
		if bootTime()-max(b.First.Before, since) < 2*c.Heartbeat || !idle && b.Runs == runs {
			return false
		}
		row, held, err := c.db.Row(ctx)
		return err == nil && held && row.Term == b.Term
	})
	if !ok {
		return seen, errors.Join(errors.New("nobody leads, and works, for good"), ctx.Err())
	}
	return seen, nil
}

// Close ends all processes, and the database.
func (c *Cluster) Close() error {
	c.users.stop()
	c.mu.Lock()
	select {
	case <-c.closing:
	default:
		close(c.closing)
	}
	c.mu.Unlock()
	for _, p := range c.running() {
		p.resume()
		if p.terminate(); c.Load { // it would wait for the callback
			p.kill()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, p := range c.running() {
		select {
		case <-p.exited:
		case <-ctx.Done():
			p.kill()
		}
	}
	c.keepers.Wait()
	return nil
}

// lockedSource may be used by several faults at once.
type lockedSource struct {
	mu  sync.Mutex
	src rand.Source
}

// Uint64 implements rand.Source.
func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.src.Uint64()
}
