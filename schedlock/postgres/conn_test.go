package postgres_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		version string
		old     bool
	}{{"9.6.24", true}, {"12.22 (Debian 12.22-1)", true}, {"13.0", false}, {"pooler", false}} {
		address := servertest.Listen(t, func(conn net.Conn) {
			defer conn.Close()
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.AuthenticationOk{})
			server.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: tc.version})
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			_ = server.Flush()
			_, _ = server.Receive()
		})
		_, err := postgres.Open(ctx, fmt.Sprintf("postgres://app@%s/app?sslmode=disable", address),
			silent)
		require.Error(t, err) // it answers no statement
		if tc.old {
			require.ErrorIs(t, err, driver.ErrPermanent)
			require.ErrorContains(t, err, "PostgreSQL "+tc.version+" is too old")
		} else {
			require.NotErrorIs(t, err, driver.ErrPermanent)
		}
	}
}
