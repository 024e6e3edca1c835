//go:build linux

package faults

import (
	"context"
	"fmt"
)

// A server is a Database on a server: each slot of the cluster comes to it through a
// proxy of its own.
type server interface {
	Database

	// become changes the network of some slots, or of all.
	become(n network, slots ...int)

	// proxy is the network of a slot.
	proxy(slot int) *proxy

	// halt ends the server, hard or in good order, and start starts it again. A
	// pooler stays.
	halt(hard bool)
	start()

	// terminate ends the sessions of a process, or with nil of all.
	terminate(ctx context.Context, p *process) error

	// foreign opens a session of somebody else's.
	foreign(ctx context.Context) (end func(), err error)

	// pooled reports whether a pooler is in between.
	pooled() bool

	// wakes reports whether a release wakes the standbys.
	wakes() bool
}

// wire is the network of a cluster: a proxy for each slot.
type wire struct{ proxies []*proxy }

func (w *wire) become(n network, slots ...int) {
	if len(slots) == 0 {
		for _, p := range w.proxies {
			p.become(n)
		}
	}
	for _, slot := range slots {
		w.proxies[slot].become(n)
	}
}

func (w *wire) proxy(slot int) *proxy { return w.proxies[slot] }

func (w *wire) close() {
	for _, p := range w.proxies {
		p.Close()
	}
}

// server returns the server under test; errCannotInject if the database has none.
func (c *Cluster) server() (server, error) {
	if s, ok := c.db.(server); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: the database has no server", errCannotInject)
}

// led returns the server under test, who leads, and its belief. errCannotInject
// if the database has no server.
func (c *Cluster) led(ctx context.Context) (server, *process, Belief, error) {
	s, err := c.server()
	if err != nil {
		return nil, nil, Belief{}, err
	}
	p, b, err := c.target(ctx)
	return s, p, b, err
}
