package leasefile

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/schedlock/driver"
)

func newLeaseFile(t testing.TB) *File {
	t.Helper()
	return openFor(t, leasefiletest.NewDatabase(t))
}

func openFor(t testing.TB, dbPath string) *File {
	t.Helper()
	events := &inotify.Watch{}
	f, err := Open(dbPath, events)
	require.NoError(t, err)
	t.Cleanup(func() {
		f.Close()
		require.NoError(t, events.Close())
	})
	return f
}

func mustHold(t testing.TB, f *File, token driver.Token) Byte {
	t.Helper()
	held, err := f.Hold(token)
	require.NoError(t, err)
	t.Cleanup(held.Release)
	return held
}

func mustProbe(t testing.TB, f *File, token driver.Token, except ...driver.Token) State {
	t.Helper()
	s, err := f.Probe(token, except...)
	require.NoError(t, err)
	return s
}

// id names the file that the path leads to now.
func (f *File) id() (string, error) {
	fd, id, err := f.open(unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return id, nil
}

func mustID(t testing.TB, f *File) string {
	t.Helper()
	id, err := f.id()
	require.NoError(t, err)
	return id
}

// awaitLong awaits as a standby does, a second at a time, and fails after 2 s.
func awaitLong(t testing.TB, f *File, token driver.Token, seen State) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		f.Await(ctx, token, seen)
		ended := ctx.Err() != nil
		cancel()
		if !ended {
			return
		}
		if time.Now().After(end) {
			t.Fatal("not woken within 2 s")
		}
	}
}

func describe(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("min %v, median %v, max %v of %d", d[0], d[len(d)/2], d[len(d)-1], len(d))
}
