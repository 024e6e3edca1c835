package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/hosts"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/prom"
	"example.com/schedlock/schedlock/sqlite"
)

const leadHelp = `It runs beside a program that cannot take the lock itself, campaigns for the
scheduler's lock on its behalf, and answers until SIGTERM or SIGINT:

  GET /leader       200 if this replica leads, 503 otherwise:
                    {"leader":true,"term":7,"valid_for_ms":5000}
  GET /lock         who holds the lock, as the database has it
  GET /livez        503 if this process acts as the leader past its TTL
  GET /readyz       503 unless the database answers
  GET /metrics      for Prometheus
  POST /release     hands over; the fields "by" and "reason" say who and why

It migrates the database, as an app does.

Examples:
  schedlock lead --db postgres://app@db/app --listen 127.0.0.1:7070
  curl --fail http://127.0.0.1:7070/leader
`

const (
	defaultListen   = "127.0.0.1:7070"
	defaultValidFor = 5 * time.Second
)

// A sidecar leads on behalf of a program beside it. Answers that were given must
// stay true also if it dies: its death is no sign to others, they wait for its TTL.
type sidecar struct {
	tool     *tool
	listen   string
	names    []string
	hosts    hosts.List
	ttl      time.Duration
	validFor time.Duration
	verbose  bool

	log     *slog.Logger
	store   store
	lock    *schedlock.Lock
	metrics *prom.Metrics

	mu       sync.Mutex
	lease    *schedlock.Lease // nil: nothing may be promised
	promised time.Time        // when the last answer ends that may be relied on
}

func sidecars(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	s := &sidecar{tool: t}
	flags.StringVar(&s.listen, "listen", defaultListen, "where it answers: the `ADDR` of a port "+
		"of this machine, or of a Unix socket such as unix:/run/app/lead.sock")
	flags.StringArrayVar(&s.names, "host", nil, "answer requests for the host `NAME` too, besides "+
		"those for localhost and for the address that they come to; may be repeated")
	flags.DurationVar(&s.ttl, "ttl", rules.DefaultTTL,
		"the lock's TTL: after a crash nobody leads for so long")
	flags.DurationVar(&s.validFor, "valid-for", defaultValidFor, "how long an answer of "+
		"GET /leader may be relied on, at most; the lock is given back no earlier than that after "+
		"the last such answer")
	flags.BoolVarP(&s.verbose, "verbose", "v", false, "log also who leads")
	return func(ctx context.Context) (int, error) {
		t.remedies = "give --schema on PostgreSQL, or another --db"
		t.stepAside()
		if err := s.check(flags.Changed("valid-for")); err != nil {
			return 0, wrong("%v", err)
		}
		return exitDone, s.run(ctx)
	}
}

// check returns what is wrong with the call.
func (s *sidecar) check(validFor bool) (err error) {
	switch {
	case s.listen == "":
		return errors.New("--listen is empty")
	case !isListenAddress(s.listen):
		return fmt.Errorf("--listen %s is neither HOST:PORT, with a port from 0 to 65535, nor "+
			"unix: and the path of a socket", message.Shown(s.listen))
	case validFor && s.validFor < time.Millisecond: // answers give whole milliseconds
		return fmt.Errorf("--valid-for %v is below 1ms", s.validFor)
	}
	// Its renew deadline has room for three heartbeats, whose interval no flag sets.
	if least := 4 * driver.MinHeartbeatInterval; s.ttl < least {
		return fmt.Errorf("--ttl %v is below %v", s.ttl, least)
	}
	if s.hosts, err = hosts.New(s.names...); err != nil {
		return fmt.Errorf("--host: %w", err)
	}
	s.log = s.tool.logger(s.verbose)
	s.metrics = prom.New()
	lock, err := schedlock.New(struct{ driver.Store }{}, schedlock.WithTTL(s.ttl))
	if err != nil {
		return fmt.Errorf("--ttl %v: %w", s.ttl, err)
	}
	trusted := lock.Timing().RenewDeadline
	if !validFor {
		s.validFor = min(defaultValidFor, trusted)
	}
	switch {
	case s.validFor > trusted:
		return fmt.Errorf("--valid-for %v is above %v, the renew deadline for a TTL of %v",
			s.validFor, trusted, s.ttl)
	case s.tool.json:
		return errors.New("--json: lead answers over HTTP, and always in JSON")
	}
	return nil
}

// isListenAddress reports whether listen can make something of an address.
func isListenAddress(addr string) bool {
	if path, isSocket := strings.CutPrefix(addr, "unix:"); isSocket {
		return path != ""
	}
	_, port, err := net.SplitHostPort(addr)
	_, wrong := strconv.ParseUint(port, 10, 16)
	return err == nil && wrong == nil
}

// run answers until ctx ends.
func (s *sidecar) run(ctx context.Context) (err error) {
	if s.store, err = s.tool.openAndMigrate(ctx, s.log, sqlite.WithoutProofOfDeath()); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer s.store.Close()
	listener, err := listen(s.listen) // who connects before is refused, and does not wait
	if err != nil {
		return err
	}
	defer listener.Close()
	// Without a session grace: on PostgreSQL, too, only the TTL ends it from outside.
	s.lock, err = schedlock.New(s.store, schedlock.WithTTL(s.ttl), schedlock.WithLogger(s.log),
		schedlock.WithApp("schedlock lead"), schedlock.WithObserver(s.metrics.Observe))
	if err != nil {
		return err
	}
	s.metrics.Watch(s.lock, nil)
	server := s.server()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	campaign := make(chan error, 1)
	go func() { campaign <- s.lock.Run(ctx, s.lead) }()
	fmt.Fprintf(s.tool.errOut, "schedlock: lead: answers on %s\n", listener.Addr())
	select {
	case err = <-campaign: // ctx has ended
		_ = s.lock.Stop(context.WithoutCancel(ctx))
	case err = <-served:
		cancel()
		err = errors.Join(fmt.Errorf("serve on %s: %w", listener.Addr(), err), <-campaign)
	}
	closing, end := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer end()
	_ = server.Shutdown(closing)
	return err
}

// closeLimit is how long requests may take that are under way at the end.
const closeLimit = 5 * time.Second

// lead holds the lock until ctx ends: because it is lost, an operator hands it over,
// or this process is told to end. It outlasts what was promised, also after a loss:
// the release that follows lets another lead at once.
func (s *sidecar) lead(ctx context.Context, lease *schedlock.Lease) error {
	s.mu.Lock()
	s.lease = lease
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.lease = nil
	left := time.Until(s.promised)
	s.mu.Unlock()
	time.Sleep(left)
	return nil
}

// promise answers who leads, and for how long that may be relied on. Nothing is
// promised past the renew deadline, so that it holds although this process dies or
// is stopped: others wait for the TTL, which is longer.
func (s *sidecar) promise() (term int64, valid time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil || s.lock.IsLeader(context.Background()) != nil {
		return 0, 0
	}
	select {
	case <-s.lease.Revoked(): // lead is about to give it back
		return 0, 0
	default:
	}
	now := time.Now()
	valid = min(s.validFor, s.lock.Timing().RenewDeadline-s.lease.Confirmed())
	if valid = valid.Truncate(time.Millisecond); valid <= 0 {
		return 0, 0
	}
	if end := now.Add(valid); end.After(s.promised) {
		s.promised = end
	}
	return s.lease.Term(), valid
}
