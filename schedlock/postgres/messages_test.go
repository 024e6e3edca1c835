package postgres_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/acknowledged"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/postgres"
)

var everyMessage = flag.Bool("postgres.messages", false,
	"spoil every message of the protocol in every way, and not only a few")

// A spoiling is what becomes of one message, in whichever direction it goes.
type spoiling int

const (
	cutBefore spoiling = iota // the connection ends without it
	cutInside                 // after the first half of it
	cutAfter                  // just after it
	swallowed                 // it and all that follows on the connection are lost without a word
	crash                     // the server is killed, and starts again
	spoilings
)

func (s spoiling) String() string {
	return [...]string{"cut before", "cut inside", "cut after", "swallowed", "crash"}[s]
}

// A carrier passes on the messages of PostgreSQL's protocol, and counts them. One of them it
// spoils.
type carrier struct {
	url  string
	kill func() // the server, and start it again

	mu     sync.Mutex
	passed int
	spoil  int // the message; 0: none
	how    spoiling
}

func newCarrier(t testing.TB, database string) *carrier {
	t.Helper()
	w := &carrier{}
	w.url = between(t, database, func(client, server net.Conn) {
		var both sync.WaitGroup
		both.Go(func() { w.pass(client, server, true) })
		both.Go(func() { w.pass(server, client, false) })
		both.Wait()
	})
	return w
}

func (w *carrier) messages() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed
}

// pass passes on what one end says. The first message of a client has no type.
func (w *carrier) pass(from, to net.Conn, untyped bool) {
	defer from.Close()
	defer to.Close()
	silent := false
	for {
		message, err := readMessage(from, untyped)
		if err != nil {
			return
		}
		untyped = false
		w.mu.Lock()
		w.passed++
		spoiled, how := w.passed == w.spoil, w.how
		w.mu.Unlock()
		if spoiled {
			switch how {
			case cutBefore:
				return
			case cutInside:
				_, _ = to.Write(message[:len(message)/2])
				return
			case swallowed:
				silent = true
			case crash:
				w.kill()
				return
			}
		}
		if silent {
			continue
		}
		if _, err := to.Write(message); err != nil || spoiled && how == cutAfter {
			return
		}
	}
}

// readMessage reads a message of the protocol, version 3 (postgresql.org/docs, "Message Formats").
func readMessage(r io.Reader, untyped bool) ([]byte, error) {
	head := make([]byte, 5)
	if untyped {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[len(head)-4:]))
	message := append(head, make([]byte, max(0, size-4))...)
	_, err := io.ReadFull(r, message[len(head):])
	return message, err
}

// through is a history of a store whose messages the carrier has.
func (w *carrier) through() *acknowledged.History {
	return &acknowledged.History{Steps: w.messages, Sessions: 1,
		Open: func(ctx context.Context) (acknowledged.Store, error) {
			s, err := postgres.Open(ctx, w.url, silent)
			if err != nil {
				return nil, err
			}
			return s, nil
		}}
}

func TestNoSpoiledMessageLosesWhatWasAcknowledged(t *testing.T) {
	missing.Costly(t, "spoils hundreds of messages")
	t.Parallel()
	w := newCarrier(t, migrated(t))
	require.NoError(t, w.through().Live(ctx))
	all := w.messages()
	t.Logf("%d messages", all)
	// What is slow comes seldom.
	every := map[spoiling]int{cutBefore: 41, cutInside: 43, cutAfter: 47, swallowed: 199, crash: 223}
	for how := range spoilings {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			var own *pgtest.Server
			if how == crash {
				own = pgtest.Start(t)
			}
			var failures, runs atomic.Int32
			t.Run("message", func(t *testing.T) {
				for n := 1 + int(how); n <= all; n++ {
					if !*everyMessage && n%every[how] != 0 {
						continue
					}
					t.Run(strconv.Itoa(n), func(t *testing.T) { // at its end its database is dropped
						if own == nil { // most of it is waiting
							t.Parallel()
						}
						runs.Add(1)
						if err := spoiled(t, own, n, how); err != nil {
							failures.Add(1)
						}
					})
				}
			})
			t.Logf("%d of %d were answered by an error", failures.Load(), runs.Load())
			require.NotZero(t, failures.Load())
		})
	}
}

// spoiled lets a store live with one message spoiled, and returns the error that it has seen.
// What was acknowledged must be there, and the same store must go on.
func spoiled(t *testing.T, own *pgtest.Server, n int, how spoiling) error {
	t.Helper()
	var database string
	if own != nil {
		database = own.Filled(t, func(url string) { migrate(t, url) })
	} else {
		database = migrated(t)
	}
	w := newCarrier(t, database)
	w.spoil, w.how = n, how
	w.kill = func() {
		own.KillPostmaster(t)
		own.StartAgain(t)
	}
	patience := time.Minute
	if how == swallowed { // a caller waits for an answer until his own deadline
		patience = 5 * time.Second
	}
	living, cancel := context.WithTimeout(ctx, patience)
	h := w.through()
	failed := h.Live(living)
	cancel()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	what := fmt.Sprintf("message %d, %v: %v", n, how, failed)
	if h.Store != nil {
		require.Eventually(t, func() bool { return acknowledged.GoesOn(ctx, h.Store) == nil },
			time.Minute, time.Millisecond, "the store does not go on after %s", what)
		require.NoError(t, h.Store.Close())
	}
	var s *postgres.Store
	require.Eventually(t, func() bool {
		var err error
		s, err = postgres.Open(ctx, database, silent)
		return err == nil
	}, time.Minute, time.Millisecond, what)
	defer s.Close()
	require.NoError(t, h.Check(ctx, s, w.messages()), what)
	return failed
}
