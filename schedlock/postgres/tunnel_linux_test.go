package postgres_test

import (
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/postgres"
)

// A forwarder on the very address and port that the server has, as ssh -L or a
// transparent proxy makes one: the client dials 127.0.0.1 and the server says
// that it was reached on 127.0.0.1, but the two ends are not of one connection.
func TestATunnelOnTheServersOwnAddressIsNoDirectConnection(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	u, err := url.Parse(direct)
	require.NoError(t, err)
	far := pgtest.NewNamespace(t) // the client's machine
	listener, err := far.Listen(u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", u.Host)
			if err != nil {
				client.Close()
				continue
			}
			if server.LocalAddr().String() == client.RemoteAddr().String() { // by chance
				client.Close()
				server.Close()
				continue
			}
			go func() { _, _ = io.Copy(client, server); client.Close() }()
			go func() { _, _ = io.Copy(server, client); server.Close() }()
		}
	}()

	through := func(opts ...postgres.Option) *postgres.Store {
		return configured(t, direct, func(config *pgxpool.Config) {
			config.ConnConfig.DialFunc = far.Dial
		}, opts...)
	}
	var log servertest.Log
	holder := through(postgres.WithLogger(log.Logger()))
	ref, s := acquireWatched(t, holder, time.Minute)
	require.Nil(t, s)
	row := look(t, holder).Row
	require.Zero(t, row.Grace)
	require.Contains(t, row.TTLOnly, "another end")
	require.Contains(t, row.TTLOnly, "WithDirectConnection")
	require.Contains(t, log.String(), "another end")
	beat, err := holder.Heartbeat(ctx, ref, driver.StateLeading)
	require.NoError(t, err)
	require.Nil(t, beat.Session)
	release(t, holder, ref)

	ref, s = acquireWatched(t, through(postgres.WithDirectConnection()), time.Minute)
	require.NotNil(t, s, "it is vouched for")
	release(t, holder, ref)
}
