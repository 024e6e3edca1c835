//go:build unix

package bans

import (
	"os"
	"syscall"
)

// openFlags open a named pipe without waiting for its writer, and no terminal as
// this process's own.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
