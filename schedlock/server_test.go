package schedlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// grace is what the replicas of a server wait when a session has ended, unless
// a test says otherwise.
const grace = 5 * time.Second // as package startup has it

// A server is a database that knows the sessions of its clients, so that the
// end of the holder's is a sign to others.
type server struct {
	*memory.Store

	mu   sync.Mutex
	held map[driver.Token]*session // what the row tells of its holder
}

// onServer runs f in a bubble, on a server that all replicas of a fleet share.
func onServer(t *testing.T, f func(t *testing.T, db *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newServer(memory.New())) })
}

// serve is onServer as a subtest.
func serve(t *testing.T, name string, f func(t *testing.T, db *server)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { onServer(t, f) })
}

func newServer(db *memory.Store) *server {
	return &server{Store: db, held: map[driver.Token]*session{}}
}

// A session lasts until the server ends it, and its client learns of that then
// or later.
type session struct {
	client *client
	over   atomic.Bool // the server has ended it
	unread atomic.Bool // something waits to be read: its end, for all that a look can tell
	ended  chan struct{}
	once   sync.Once
}

func (x *session) Ended() <-chan struct{} { return x.ended }

func (x *session) Alive() bool {
	x.client.wait()
	select {
	case <-x.ended:
		return false
	default:
		return !x.unread.Load()
	}
}

// notice lets the client know that the session has ended.
func (x *session) notice() { x.once.Do(func() { close(x.ended) }) }

// A client is one replica's connection to a server. It connects when it is
// asked for something and has no session.
type client struct {
	*server

	session *session      // guarded by server.mu, as is what follows
	refused bool          // it cannot connect
	slow    time.Duration // how late its answers are
	asked   int           // how often it looked at the holder's session
	stopped chan struct{} // nil: its process runs; else closed when it goes on
}

// newHeld is a replica whose session is a sign to others while it leads.
func newHeld(t *testing.T, db *server, opts ...schedlock.Option) (*replica, *client) {
	t.Helper()
	c := &client{server: db}
	r := newReplica(t, c, append([]schedlock.Option{schedlock.WithSessionGrace(grace)}, opts...)...)
	t.Cleanup(c.goOn)
	return r, c
}

// end ends the session, and the client learns of it at once.
func (c *client) end() { c.endUnseen().notice() }

// endUnseen ends the session without the client's knowledge.
func (c *client) endUnseen() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.over.Store(true)
	return c.session
}

// refuse says whether the client cannot get another session.
func (c *client) refuse(yes bool) { c.set(func() { c.refused = yes }) }

// cut ends the session, and the client cannot get another one.
func (c *client) cut() {
	c.refuse(true)
	c.end()
}

// set changes what the client meets.
func (c *client) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// stop lets the client's process stand still, as far as it depends on answers:
// none comes, and none of its looks at the session ends, until goOn. Nothing of
// the process may run when it is called.
func (c *client) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped == nil {
		c.stopped = make(chan struct{})
	}
}

func (c *client) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		close(c.stopped)
		c.stopped = nil
	}
}

// wait returns as soon as the process runs.
func (c *client) wait() {
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// use sends a statement: it runs with server.mu held, on the session given.
func (c *client) use(statement func(x *session) error) error {
	c.wait()
	defer func() {
		c.mu.Lock()
		slow := c.slow
		c.mu.Unlock()
		time.Sleep(slow)
		c.wait()
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.session; x != nil && x.over.Load() {
		x.notice() // this is how it learns of it
	}
	if c.session == nil || isClosed(c.session.ended) {
		if c.session != nil {
			c.session.over.Store(true)
		}
		if c.refused {
			return errBroken
		}
		c.session = &session{client: c, ended: make(chan struct{})}
	}
	return statement(c.session)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (c *client) Look(ctx context.Context) (v driver.Snapshot, err error) {
	err = c.use(func(*session) error {
		v, err = c.Store.Look(ctx)
		return err
	})
	return v, err
}

func (c *client) LookAtSession(ctx context.Context) (v driver.Snapshot, err error) {
	err = c.use(func(*session) error {
		c.asked++
		v, err = c.Store.Look(ctx)
		if v.Row != nil && c.held[v.Row.Token] != nil && c.held[v.Row.Token].over.Load() {
			v.Sign = driver.SignEnded
		}
		return err
	})
	return v, err
}

func (c *client) Acquire(ctx context.Context, claim driver.Claim) (grant driver.Grant, err error) {
	err = c.use(func(x *session) error {
		grant, err = c.Store.Acquire(ctx, claim)
		if err == nil && claim.Grace > 0 {
			c.Edit(func(r *driver.Row) { r.Grace = claim.Grace })
			c.held[claim.Token], grant.Session = x, x
		}
		return err
	})
	return grant, err
}

// Heartbeat puts the session in use into the row.
func (c *client) Heartbeat(ctx context.Context, ref driver.Ref,
	s driver.State) (beat driver.Renewal, err error) {
	err = c.use(func(x *session) error {
		beat, err = c.Store.Heartbeat(ctx, ref, s)
		if err == nil && c.held[ref.Token] != nil {
			c.held[ref.Token], beat.Session = x, x
		}
		return err
	})
	return beat, err
}

func (c *client) Release(ctx context.Context, ref driver.Ref,
	reason driver.EndReason) (deleted bool, err error) {
	err = c.use(func(*session) error {
		deleted, err = c.Store.Release(ctx, ref, reason)
		return err
	})
	return deleted, err
}
