package mytest

import (
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// Somebody else's server takes the port between its choice and its use.
func TestAPortIsChosenAgainIfAnotherServerHasTakenIt(t *testing.T) {
	missing.Long(t, "starts MariaDB")
	other := Shared(t)
	var ports []int
	s := start(t, nil, false, func(s *Server) error {
		ports = append(ports, s.port)
		if len(ports) > 1 {
			return nil
		}
		listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
				server, err := net.Dial("tcp4", other.Address())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(server, client) }()
				go func() { _, _ = io.Copy(client, server) }()
			}
		}()
		return nil
	})
	require.Greater(t, len(ports), 1)
	require.Equal(t, ports[len(ports)-1], s.Port())
	require.NotEqual(t, ports[0], s.Port())
	s.Exec(t, "CREATE DATABASE app")
}
