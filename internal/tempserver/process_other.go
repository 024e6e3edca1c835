//go:build !unix

package tempserver

import "syscall"

// A Process cannot be had here: it needs Unix users, signals and sockets.
type Process struct {
	Dir string
	Env []string
}

// A DiedError says that a server ended while it was to start.
type DiedError struct{ Name, Log string }

func (e *DiedError) Error() string { return e.Name + ": " + e.Log }

var errPlatform = &MissingError{"a Unix system, for database servers"}

// New returns an error.
func New(bool, ...string) (*Process, error) { return nil, errPlatform }

// Data returns an error.
func (p *Process) Data(Template) error { return errPlatform }

// Run returns an error.
func (p *Process) Run(string, ...string) error { return errPlatform }

// Output returns an error.
func (p *Process) Output(string, ...string) (string, error) { return "", errPlatform }

// Start returns an error.
func (p *Process) Start(func() bool, string, ...string) error { return errPlatform }

// Stop returns an error.
func (p *Process) Stop(syscall.Signal) error { return errPlatform }

// Signal returns an error.
func (p *Process) Signal(syscall.Signal) error { return errPlatform }

// Remove does nothing.
func (p *Process) Remove() {}

// Ended returns true.
func (p *Process) Ended() bool { return true }

// PID returns 0.
func (p *Process) PID() int { return 0 }
