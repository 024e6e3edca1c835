//go:build !unix || aix || solaris || illumos

package peek

import (
	"errors"
	"syscall"
)

// Possible is whether this system can.
const Possible = false

// Silent is false.
func Silent(syscall.RawConn) bool { return false }

// Wait returns an error.
func Wait(syscall.RawConn) error { return errors.ErrUnsupported }
