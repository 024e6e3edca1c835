package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// An aside is standard error of a command that holds a lock: it goes on whether or not anybody
// reads what it says. A goroutine writes, and what finds no room in its queue is left out, which it
// says once there is room.
type aside struct {
	queue chan saying
	left  atomic.Int64
}

// A saying is text to be written, or a call of flush.
type saying struct {
	text []byte
	ack  chan struct{}
}

// stepAside lets the command go on if standard error is full or closed. It must be called before
// anybody is given errOut.
func (t *tool) stepAside() {
	// Without this the end of a pipe's reader would end the process (os/signal, SIGPIPE). What it
	// starts is spared that, as it would not be if the signal were ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a := &aside{queue: make(chan saying, 1000)}
	go a.write(t.errOut)
	t.errOut, t.flush = a, a.flush
}

func (a *aside) write(to io.Writer) {
	for s := range a.queue {
		if n := a.left.Swap(0); n > 0 {
			fmt.Fprintf(to, "schedlock: left out, as nobody read it: %d lines\n", n)
		}
		if s.ack != nil {
			close(s.ack)
			continue
		}
		_, _ = to.Write(s.text)
	}
}

// Write implements io.Writer. It never waits.
func (a *aside) Write(text []byte) (int, error) {
	select {
	case a.queue <- saying{text: bytes.Clone(text)}:
	default:
		a.left.Add(1)
	}
	return len(text), nil
}

// flush waits a second at most until all is written.
func (a *aside) flush() {
	late := time.After(time.Second)
	ack := make(chan struct{})
	select {
	case a.queue <- saying{ack: ack}:
	case <-late:
		return
	}
	select {
	case <-ack:
	case <-late:
	}
}
