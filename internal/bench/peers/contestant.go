//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// A contestant is one way to see to it that one replica leads.
type contestant struct {
	name, settings string
	here           string // the name of this module's contestant on the same kind of database
	renew          time.Duration
	poll           time.Duration // how long a standby sleeps at most; 0: somebody tells it
	settle         time.Duration // how long a standby needs until it waits; 0: 150 ms
	perTick        bool          // it locks a tick, so that nobody leads
	leaves         bool          // a release leaves the lease to run out
	watched        bool          // this program looks whether it leads, and that costs more than it

	// setup prepares what the lock of that name needs, before any replica opens; nil: nothing.
	setup func(ctx context.Context, env environment, lock string) error
	open  opener
	// command starts a replica that is another program; then there is no open.
	command func(env environment, lock string) *exec.Cmd
}

// An opener makes a replica, with connections that are open.
type opener func(ctx context.Context, env environment, lock, id string) (replica, error)

// A replica acquires and releases in turn, many times.
type replica interface {
	acquire(ctx context.Context) error // waits in the peer's own way
	release(ctx context.Context) error
}

// A renewer has a heartbeat that may be called.
type renewer interface {
	renew(ctx context.Context) error
}

// A checker has what an app calls to learn whether it leads.
type checker interface{ check() func() bool }

// contestants are all of them, in the order of the page.
var contestants = []contestant{
	moduleOnSQLite,
	pythonLock("BanGUI's lock, Python", "bangui", 10*time.Second,
		"one row, TTL 60 s, heartbeat 10 s; whoever loses tries again after a second"),
	pythonLock("sayt2's lock, Python", "sayt2", 0,
		"one row a lock, expires after 60 s, no heartbeat; tried again every second"),
	moduleOnPostgres,
	advisoryBlocking,
	advisoryTried,
	pgLock,
	riverRow,
	riverScheduler,
	gormLock,
	etcdElection,
	kubernetesReleased,
	kubernetesLease,
	redisLock,
	redSync,
	gocronRedis,
}

// The names of this module's own.
const (
	onSQLite   = "**schedlock, SQLite**"
	onPostgres = "**schedlock, PostgreSQL**"
)

// An environment says where the servers are. Replicas get it as JSON.
type environment struct {
	Postgres string // URL of a database
	Redis    string // host:port, as the next ones
	Etcd     string
	API      string // stub of the Kubernetes API
	Dir      string // for SQLite files
	Script   string // baseline.py
}

const environmentName = "SCHEDLOCK_PEERS"

func (e environment) String() string {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func environmentOfParent() (e environment) {
	if err := json.Unmarshal([]byte(os.Getenv(environmentName)), &e); err != nil {
		fmt.Fprintln(os.Stderr, environmentName+":", err)
		os.Exit(2)
	}
	return e
}

// beat calls renew every interval, which some peers leave to the app.
func beat(every time.Duration, renew func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				_ = renew(ctx) // the next one may succeed
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}
