package main

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that has died left its socket behind, and several begin at once.
func TestOneOfSeveralSidecarsReplacesASocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(folder(t), "lead.sock")
	for range 50 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		require.NoError(t, err)
		dead.SetUnlinkOnClose(false)
		require.NoError(t, dead.Close())
		require.Eventually(t, func() bool { // a process that another test starts may still have it
			conn, err := net.Dial("unix", socket)
			if err == nil {
				conn.Close()
			}
			return err != nil
		}, time.Minute, time.Millisecond)
		var (
			all  sync.WaitGroup
			mu   sync.Mutex
			live []net.Listener
		)
		for range 8 {
			all.Go(func() {
				l, err := listen("unix:" + socket)
				if err != nil {
					assert.ErrorContains(t, err, "another process answers there")
					return
				}
				mu.Lock()
				defer mu.Unlock()
				live = append(live, l)
			})
		}
		all.Wait()
		require.Len(t, live, 1)
		require.NoError(t, live[0].Close())
	}
}

// Whoever connects before a chmod stays connected after it.
func TestASocketIsPrivateFromTheBeginning(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(folder(t), "lead.sock")
	l, err := private.Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	defer l.Close()
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}
