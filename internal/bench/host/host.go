// Package host lets a program that is no test start the servers of package pgtest.
package host

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// A Host is what package pgtest needs of a test, where there is none. What else
// a test has, it must not call: that is nil.
type Host struct {
	testing.TB
	cleanups []func()
}

// MissingError says which program is not on this machine.
type MissingError struct{ message string }

func (e *MissingError) Error() string { return e.message }

// Try runs what may end a test, and returns why it did.
func (h *Host) Try(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			err = v
		default:
			panic(v)
		}
	}()
	f()
	return nil
}

// End calls the cleanups, the last one first.
func (h *Host) End() {
	for len(h.cleanups) > 0 {
		last := h.cleanups[len(h.cleanups)-1]
		h.cleanups = h.cleanups[:len(h.cleanups)-1]
		last()
	}
}

func (h *Host) Helper()          {}
func (h *Host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }
func (h *Host) Skip(args ...any) {
	panic(error(&MissingError{fmt.Sprint(args...)}))
}
func (h *Host) Fatal(args ...any)                 { panic(errors.New(fmt.Sprint(args...))) }
func (h *Host) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }
func (h *Host) Error(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
