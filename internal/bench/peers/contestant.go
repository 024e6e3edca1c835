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
type contestant interface {
	about() about
	// setup prepares what the lock of that name needs, before any replica opens.
	setup(ctx context.Context, env environment, lock string) error
	// open makes a replica, with connections that are open.
	open(ctx context.Context, env environment, lock, id string) (replica, error)
}

// A replica acquires and releases in turn, many times.
type replica interface {
	acquire(ctx context.Context) error // waits in the peer's own way
	release(ctx context.Context) error
	// renew is one heartbeat. ErrNone: the peer has none that may be called.
	renew(ctx context.Context) error
	// check is what an app calls to learn whether it leads; nil: there is none.
	check() func() bool
}

// A commander is a contestant whose replicas are another program. Its open is
// not called.
type commander interface {
	command(env environment, lock, id string) *exec.Cmd
}

// about says what a contestant is.
type about struct {
	name, settings string
	here           string // the name of this module's contestant on the same kind of database
	renew          time.Duration
	poll           time.Duration // how long a standby sleeps at most; 0: somebody tells it
	settle         time.Duration // how long a standby needs until it waits; 0: 150 ms
	perTick        bool          // it locks a tick, so that nobody leads
	leaves         bool          // a release leaves the lease to run out
	watched        bool          // this program looks whether it leads, and that costs more than it
}

// contestants are all of them, in the order of the page.
func contestants() []contestant {
	return []contestant{
		&module{database: "SQLite"},
		&python{design: "bangui"},
		&python{design: "sayt2"},
		&module{database: "PostgreSQL"},
		&advisory{},
		&advisory{poll: time.Second},
		&pgLock{},
		&riverQueue{},
		&riverQueue{scheduler: true},
		&gormLock{},
		&etcd{},
		&kubernetesLease{release: true},
		&kubernetesLease{},
		&redisLock{},
		&redSync{},
		&gocronRedis{},
	}
}

// The names of this module's own.
const (
	onSQLite   = "**schedlock, SQLite**"
	onPostgres = "**schedlock, PostgreSQL**"
)

// noSetup is for contestants whose locks need none.
type noSetup struct{}

func (noSetup) setup(context.Context, environment, string) error { return nil }

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
