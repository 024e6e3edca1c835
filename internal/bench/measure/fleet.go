//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/clock"
)

// patience bounds every wait for something that normally takes milliseconds.
const patience = time.Minute

// A fleet is replicas in processes of their own, on one database.
type fleet struct {
	ctx      context.Context
	settings settings

	started int

	mu       sync.Mutex
	said     []remark
	news     chan struct{} // closed and replaced when something was said
	replicas []*replica    // that run
}

// remark is a line of a replica.
type remark struct {
	from   *replica
	what   string
	at     time.Duration // on the clock that all processes share
	number int64
}

// A replica is one process.
type replica struct {
	*host.Child
	name    string
	spawned time.Duration // just before it was
	exited  chan struct{}
}

func newFleet(ctx context.Context, s settings) *fleet {
	return &fleet{ctx: ctx, settings: s, news: make(chan struct{})}
}

// start starts one replica more.
func (f *fleet) start() (*replica, error) {
	f.started++
	s := f.settings
	s.Name = strconv.Itoa(f.started)
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), replicaEnv+"="+string(text))
	r := &replica{name: s.Name, spawned: clock.System.Boot(), exited: make(chan struct{})}
	if r.Child, err = host.StartChild(cmd); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.replicas = append(f.replicas, r)
	f.mu.Unlock()
	go func() {
		for line := range r.Lines {
			f.heard(r, line)
		}
		f.mu.Lock()
		f.replicas = slices.DeleteFunc(f.replicas, func(o *replica) bool { return o == r })
		f.mu.Unlock()
		close(r.exited)
		f.wake()
	}()
	return r, nil
}

func (f *fleet) heard(r *replica, line string) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return
	}
	at, err := strconv.ParseInt(words[1], 10, 64)
	number, err2 := strconv.ParseInt(words[2], 10, 64)
	if err != nil || err2 != nil {
		return
	}
	f.mu.Lock()
	f.said = append(f.said, remark{r, words[0], time.Duration(at), number})
	f.mu.Unlock()
	f.wake()
}

func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.news)
	f.news = make(chan struct{})
}

// await waits until is holds for what the replicas have said.
func (f *fleet) await(what string, is func(said []remark) bool) error {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		f.mu.Lock()
		ok, news := is(f.said), f.news
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-news:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		case <-limit.C:
			return fmt.Errorf("%s: not within %v", what, patience)
		}
	}
}

// find returns the last thing of that kind that a replica (nil: any) has said.
func find(said []remark, from *replica, what string) (remark, bool) {
	for _, s := range slices.Backward(said) {
		if s.what == what && (from == nil || s.from == from) {
			return s, true
		}
	}
	return remark{}, false
}

// settle waits until one replica leads and all others stand by for it.
func (f *fleet) settle(size int) (leader *replica, term int64, err error) {
	err = f.await("one leads and all others stand by", func(said []remark) bool {
		elected, ok := find(said, nil, saysElected)
		if !ok || len(f.replicas) != size {
			return false
		}
		leader, term = elected.from, elected.number
		for _, r := range f.replicas {
			if s, ok := find(said, r, saysStandby); r != leader && (!ok || s.number != term) {
				return false
			}
		}
		_, ok = find(said, leader, saysRun)
		return ok
	})
	return leader, term, err
}

// fill starts replicas until there are so many, a few at a time.
func (f *fleet) fill(size int) error {
	for {
		f.mu.Lock()
		n := len(f.replicas)
		f.mu.Unlock()
		if n >= size {
			return nil
		}
		r, err := f.start()
		if err != nil {
			return err
		}
		err = f.await("replica "+r.name+" has opened the database", func(said []remark) bool {
			_, ok := find(said, r, saysOpened)
			return ok
		})
		if err != nil {
			return err
		}
	}
}

// forget drops what was said, but for who leads and who stands by.
func (f *fleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = slices.DeleteFunc(f.said, func(s remark) bool {
		return !slices.Contains(f.replicas, s.from)
	})
}

// ended waits until a replica has ended.
func (f *fleet) ended(r *replica) error {
	return f.await("replica "+r.name+" has ended", func([]remark) bool {
		select {
		case <-r.exited:
			return true
		default:
			return false
		}
	})
}

// close kills all replicas, and waits for their end.
func (f *fleet) close() {
	f.mu.Lock()
	replicas := slices.Clone(f.replicas)
	f.mu.Unlock()
	for _, r := range replicas {
		r.Signal(syscall.SIGKILL)
	}
	for _, r := range replicas {
		<-r.exited
	}
}

// pause waits for a random time up to d, so that no round begins in step with
// something that happens every second.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(d)):
	}
}
