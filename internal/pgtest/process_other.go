//go:build !unix

package pgtest

import (
	"sync/atomic"
	"syscall"
)

// process cannot be had here: it needs Unix users, signals and sockets.
type process struct {
	dir string
	pid atomic.Int64
}

type diedError struct{ name, log string }

func (e *diedError) Error() string { return e.name + ": " + e.log }

var errPlatform = &missingError{"a Unix system, for PostgreSQL servers"}

func newProcess(bool) (*process, error) { return nil, errPlatform }

func (p *process) cluster(string) error                       { return errPlatform }
func (p *process) run(string, ...string) error                { return errPlatform }
func (p *process) start(func() bool, string, ...string) error { return errPlatform }
func (p *process) stop(syscall.Signal) error                  { return errPlatform }
func (p *process) remove()                                    {}
func (p *process) ended() bool                                { return true }
