package postgres

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

func TestOnlyTheSameTwoEndsAreOneConnection(t *testing.T) {
	t.Parallel()
	end := func(ip string, port int) *net.TCPAddr {
		return &net.TCPAddr{IP: net.ParseIP(ip), Port: port}
	}
	seen := func(server string, serverPort int32, client string, clientPort int32) ends {
		return ends{
			server:     pgtype.Text{String: server, Valid: server != ""},
			serverPort: pgtype.Int4{Int32: serverPort, Valid: serverPort > 0},
			client:     pgtype.Text{String: client, Valid: client != ""},
			clientPort: pgtype.Int4{Int32: clientPort, Valid: clientPort > 0},
		}
	}
	const there, here = "another address than the one", "another end than the holder's"
	for _, tc := range []struct {
		name          string
		local, remote net.Addr
		seen          ends
		why           string
	}{
		{"the same", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40000), ""},
		{"IPv6", end("fd00::1", 40000), end("fd00::2", 5432),
			seen("fd00::2", 5432, "fd00:0::1", 40000), ""},
		{"IPv4 in a socket of IPv6", end("::ffff:10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40000), ""},
		{"another address of the server", end("10.0.0.1", 40000), end("10.0.0.9", 5432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40000), there},
		{"another port of the server", end("10.0.0.1", 40000), end("10.0.0.2", 6432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40000), there},
		{"another address of the client", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "10.0.0.9", 40000), here},
		{"another port of the client", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40001), here},
		{"a client without an address", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "", 0), here},
		{"a server without an address", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("", 0, "10.0.0.1", 40000), there},
		{"what is no address", end("10.0.0.1", 40000), end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "nowhere", 40000), here},
		{"no TCP", &net.UnixAddr{}, end("10.0.0.2", 5432),
			seen("10.0.0.2", 5432, "10.0.0.1", 40000), here},
	} {
		why := tc.seen.differ(tc.local, tc.remote)
		if tc.why == "" {
			require.Empty(t, why, tc.name)
		} else {
			require.Contains(t, why, tc.why, tc.name)
		}
	}
}
