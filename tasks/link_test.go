package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/schedlock/internal/wire"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/memory"
)

// A link is one replica's connection to the database.
type link struct {
	wire.Store

	mu      sync.Mutex
	session *session // nil: none that is a sign
	fault   func(op string) fault
	calls   []string
	called  time.Time // when the last of them was
	thawed  chan struct{}
	answer  error // of say
}

// A fault is what a statement meets. The zero fault is none.
type fault int

const (
	none   fault = iota
	refuse       // an error at once; not applied
	hang         // not applied; returns when its context ends
	freeze       // applied, but answered only when the link is set anew, whatever the context says
	lose         // applied, but the answer is an error
	delay        // applied when the link is set anew; returns when its context ends
	usurp        // not applied; the answer is that the lock is lost
	ruin         // not applied; the answer is that the database is damaged
	say          // not applied; the answer is the link's
)

// set says what the statements of the replica meet from now on; nil: nothing.
func (l *link) set(f func(op string) fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
	close(l.thawed)
	l.thawed = make(chan struct{})
}

// on is a fault of some statements.
func on(f fault, ops ...string) func(string) fault {
	return func(op string) fault {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return f
		}
		return none
	}
}

// log are the statements since the last call, without the looks of any kind.
func (l *link) log() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := l.calls
	l.calls = nil
	return calls
}

// newLink connects a replica with its database.
func newLink(db *memory.Store) *link {
	l := &link{thawed: make(chan struct{})}
	l.Store = wire.Store{Store: db, On: l.send}
	return l
}

func (l *link) send(s wire.Statement) (answer any, err error) {
	l.mu.Lock()
	// Where time stands still while things happen, gocron may ring twice at one
	// instant: a heartbeat too many does no harm.
	line, now := strings.TrimSpace(s.Op+" "+s.Detail), time.Now()
	twice := s.Op == "heartbeat" && len(l.calls) > 0 && l.calls[len(l.calls)-1] == line &&
		l.called.Equal(now)
	if s.Op != "look" && s.Op != "pending" && !twice {
		l.calls, l.called = append(l.calls, line), now
	}
	var f fault
	if l.fault != nil {
		f = l.fault(s.Op)
	}
	thawed, said := l.thawed, l.answer
	l.mu.Unlock()
	switch f {
	case say:
		return nil, said
	case refuse:
		return nil, errRefused
	case hang:
		<-s.Ctx.Done()
		return nil, context.Cause(s.Ctx)
	case freeze:
		answer, err = l.apply(s)
		<-thawed
		return answer, err
	case lose:
		_, _ = l.apply(s)
		return nil, errRefused
	case delay:
		go func() {
			<-thawed
			_, _ = s.Do(context.WithoutCancel(s.Ctx))
		}()
		<-s.Ctx.Done()
		return nil, context.Cause(s.Ctx)
	case usurp:
		return nil, fmt.Errorf("%w: says the test", schedlock.ErrLost)
	case ruin:
		return nil, fmt.Errorf("%w: says the test", schedlock.ErrCorrupt)
	}
	return l.apply(s)
}

// apply carries a statement out. What grants a lease tells of the session.
func (l *link) apply(s wire.Statement) (any, error) {
	answer, err := s.Do(s.Ctx)
	x := l.connected()
	if x == nil {
		return answer, err
	}
	switch a := answer.(type) {
	case driver.Grant:
		a.Session = x
		return a, err
	case driver.Renewal:
		a.Session = x
		return a, err
	}
	return answer, err
}
