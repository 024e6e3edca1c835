// Package tempserver runs the process of a temporary database server for tests, in a directory of
// its own. Packages pgtest and mytest say which.
//
// Nothing stays behind, however the test binary ends: each server has a watchdog process, which
// sees the binary's end of a pipe close, then stops the server and deletes its directory. Only the
// data directory of a new server is kept, as an archive in the user's cache directory.
package tempserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/schedlock/internal/missing"
)

// Patience bounds each wait for a server to start or stop: on a starved machine a node of Galera
// has taken more than a minute to join.
const Patience = 3 * time.Minute

// A MissingError says which program is not on this machine.
type MissingError struct{ Message string }

func (e *MissingError) Error() string { return e.Message }

// Need ends the test if err is not nil: see package missing if a program is missing.
func Need(t testing.TB, err error) {
	t.Helper()
	if _, lacks := errors.AsType[*MissingError](err); lacks {
		missing.Skip(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Find returns the path of a program, which may be one of an administrator's.
func Find(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{"the program " + name + " (looked in PATH and /usr/sbin)"}
}

// Answers reports whether somebody listens on a port of 127.0.0.1.
func Answers(port int) bool {
	conn, err := net.DialTimeout("tcp4", fmt.Sprint("127.0.0.1:", port), time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// A Template is the data directory of a new server, called data, as a program makes it once.
type Template struct {
	Name    string // of the folder in the user's cache directory
	Version string // of the server's programs: another one has another archive
	Make    func(*Process) error
}

// OnFreePort calls start with free ports until one is not taken meanwhile. The ports lie below
// those that the kernel gives to outgoing connections, so that a stopped server finds its port free
// again.
func OnFreePort(start func(port int) error) error {
	var err error
	for range 50 {
		port := 20000 + rand.IntN(12000)
		listener, taken := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if taken != nil {
			err = taken
			continue
		}
		_ = listener.Close()
		err = start(port)
		var died *DiedError
		if !errors.As(err, &died) ||
			!strings.Contains(strings.ToLower(died.Log), "address already in use") {
			return err
		}
	}
	return err
}
